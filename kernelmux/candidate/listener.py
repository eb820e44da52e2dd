"""Which operators of torch a call asks for: told in the process of a candidate, so a remark and no proof."""

from __future__ import annotations

from typing import Any

from kernelmux.candidate.allocations import is_view
from kernelmux.candidate.dispatch_mode import DispatchMode

# Memory is made, moved and looked at: kernels need these around them.
AROUND = {
    *(
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "zeros",
        "zeros_like",
        "new_zeros",
        "ones",
    ),
    *(
        "full",
        "full_like",
        "new_full",
        "fill_",
        "zero_",
        "copy_",
        "clone",
        "_to_copy",
        "contiguous",
        "detach",
        "lift_fresh",
    ),
    *("arange", "scalar_tensor", "is_pinned", "_pin_memory", "_local_scalar_dense", "set_", "resize_", "item", "equal"),
    *("_unsafe_view", "_reshape_alias", "_reshape_copy", "ones_like", "new_ones"),
}


class Listener(DispatchMode):
    """Inside of the `with`, `operators` gets the name of each that computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name.removeprefix("aten::") not in AROUND and not is_view(func):
            self.operators.add(name)
        return func(*args, **(kwargs or {}))
