"""A launch that fails while a call is replayed: its grid and block are told, though only the prepared launch knows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kernelmux.backends.cuda._launch.launch_cuda import CudaFunction
from kernelmux.backends.cuda._launch.signature import parse
from kernelmux.registry.observe import gpu_failures
from kernelmux.registry.util.cuda_driver import Configurations

TEXT = "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"


class CUDADriverError(RuntimeError):
    """As CuPy has it."""


def refused(*arguments: Any) -> None:
    raise CUDADriverError(TEXT)


def told(launch: Any) -> str:
    with pytest.raises(CUDADriverError) as raised:
        launch(0, 4096)
    return gpu_failures._launch(raised.value)


def test_of_cuda() -> None:
    function: Any = object.__new__(CudaFunction)
    function._frames, function._parameters, function._launch, function._handle = [], parse("x* n:i64"), refused, 0
    launch = function.prepared((7, 2, 1), (128, 1, 1), 512, (5,))
    assert told(launch) == "grid (7, 2, 1), block (128, 1, 1), 512 bytes of dynamic shared memory"


def test_of_triton() -> None:
    triton = pytest.importorskip("kernelmux.backends.triton._launch.packed", exc_type=ImportError)
    launch = triton._launcher(0, Configurations((7, 2, 1, 256, 1, 1, 512), False), ["Q"], {}, refused)
    assert told(launch) == "grid (7, 2, 1), block (256, 1, 1), 512 bytes of dynamic shared memory"


def test_by_tritons_own_launcher() -> None:
    triton = pytest.importorskip("kernelmux.backends.triton._launch.launch", exc_type=ImportError)
    compiled = SimpleNamespace(run=refused, function=0, packed_metadata=(8, 1, 0))
    assert told(triton.Launch(None, (7, 2), num_warps=8)._by_triton(compiled, 1, ())) == "grid (7, 2, 1), 8 warps"
