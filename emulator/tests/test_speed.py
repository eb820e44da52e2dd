"""The speed command: alone, against another implementation, and when a result is wrong; the record and its table."""

import json
from pathlib import Path

import pytest

from kernelmux.emulator.tests.launching import needs_nvrtc
from kernelmux.emulator.validation.speed import cases, cli, report

CASES = """
import numpy as np

def doubled(run):
    x, y = np.arange(40, dtype=np.float32), np.empty(40, np.float32)
    run("tiny", "doubled", (2,), (32,), (x, y, np.int32(40)), out=(1,))
    return y, 2 * x, 0

def counted(run):
    total = np.zeros(1, np.int32)
    run("tiny", "counted", (1,), (32,), (total,), shared_mem=128)
    return total, np.full(1, 32), 0

cases = {case.__name__: case for case in (doubled, counted)}
"""
KERNELS = """
extern "C" __global__ void doubled(const float* x, float* y, int n) {
  int i = blockIdx.x * 32 + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
extern "C" __global__ void counted(int* total) { atomicAdd(total, 1); }
"""
OTHER = '''
class RawKernel:
    """Computes the results of the two kernels with numpy."""

    def __init__(self, code, name, options=(), mode="fast", arch=""):
        assert name in code and mode in ("fast", "full") and arch.startswith("compute_")
        self.name = name

    def __call__(self, grid, block, args, *, shared_mem=0, out=()):
        if self.name == "doubled":
            args[1][:] = 2 * args[0]
        else:
            args[0][:] += 32
'''
TIMES = ("doubled", "counted"), ("fast", "full"), ("theirs", "ours")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Another implementation, with cases of its own."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "cases.py").write_text(CASES)
    (tmp_path / "ptxemu.py").write_text(OTHER)
    (tmp_path / "kernels" / "tiny.cu").write_text(KERNELS)
    return tmp_path


@needs_nvrtc
def test_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "speed.json"
    assert cli.main(("--against", str(folder), "--repeat", "2", "--json", str(out))) == cli.OK
    found = json.loads(out.read_text())
    assert {(x["case"], x["mode"], x["implementation"]) for x in found["times"]} == {
        (case, mode, side) for case in TIMES[0] for mode in TIMES[1] for side in TIMES[2]
    }
    assert all(0 < x["best"] <= x["median"] for x in found["times"])
    assert str(folder) not in found["command"] and found["machine"]["cpu"]
    shown = capsys.readouterr().out
    assert "doubled" in shown and "ratio" in shown and "total" in shown


@needs_nvrtc
def test_a_wrong_result_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ptxemu.py").write_text(OTHER.replace("2 * args[0]", "3 * args[0]").replace("+= 32", "+= None"))
    assert cli.main(("--against", str(folder), "--repeat", "1")) == cli.WRONG
    shown = capsys.readouterr().out
    assert "theirs, doubled, fast: off by 39, 0 is allowed" in shown
    assert "theirs, counted, full: " in shown and "ours, doubled" not in shown


@needs_nvrtc
@pytest.mark.parametrize("name", cases.cases)
def test_our_own_cases(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(("--only", name, "--repeat", "1")) == cli.OK
    shown = capsys.readouterr().out
    assert name in shown and "ratio" not in shown


@pytest.mark.parametrize("arguments", [("--only", "nothing"), ("--repeat", "0"), ("--against", "nowhere")])
def test_usage_errors(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == cli.USAGE
    assert capsys.readouterr().err.startswith("speed: ")


def test_the_record_is_of_a_whole_comparison() -> None:
    figures = report.Figures(json.loads(report.RECORD.read_text()))
    assert figures.compared and len(figures.cases) >= 19 and set(figures.modes) == {"fast", "full"}
    assert figures.ratio(report.TOTAL, "full") >= 3
