"""What broken and sound kernels keep between calls."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch


def capturing(x: torch.Tensor) -> bool:
    """Whether a CUDA graph is being captured, in which nothing may be remembered."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


class BufferRing:
    """Buffers that results are written to in turn, a set for each shape."""

    def __init__(self, count: int) -> None:
        self.count, self.buffers, self.turn = count, {}, 0  # type: ignore[var-annotated]

    def next(self, like: torch.Tensor) -> torch.Tensor:
        key = (like.shape, like.dtype, like.device)
        ring = self.buffers.setdefault(key, [torch.empty_like(like) for _ in range(self.count)])
        self.turn += 1
        buffer: torch.Tensor = ring[self.turn % self.count]
        return buffer


class Pool:
    """One buffer per shape, lent again once the tensor that was lent is gone, even if views of it are left."""

    def __init__(self) -> None:
        self.lent: dict[object, tuple[weakref.ref[torch.Tensor], torch.UntypedStorage]] = {}

    def next(self, like: torch.Tensor) -> torch.Tensor:
        key = (like.shape, like.dtype, like.device)
        made = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        if key in self.lent and self.lent[key][0]() is None:
            made = torch.empty(0, dtype=like.dtype, device=like.device).set_(
                self.lent[key][1], 0, made.shape, made.stride()
            )
        self.lent[key] = weakref.ref(made), made.untyped_storage()
        return made


class Workspace:
    """One scratch tensor for each thread and stream; sound, as its contents are made anew in every call."""

    def __init__(self) -> None:
        self.local = threading.local()

    def zeros(self, count: int, device: torch.device) -> torch.Tensor:
        stream = f"stream {torch.cuda.current_stream(device).cuda_stream}" if device.type == "cuda" else "host"
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return torch.zeros(count, device=device, dtype=torch.float32)
        scratch = self.local.__dict__.get(stream)
        if scratch is None or len(scratch) < count or scratch.device != device:
            scratch = self.local.__dict__[stream] = torch.empty(count, device=device, dtype=torch.float32)
        return scratch[:count].zero_()


class DerivedTensor:
    """What was made of a tensor, as long as it is the same object at the same version.

    What changes it through numpy, `.data` or another kernel counts no version.
    watchful: a graph that is being captured packs for itself.
    """

    def __init__(self, pack: Callable[[torch.Tensor], torch.Tensor], watchful: bool = True) -> None:
        self.pack, self.watchful, self.kept = pack, watchful, {}  # type: ignore[var-annotated]

    def of(self, x: torch.Tensor) -> Any:
        if self.watchful and capturing(x):
            return self.pack(x)
        for key in [key for key, (ref, _, _) in list(self.kept.items()) if ref() is None]:
            self.kept.pop(key, None)
        ref, version, packed = self.kept.get(id(x), (lambda: None, -1, None))
        if ref() is not x or version != x._version:
            packed = self.pack(x)
            if x.is_cuda and not capturing(x):
                torch.cuda.current_stream(x.device).synchronize()  # other streams will read it
            self.kept[id(x)] = weakref.ref(x), x._version, packed
        return packed
