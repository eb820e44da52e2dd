"""Memory that new tensors get on purpose: with something to lose around it, or with none of its own until it is used.

with Guard() as watch:   every allocation is poisoned and lies between canaries; `watch.memory` lists them
with Virtual():          allocations take no room until they are written; torch must not compute on them
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.candidate.dispatch_mode import DispatchMode

POISON = 0xFF  # NaN in every floating format, -1 in every integer format
MARGIN = 1024  # bytes before and behind; a multiple of every alignment a kernel may count on
LEAST = 2**13  # elements that each operation counts for where memory is virtual, so that loops end
LARGE = 2**27  # elements that torch is not asked to compute on there
NO_RESERVE = 0x4000  # MAP_NORESERVE: room is not set aside

Strides = tuple[int, ...]

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
PIECES = {_aten.split.Tensor, _aten.split_with_sizes.default, _aten.unbind.int}  # as many tensors as a loop has turns
ZEROS = {_aten.zeros.default, _aten.zeros_like.default, _aten.new_zeros.default}


def contiguous_strides(shape: Sequence[int]) -> Strides:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one that a view touches."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0


def poisoned(size: int, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    """A vector full of poison where `like` lives (pinned if it is)."""
    pinned = like.device.type == "cpu" and torch.cuda.is_available() and like.is_pinned()
    raw = torch.empty(size * dtype.itemsize, dtype=torch.uint8, device=like.device, pin_memory=pinned)
    return raw.fill_(POISON).view(dtype)


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
    return _within(poisoned(_room(shape, strides, dtype), torch.uint8, like), shape, strides, dtype)


def guarded_together(tensors: Sequence[torch.Tensor], like: torch.Tensor) -> list[Guarded]:
    """`guarded` memory for tensors like these, one behind another in one piece of memory."""
    rooms = [_room(x.shape, x.stride(), x.dtype) for x in tensors]
    parts = torch.split(poisoned(sum(rooms), torch.uint8, like), rooms)
    return [_within(part, x.shape, x.stride(), x.dtype) for part, x in zip(parts, tensors, strict=True)]


def _room(shape: Any, strides: Any, dtype: torch.dtype) -> int:
    return 2 * MARGIN + -(-extent(shape, strides) * dtype.itemsize // 16) * 16


def _within(whole: torch.Tensor, shape: Any, strides: Any, dtype: torch.dtype) -> Guarded:
    size = extent(shape, strides) * dtype.itemsize
    view = whole[MARGIN : MARGIN + -(-size // dtype.itemsize) * dtype.itemsize].view(dtype).as_strided(shape, strides)
    return Guarded(whole, view)


class Guard(DispatchMode):
    """Places every allocation that is made inside the `with` between canaries; `memory` lists them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory: list[Guarded] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in EMPTY:
            return self._place(func, args, kwargs)
        if func.overloadpacket is _aten.set_:  # it takes other memory, as torch does for the weights of cuDNN's layers
            self.memory = [made for made in self.memory if made.view is not args[0]]
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


class TooLarge(Exception):
    """torch itself was asked to compute on a tensor that has no memory."""


def virtual(shape: Sequence[int], strides: Strides, dtype: torch.dtype) -> torch.Tensor:
    """Zeros on the CPU that take no room until they are written."""
    size = max(extent(shape, strides), 1) * dtype.itemsize + 64
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    raw = torch.frombuffer(memory, dtype=torch.uint8)
    return raw[: size // 16 * 16].view(dtype).as_strided(shape, strides)


class Virtual(DispatchMode):
    """New tensors on the CPU are virtual zeros; what would touch all of a large one, at once or bit by bit, raises.

    The exception is `TooLarge`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.touched = 0  # elements

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in EMPTY or func in ZEROS:
            shape_only = {k: v for k, v in kwargs.items() if k != "pin_memory"} | {"device": torch.device("meta")}
            meta = func(*args, **shape_only)
            return meta if _wants_meta(kwargs) else virtual(meta.shape, meta.stride(), meta.dtype)
        largest = max((a.numel() for a in args if isinstance(a, torch.Tensor)), default=0)
        if func is not _aten.is_pinned.default and not is_view(func):
            self.touched += max(largest, LEAST)
            if self.touched > LARGE:
                raise TooLarge(f"torch computes {func} on {largest} elements, and on {self.touched} in all")
        elif func in PIECES and largest > LARGE:
            raise TooLarge(f"torch cuts {largest} elements into pieces")
        return func(*args, **kwargs)


def _wants_meta(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "meta"


def is_view(func: Any) -> bool:
    """Whether an operation only looks at the memory of its argument in another way."""
    returned = [r.alias_info for r in func._schema.returns]
    return bool(returned) and all(info is not None and not info.is_write for info in returned)
