"""Values that no call may have: on a CPU they are looked at, and are an error.

On a GPU to look at them would be to wait for them: kernels give NaN there.
"""

import torch

from kernelmux.registry import checked


def first_wrong(wrong: torch.Tensor, values: torch.Tensor) -> tuple[int, list[int]] | None:
    """The first wrong one among integers and its index, as far as that can be seen; wrong: which of them are."""
    return checked.first_wrong(wrong, values) if wrong.device.type == "cpu" else None
