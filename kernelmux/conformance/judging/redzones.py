"""Memory with something to lose around it: canaries behind every allocation of a call, NaN around every input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelmux.conformance.inputs.layouts import POISON, Strides, contiguous_strides, extent, poisoned
from kernelmux.conformance.inputs.trials import bits

MARGIN = 1024  # bytes before and behind; a multiple of every alignment a kernel may count on

_aten = torch.ops.aten
EMPTY = {
    _aten.empty.memory_format,
    _aten.empty_strided.default,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}
FILLED = {
    _aten.zeros.default,
    _aten.zeros_like.default,
    _aten.new_zeros.default,
    _aten.ones.default,
    _aten.ones_like.default,
    _aten.full.default,
    _aten.full_like.default,
    _aten.new_full.default,
    _aten.clone.default,
}


@dataclass(frozen=True)
class Guarded:
    """A tensor inside a larger poisoned buffer."""

    whole: torch.Tensor
    view: torch.Tensor

    @property
    def used(self) -> tuple[int, int]:
        """First byte of the tensor and the byte after its last."""
        size = extent(self.view.shape, self.view.stride()) * self.view.element_size()
        return MARGIN, MARGIN + size

    def damage(self) -> str | None:
        """None, or where bytes outside the tensor were changed."""
        first, end = self.used
        behind = (self.whole[end:] != POISON).nonzero()
        before = (self.whole[:first] != POISON).nonzero()
        if behind.numel():
            low, high = int(behind[0]), int(behind[-1])
            return f"{behind.numel()} bytes behind its end were overwritten, {low} to {high} bytes after it"
        if before.numel():
            return f"{before.numel()} bytes were overwritten, from {first - int(before[0])} bytes before it on"
        return None

    def owns(self, x: torch.Tensor) -> bool:
        return x.untyped_storage().data_ptr() == self.whole.untyped_storage().data_ptr()

    @property
    def name(self) -> str:
        return f"an allocation of {list(self.view.shape)} {str(self.view.dtype).removeprefix('torch.')}"


def guarded(shape: Any, strides: Any, dtype: torch.dtype, like: torch.Tensor) -> Guarded:
    """Poisoned memory for a tensor, with poisoned margins, where `like` lives."""
    size = extent(shape, strides) * dtype.itemsize
    whole = poisoned(2 * MARGIN + -(-size // 16) * 16, torch.uint8, like)
    view = whole[MARGIN : MARGIN + -(-size // dtype.itemsize) * dtype.itemsize].view(dtype).as_strided(shape, strides)
    return Guarded(whole, view)


def haloed(x: torch.Tensor, strides: Strides | None = None) -> Guarded:
    """The values of x, contiguous or with these strides (that overlap nowhere), with NaN around and between them."""
    made = guarded(x.shape, strides or contiguous_strides(x.shape), x.dtype, x)
    made.view.copy_(x)
    return made


def poison_left(x: torch.Tensor) -> torch.Tensor:
    """Which elements still have all bits set, as fresh poisoned memory has."""
    return bits(x) == (255 if x.element_size() == 1 else -1)


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Places every allocation that is made inside the `with` between canaries; `memory` lists them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory: list[Guarded] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in EMPTY:
            return self._place(func, args, kwargs)
        result = func(*args, **kwargs)
        if func in FILLED and result.layout == torch.strided:
            made = guarded(result.shape, result.stride(), result.dtype, result)
            self.memory.append(made)
            return made.view.copy_(result)
        return result

    def _place(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        model = args[0] if args and isinstance(args[0], torch.Tensor) else None
        device = torch.device(kwargs.get("device") or (model.device if model is not None else "cpu"))
        if device.type == "meta":
            return func(*args, **kwargs)
        shape_only = {k: v for k, v in kwargs.items() if k != "pin_memory"} | {"device": torch.device("meta")}
        meta = func(*args, **shape_only)
        where = torch.empty(1, device=device, pin_memory=bool(kwargs.get("pin_memory")))
        made = guarded(meta.shape, meta.stride(), meta.dtype, where)
        self.memory.append(made)
        return made.view
