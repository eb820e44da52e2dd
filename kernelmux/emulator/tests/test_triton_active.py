"""The emulator as Triton's driver for as long as it is asked for: nesting, threads, kernels of others."""

import gc
import sys
import threading

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from kernelmux import emulator
from kernelmux.emulator.compilers import triton_driver, triton_stages

driver = triton.runtime.driver

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton has a driver of its own here")


@pytest.fixture(autouse=True)
def nothing_active(monkeypatch):
    """No driver chosen before, nor after."""
    monkeypatch.setattr(driver, "_active", None)
    monkeypatch.setattr(triton_driver, "_before", None)
    triton_stages.go_on()


@triton.jit
def seven_kernel(out_ptr):
    tl.store(out_ptr, 7)


def launch():
    out = torch.zeros(1, dtype=torch.int32)
    seven_kernel[(1,)](out)
    return out.item()


def test_it_is_active_inside_and_what_was_before_afterwards():
    with emulator.triton_active():
        assert launch() == 7
        with emulator.triton_active():
            assert launch() == 7
        assert launch() == 7
    assert driver._active is None


def test_the_compiler_stops_at_ptx_inside_alone():
    with emulator.triton_active():
        assert (triton.knobs.runtime.add_stages_inspection_hook is not None) == triton_stages.KEYED
    assert triton.knobs.runtime.add_stages_inspection_hook is None


def test_another_driver_is_given_back():
    other = object()
    driver._active = other
    with pytest.raises(KeyError), emulator.triton_active():
        raise KeyError
    assert driver._active is other


@needs_no_gpu
def test_a_kernel_launched_afterwards_gets_the_error_of_triton():
    with emulator.triton_active():
        launch()
    with pytest.raises(RuntimeError, match="0 active drivers"):
        launch()


def test_activation_for_good_stays():
    triton_driver.activate()
    with emulator.triton_active():
        pass
    assert launch() == 7
    driver._active = None
    with emulator.triton_active():
        triton_driver.activate()
    assert launch() == 7


def test_two_threads_inside_at_once_and_the_last_one_gives_back():
    inside, leave, results = threading.Barrier(2), threading.Barrier(2), []

    def work(late):
        with emulator.triton_active():
            inside.wait(60)
            if late:
                leave.wait(60)  # the other has left
            results.append(launch())
        if not late:
            leave.wait(60)

    threads = [threading.Thread(target=work, args=(late,)) for late in (False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [7, 7] and driver._active is None


@needs_no_gpu
def test_a_thread_that_is_not_inside_gets_the_error_of_triton():
    caught = []

    def foreign():
        try:
            launch()
        except RuntimeError as error:
            caught.append(str(error))

    with emulator.triton_active():
        launch()
        thread = threading.Thread(target=foreign)
        thread.start()
        thread.join()
        assert launch() == 7
    assert len(caught) == 1 and "0 active drivers" in caught[0]


def test_a_compiled_kernel_can_be_collected_afterwards(monkeypatch):
    """Triton asks the active driver to unload the modules of a kernel that is deleted; by then no driver is active."""
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    kernel = triton.JITFunction(seven_kernel.fn)
    with emulator.triton_active():
        kernel[(1,)](torch.zeros(1, dtype=torch.int32))
    del kernel
    gc.collect()
    assert not lost
