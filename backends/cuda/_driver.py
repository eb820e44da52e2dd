"""The CUDA driver, for what neither torch nor CuPy wraps."""

import ctypes
from functools import cache


@cache
def driver() -> ctypes.CDLL:
    """The library; OSError on a machine without one."""
    return ctypes.CDLL("libcuda.so.1")
