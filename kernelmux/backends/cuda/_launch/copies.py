"""Copies of strided host elements to a dense device vector, through CuPy's runtime API; on CPU tensors, checked moves.

`dst` [M] is dense, `src` [M] strided host memory (pinned when `dst` is on a device). All run on torch's current stream.
"""

import ctypes
from functools import cache

import numpy as np
import torch

from kernelmux.backends.cuda._launch.launch_cuda import current_stream
from kernelmux.registry.util.cuda_driver import driver

_HOST_TO_DEVICE = 1  # cudaMemcpyKind
_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM


def copy_each(dst: torch.Tensor, src: torch.Tensor) -> None:
    """One asynchronous copy per element."""
    if not dst.is_cuda:
        return _move(dst, src)
    from cupy.cuda import runtime

    size, stream = dst.element_size(), current_stream(dst.get_device())
    with torch.cuda.device(dst.device):
        for to, of in zip(*(x.tolist() for x in _addresses(dst, src)), strict=True):
            runtime.memcpyAsync(to, of, size, _HOST_TO_DEVICE, stream)


def copy_strided(dst: torch.Tensor, src: torch.Tensor) -> None:
    """One two-dimensional copy: M rows of one element."""
    if not dst.is_cuda:
        return _move(dst, src)
    if not dst.numel():
        return None
    from cupy.cuda import runtime

    size, pitch = dst.element_size(), src.stride(0) * src.element_size()
    if pitch < size and dst.numel() > 1:  # an expanded matrix: the engine wants rows that do not overlap
        return copy_each(dst, src)
    with torch.cuda.device(dst.device):
        stream = current_stream(dst.get_device())
        place = (dst.data_ptr(), size, src.data_ptr(), max(pitch, size))
        runtime.memcpy2DAsync(*place, size, dst.numel(), _HOST_TO_DEVICE, stream)


def copy_batched(dst: torch.Tensor, src: torch.Tensor) -> None:
    """All element copies in one call of cuMemcpyBatchAsync (CUDA 12.8), which CuPy does not wrap.

    The driver refuses the legacy default stream, so there the batch runs on a side stream that joins it again.
    """
    if not dst.is_cuda:
        return _move(dst, src)
    if not dst.numel():
        return None
    with torch.cuda.device(dst.device):
        current = torch.cuda.current_stream()
        if current.cuda_stream:
            return _batch(dst, src, current.cuda_stream)
        side = torch.cuda.Stream()
        side.wait_stream(current)
        _batch(dst, src, side.cuda_stream)
        current.wait_stream(side)


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):  # CUmemcpyAttributes
    _fields_ = (
        ("source_order", ctypes.c_int), ("source", _Location), ("destination", _Location), ("flags", ctypes.c_uint),
    )  # fmt: skip


def _batch(dst: torch.Tensor, src: torch.Tensor, stream: int) -> None:
    to, of = _addresses(dst, src)
    sizes = np.full(len(to), dst.element_size(), np.uint64)
    attributes, first = _Attributes(source_order=_STREAM_ORDER), ctypes.c_size_t(0)
    arrays = [ctypes.c_void_p(x.ctypes.data) for x in (to, of, sizes)]
    shared = (ctypes.c_size_t(len(to)), ctypes.byref(attributes), ctypes.byref(first), ctypes.c_size_t(1))
    name, failed = _batch_entry()
    status = getattr(driver(), name)(*arrays, *shared, *failed, ctypes.c_void_p(stream))
    if status:
        raise RuntimeError(f"{name}: CUDA driver error {status} for {len(to)} copies of {dst.element_size()} bytes")


@cache
def _batch_entry() -> tuple[str, tuple[object, ...]]:
    """The driver's entry: CUDA 13 dropped the argument that told which copy failed."""
    if hasattr(driver(), "cuMemcpyBatchAsync_v2"):
        return "cuMemcpyBatchAsync_v2", ()
    return "cuMemcpyBatchAsync", (None,)


def _addresses(dst: torch.Tensor, src: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Destination and source address of every element."""
    index, size = np.arange(dst.numel(), dtype=np.int64), dst.element_size()
    return dst.data_ptr() + index * size, src.data_ptr() + index * (src.stride(0) * size)


def _move(dst: torch.Tensor, src: torch.Tensor) -> None:
    """The same copies between host tensors; IndexError names a copy that would leave its memory."""
    size = dst.element_size()
    ends = [(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) for x in (dst, src)]
    for to, of in zip(*(x.tolist() for x in _addresses(dst, src)), strict=True):
        for address, (start, length) in zip((to, of), ends, strict=True):
            if not start <= address <= start + length - size:
                raise IndexError(f"copy of {size} bytes at offset {address - start} of {length} bytes")
        ctypes.memmove(to, of, size)
