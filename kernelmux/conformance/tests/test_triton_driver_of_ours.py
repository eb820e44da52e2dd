"""Triton's driver without a C compiler: kernels are loaded by the CUDA driver, of which there is a stand-in here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

from kernelmux.backends.triton._launch import prompt_driver
from kernelmux.backends.triton._launch.prompt_driver import CudaLauncher, PromptLauncher, PromptUtilities
from kernelmux.registry.tests.fake_cuda import OPTIN, REGISTERS, SPILLED, STATIC, THREADS, LoadingCuda
from kernelmux.registry.util import cuda_driver


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> LoadingCuda:
    found = LoadingCuda(context=0)
    monkeypatch.setattr(cuda_driver, "driver", lambda: found)
    return found


@pytest.mark.parametrize("shared", [1024, 100000])
def test_a_kernel_is_loaded_with_the_shared_memory_that_it_needs(cuda: LoadingCuda, shared: int) -> None:
    assert PromptUtilities().load_binary("name", b"cubin", shared, 0) == (11, 12, REGISTERS, SPILLED // 4, THREADS)
    more = [("attribute", 12, 8, OPTIN - STATIC)] if shared > 48 << 10 else []
    assert cuda.asked == [("load", b"cubin"), ("function", 11, b"name"), *more] and cuda.context == 77
    PromptUtilities().unload_module(11)
    assert cuda.asked[-1] == ("unload", 11)


def test_a_kernel_that_cannot_be_loaded_is_an_error_in_the_drivers_words(cuda: LoadingCuda) -> None:
    cuda.status = 201
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_CONTEXT"):
        PromptUtilities().load_binary("name", b"cubin", 0, 0)


def test_properties_are_those_of_tritons_own_module(cuda: LoadingCuda) -> None:
    found = PromptUtilities().get_device_properties(0)
    assert found["max_shared_mem"] == OPTIN and found["warpSize"] == 10 and len(found) == 7


def test_tritons_launcher_is_made_by_the_first_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(prompt_driver, "CudaUtils", lambda: made.append("module in C"))
    monkeypatch.setattr(CudaLauncher, "__init__", lambda self, *given: made.append(given))
    monkeypatch.setattr(CudaLauncher, "__call__", lambda self, *given: ("launched", *given))
    launcher = PromptLauncher("source", "metadata")
    assert not made and not hasattr(launcher, "_private")
    assert launcher(1, 2) == launcher(1, 2) == ("launched", 1, 2)
    assert made == ["module in C", ("source", "metadata")] and type(launcher) is CudaLauncher


def test_the_rest_is_tritons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_driver, "CudaUtils", lambda: SimpleNamespace(fill_tma_descriptor="own"))
    assert PromptUtilities().fill_tma_descriptor == "own"


def test_no_driver_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(_active="another", _default=None, set_active=lambda new: pytest.fail("replaced"))
    monkeypatch.setattr(prompt_driver, "driver", there)
    prompt_driver.install()
