"""Values that no call may have, such as a target that is no class: on a CPU they are looked at, and are an error.

On a GPU to look at them would be to wait for them: kernels give NaN there. Under vmap there are no values to look at.
"""

import torch

from kernelmux.registry import catalog, tracing
from kernelmux.registry.errors import not_under_vmap


def any_wrong(op: str, name: str, wrong: torch.Tensor) -> bool:
    """Whether the input `name` of an operator has a wrong value, as far as that can be seen; wrong: which of them are.

    ArgumentError on a CPU where vmap maps over it.
    """
    if wrong.device.type != "cpu":
        return False
    if tracing.mapped(wrong):
        raise not_under_vmap(op, name, next(t.shapes for t in catalog.spec(op).tensors if t.name == name))
    return bool(wrong.any())
