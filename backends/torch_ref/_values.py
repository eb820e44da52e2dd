"""Values that no call may have, such as a target that is no class: on a CPU they are looked at, and are an error.

On a GPU to look at them would be to wait for them: kernels give NaN there.
"""

import torch

from kernelmux.registry import tracing


def first_wrong(wrong: torch.Tensor, values: torch.Tensor) -> tuple[int, list[int]] | None:
    """The first wrong one among integers and its index, as far as that can be seen; wrong: which of them are.

    Under vmap all examples are looked at, and there is no index.
    """
    if wrong.device.type != "cpu" or not bool(tracing.innermost(wrong).any()):
        return None
    if not tracing.mapped(wrong):
        index = wrong.nonzero()[0].tolist()
        return int(values[tuple(index)]), index
    values = values.long()
    among = tracing.innermost(torch.where(wrong, 1, values * 0))  # as the line below, so that both lie alike
    found = tracing.innermost(torch.where(wrong, values, 0))
    return int(found[among.bool()][0]), []
