"""What goes to the CUDA driver: arguments in their places, tensor maps by address, and what it says of an error."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from kernelmux.registry.call import launch_replay
from kernelmux.registry.tests.fake_cuda import FakeCuda
from kernelmux.registry.util import cuda_driver
from kernelmux.registry.util.cuda_driver import Configurations, Frame, TensorMaps, Tiled

TILED = Tiled(9, (64, 32), (64,), (16, 32), 2, cuda_driver.PROMOTION_128B)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    found = FakeCuda()
    monkeypatch.setattr(cuda_driver, "driver", lambda: found)
    return found


def test_arguments_that_stay_and_those_of_a_launch_come_in_the_kernels_order(cuda: FakeCuda) -> None:
    frame = Frame(["Q", "i", "128s", "f", "Q"], {1: -5, 3: 0.5})
    cuda.sizes = [8, 4, 128, 4, 8]
    configurations = Configurations((1, 2, 3, 128, 1, 1, 1024), False)
    for address in (4096, 8192):
        frame.fill((address, bytes(range(128)), 2**63))
        assert cuda.cuLaunchKernelEx(configurations[address], 0, frame.pointers, None) == 0
        sizes, stream, values = cuda.launches[-1]
        assert (sizes, stream) == ((1, 2, 3, 128, 1, 1, 1024), address)
        assert [*struct.unpack("<Qi", values[0] + values[1]), *struct.unpack("<fQ", values[3] + values[4])] == [
            address,
            -5,
            0.5,
            2**63,
        ]
        assert values[2] == bytes(range(128))
    assert cuda.follows == [False, False] and len(configurations) == 2


def test_a_launch_that_follows_says_so(cuda: FakeCuda) -> None:
    frame, configurations = Frame([], {}), Configurations((1,) * 7, True)
    cuda.cuLaunchKernelEx(configurations[0], 0, frame.pointers, None)
    config = cuda_driver._LaunchConfig.from_address(configurations[0])
    assert cuda.follows == [True] and config.attributes[0].id == 6 and config.attributes[0].value[0] == 1


def test_a_number_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(struct.error):
        Frame(["i"], {}).fill((2**40,))


def test_a_map_is_encoded_once_and_then_looked_up_by_address(cuda: FakeCuda) -> None:
    maps = TensorMaps(TILED)
    found = {address: maps[address] for address in (4096, 8192, 4096, 512, 8192)}
    assert len(cuda.encoded) == 1 and cuda.replaced == 2
    for address, value in found.items():
        assert len(value) == 128 and cuda.described(value) == (address, (64, 32), (64,), (16, 32), 2)


def test_as_many_maps_are_kept_as_a_model_needs(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_MOST_KNOWN", 3)
    maps = TensorMaps(TILED)
    for address in range(4096, 4096 + 16 * 10, 16):
        assert cuda.described(maps[address])[0] == address and len(maps) <= 3
    assert len(cuda.encoded) == 1


def test_what_the_driver_refuses_is_no_map(cuda: FakeCuda) -> None:
    maps = TensorMaps(TILED)
    cuda.status = 1
    with pytest.raises(
        ValueError, match=r"CUDA error: 1: a tensor map at 0x1000, Tiled\(data_type=9, shape=\(64, 32\)"
    ):
        maps[4096]
    cuda.status = 0
    assert cuda.described(maps[4096])[0] == 4096


def test_a_thread_without_a_context_is_told_from_other_errors(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(launch_replay.torch.cuda, "mem_get_info", woken.append)
    launch_replay.wake(cuda_driver.refused(201), 2)
    with pytest.raises(RuntimeError, match="CUDA error: 1"):
        launch_replay.wake(cuda_driver.refused(1), 2)
    assert woken == [2]


def test_the_bytes_of_a_kernels_arguments(cuda: FakeCuda) -> None:
    cuda.sizes = [128, 4, 8]
    assert cuda_driver.argument_bytes(1) == [128, 4, 8]


def test_an_old_driver_does_not_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "driver", lambda: ctypes.pythonapi)
    assert cuda_driver.argument_bytes(1) == []


class Versioned:
    """A driver that supports a CUDA of this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def cuDriverGetVersion(self, found: Any) -> int:  # noqa: N802  (the driver's name)
        found._obj.value = self.number
        return 0


@pytest.mark.parametrize(
    ("number", "built_for", "old"),
    [
        (12040, "13.0", True),
        (13000, "13.2", False),
        (13020, "12.8", False),
        (12080, None, False),
        (13000, "14.0", True),
    ],
)
def test_a_driver_is_too_old_if_its_cuda_has_a_lower_major_version(
    number: int, built_for: str | None, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_driver, "driver", lambda: Versioned(number))
    told = cuda_driver.too_old(built_for)
    assert (told is not None) == old
    if told:
        assert f"it supports CUDA {number // 1000}.{number % 1000 // 10}, and" in told and "\n" not in told
        assert (
            f"torch was built for CUDA {built_for}; expected {'version 580' if number < 13000 else 'one for'}" in told
        )


def test_without_a_driver_none_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    def driver() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(cuda_driver, "driver", driver)
    assert cuda_driver.version() is None and cuda_driver.too_old("13.0") is None
