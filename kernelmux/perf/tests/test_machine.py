"""What a record says of a GPU, as NVML tells it: of the GPU that torch uses, and nothing where it does not tell."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from kernelmux.perf.cli import main
from kernelmux.perf.rows import machine
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.registry.backend import package_versions

FIRST, SECOND = "11111111-aaaa", "22222222-bbbb"
MHZ = {"handle of GPU-" + FIRST: 345, "handle of GPU-" + SECOND: 1980}


class NVMLError(Exception):
    pass


def library(slices=(), silent=()):
    """A pynvml for two GPUs. slices: UUIDs of MIG instances of the second. silent: functions that only raise."""
    made = ModuleType("pynvml")

    def by_uuid(uuid):
        if uuid in {f"MIG-{name}" for name in slices} | {handle.removeprefix("handle of ") for handle in MHZ}:
            return f"handle of {uuid}"
        raise NVMLError("not found")

    def whole(handle):
        assert handle.startswith("handle of MIG-")
        return f"handle of GPU-{SECOND}"

    told = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.159.04",
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": whole,
        "nvmlDeviceGetClockInfo": lambda handle, kind: MHZ[handle],
        "nvmlDeviceGetPowerManagementLimit": lambda handle: {345: 350_000, 1980: 700_000}[MHZ[handle]],
    }

    def refuse(*_):
        raise NVMLError("not supported")

    vars(made).update(told, NVMLError=NVMLError, NVML_CLOCK_SM=1, **dict.fromkeys(silent, refuse))
    return made


@pytest.fixture
def described(monkeypatch):
    """The description of a GPU with this UUID, number 0 for torch, beside such a library; None: none is installed."""

    def describe(uuid, nvml):
        found = SimpleNamespace(
            name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=1, uuid=uuid
        )
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        made = machine.describe("cuda")
        return made.driver, made.clock, made.power_limit

    return describe


@pytest.mark.parametrize(("uuid", "clock", "power"), [(FIRST, "345 MHz", "350.00 W"), (SECOND, "1980 MHz", "700.00 W")])
def test_the_facts_are_of_the_gpu_that_torch_uses_in_the_form_of_the_records(described, uuid, clock, power):
    assert described(uuid, library()) == ("580.159.04", clock, power)


def test_a_slice_of_a_gpu_has_the_clock_and_the_power_limit_of_the_whole(described):
    assert described("33333333-cccc", library(slices=["33333333-cccc"])) == ("580.159.04", "1980 MHz", "700.00 W")


@pytest.mark.parametrize(
    ("silent", "left"),
    [
        (["nvmlDeviceGetPowerManagementLimit"], ("580.159.04", "345 MHz", "")),
        (["nvmlDeviceGetHandleByUUID"], ("580.159.04", "", "")),
        (["nvmlInit"], ("", "", "")),
    ],
)
def test_what_the_driver_does_not_tell_is_left_out(described, silent, left):
    assert described(FIRST, library(silent=silent)) == left


def test_without_the_library_a_record_has_no_such_facts(described):
    assert described(FIRST, None) == ("", "", "")


def test_a_run_on_a_gpu_says_once_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(package_versions.importlib.util, "find_spec", lambda name: None)
    lack = machine.unknown("cuda")
    assert lack.endswith("will not be recorded: the package pynvml is not installed: pip install nvidia-ml-py")
    assert machine.unknown("cpu") is None
    monkeypatch.setattr(main, "options_of", lambda args, began: PerfOptions(("add",), (), (), (), device="cuda"))
    monkeypatch.setattr(main, "_timed", lambda *_: main.OK)
    assert main.main(["--op", "add"]) == main.OK
    assert capsys.readouterr().out.count(lack) == 1
