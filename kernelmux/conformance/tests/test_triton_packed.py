"""What the driver gets for a kernel of Triton whose arguments are packed is what Triton's own launcher passes.

The kernels are compiled and not run: the emulator's launcher says what it would pass, a stand-in for libcuda what it got.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import kernelmux as kx
from kernelmux.backends.triton._launch import packed
from kernelmux.backends.triton._launch.launch import Launch
from kernelmux.emulator import TensorMap, triton_driver
from kernelmux.registry.tests.fake_cuda import FakeCuda
from kernelmux.registry.util import cuda_driver

pytestmark = pytest.mark.filterwarnings("ignore")
SWIZZLES = (0, 32, 64, 128)
STREAM = 7


class Seen:
    """The launches of calls: by Triton's launcher, and by the driver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cuda = FakeCuda()
        self.direct = 0
        self.grid: tuple[int, ...] = ()
        self.values: list[Any] = []
        monkeypatch.setattr(cuda_driver, "driver", lambda: self.cuda)
        monkeypatch.setattr(packed, "launch_kernel_ex", lambda: self.cuda.cuLaunchKernelEx)
        monkeypatch.setattr(packed, "argument_bytes", lambda handle: self.cuda.sizes)
        monkeypatch.setattr(triton_driver.Launcher, "_run", lambda *args: self._by_triton(*args))
        monkeypatch.setattr(Launch, "__call__", lambda *args, **more: self._call(*args, **more))

    def _by_triton(self, launcher: Any, kernel: Any, grid: tuple[int, ...], values: list[Any], names: Any) -> None:
        self.grid, self.values = (*grid, 32 * launcher.metadata.num_warps, 1, 1, launcher.metadata.shared), values
        self.cuda.sizes = [p.size for p in kernel.parameters]

    def _call(self, launch: Launch, *tensors: torch.Tensor, numbers: tuple[float, ...] = ()) -> None:
        """As on a GPU, with both launchers; twice, since what was packed is used again."""
        start = launch._start(launch._compile(tensors, numbers), len(tensors), len(numbers))
        if start.whole:
            return
        for _ in range(2):
            given = [x.data_ptr() if of is None else of(x.data_ptr()) for of, x in zip(start.of, tensors, strict=True)]
            start.launch(STREAM, *given, *numbers)
            self.direct += 1
            sizes, stream, arguments = self.cuda.launches.pop()
            assert (sizes, stream) == (self.grid, STREAM)
            expected = [self._bytes(value) for value in self.values]
            assert [self._read(x) for x in arguments] == expected

    def _read(self, argument: bytes) -> Any:
        return self.cuda.described(argument) if len(argument) == cuda_driver.MAP_BYTES else argument

    def _bytes(self, value: Any) -> Any:
        if isinstance(value, TensorMap):
            pitches = tuple(stride * value.size for stride in value.strides[:-1])
            return value.pointer, tuple(value.shape), pitches, value.box, SWIZZLES.index(value.swizzle)
        if isinstance(value, np.generic):
            return value.tobytes()
        return struct.pack("Q", 0 if value is None else value.data_ptr())


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    yield Seen(monkeypatch)


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def heads(rows: int) -> torch.Tensor:
    return tensor(1, 2, rows, 128)


CALLS: dict[str, Callable[[], Any]] = {
    "add": lambda: kx.add(tensor(3, 5), tensor(3, 5), backend="triton"),
    "polynomial": lambda: kx.polynomial(tensor(40), 0.5, 0.25, 2.0, 1.0, backend="triton"),
    "softmax": lambda: kx.softmax(tensor(4, 100), backend="triton"),
    "rms_norm": lambda: kx.rms_norm(tensor(4, 64), tensor(64), backend="triton"),
    "reduce_sum": lambda: kx.reduce_sum(tensor(300, 20), backend="triton"),
    "matmul": lambda: kx.matmul(tensor(64, 32), tensor(32, 48), backend="triton"),
    "matmul, columns contiguous": lambda: kx.matmul(tensor(64, 32), tensor(48, 32).T, backend="triton/specialised"),
    "matmul, persistent": lambda: kx.matmul(tensor(64, 32), tensor(32, 48), backend="triton/persistent"),
    "linear": lambda: kx.linear(tensor(64, 32), tensor(48, 32), tensor(48), backend="triton"),
    "attention": lambda: kx.attention(heads(64), heads(64), heads(64), backend="triton/descriptors"),
    "attention, specialised": lambda: kx.attention(heads(256), heads(256), heads(256), backend="triton/specialised"),
    "attention, few queries": lambda: kx.attention(heads(1), heads(300), heads(300), backend="triton/split_keys"),
    "conv2d": lambda: kx.conv2d(tensor(1, 64, 8, 8), tensor(64, 64, 3, 3), backend="triton"),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_driver_gets_what_tritons_launcher_passes(seen: Seen, name: str) -> None:
    CALLS[name]()
    assert seen.direct
