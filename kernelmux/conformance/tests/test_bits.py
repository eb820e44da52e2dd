"""The comparison of shipped kernels on a GPU and on the emulator, with the emulator on both sides."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from kernelmux.conformance.bits import cli as bits
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.emulator import nvrtc
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason="NVRTC is not installed")


def few(device: str) -> Iterator[bits.BitsJob]:
    """Two calls of one variant."""
    spec, options = catalog.spec("add"), Options(device="cpu")
    probe = Probe(spec, "bits", "cuda", "scalar", registered.variants("cuda", "add")["scalar"], options)
    trials = (probe.make(case, dtype) for case, dtype in probe.turns())
    yield from islice((bits.BitsJob(probe, t) for t in trials if not t.empty), 2)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bits, "jobs", few)
    assert bits.measure(tmp_path / "bits.npz", "cpu") == 2
    return tmp_path / "bits.npz"


def change(file: Path, steps: int) -> None:
    """Moves one result by some units of the last place."""
    with np.load(file) as content:
        arrays = {name: content[name] for name in content.files}
    name = next(name for name in arrays if name.endswith("| 0"))
    arrays[name] = arrays[name].copy()
    arrays[name][0] += steps
    np.savez(file, **arrays)


def test_jobs_are_the_same_on_both_sides() -> None:
    names = [job.name for job in bits.jobs("cpu")]
    assert len(set(names)) == len(names)
    assert {name.split()[0] for name in names} == set(catalog.names())
    assert all(job.trial.size <= bits.LARGEST for job in islice(bits.jobs("cpu"), 50))


def test_equal(stored: Path, tmp_path: Path) -> None:
    assert bits.main(["--compare", str(stored), "--record", str(tmp_path / "record.json")]) == 0
    (row,) = json.loads((tmp_path / "record.json").read_text())["rows"].values()
    assert row["calls"] == 2 and row["results"] > 0 and not row["differing"]


def test_other_bits_are_counted(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(stored, 1)
    assert bits.main(["--compare", str(stored)]) == 0
    out = capsys.readouterr().out
    assert "add cuda/scalar" in out and "1 ulp" in out


def test_a_wrong_result_fails(stored: Path) -> None:
    """Beyond what two error bounds allow."""
    change(stored, 5000)
    assert bits.main(["--compare", str(stored)]) == 1


def test_the_stored_inputs_are_used(stored: Path) -> None:
    """Another machine may have drawn others: exp() and log() are not the same everywhere."""
    with np.load(stored) as content:
        arrays = {name: content[name] for name in content.files}
    for name in [name for name in arrays if name.endswith(("| x", "| y", "| 0"))]:
        arrays[name] = np.zeros_like(arrays[name])  # 0 + 0 = 0
    np.savez(stored, **arrays)
    assert all(not row["differing"] for row in bits.compare(stored)["rows"].values())


def test_the_record_and_the_document_agree(tmp_path: Path) -> None:
    document = Path(bits.__file__).resolve().parents[3] / "docs" / "emulator.md"
    copy = tmp_path / "emulator.md"
    copy.write_text(document.read_text())
    assert bits.main(["--update", str(copy)]) == 0
    assert copy.read_text() == document.read_text(), (
        "run python -m kernelmux.conformance.bits --update docs/emulator.md"
    )


def test_bad_use_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bits.main(["--compare", str(tmp_path / "none.npz")]) == 2
    (tmp_path / "plain.md").write_text("no markers")
    assert bits.main(["--update", str(tmp_path / "plain.md")]) == 2
    assert "markers" not in capsys.readouterr().out


def test_integers_must_be_equal() -> None:
    """They have no error bound: one wrong bit is too far."""
    job = next(job for job in bits.jobs("cpu") if job.probe.spec.name == "argmax" and job.probe.label == "cuda/split")
    ours = job.run()
    assert [kind for kind, _ in ours] == ["integer"]
    theirs = [values.copy() for _, values in ours]
    assert bits._within_bounds(job, ours, theirs)
    theirs[0].flat[0] += 1
    assert not bits._within_bounds(job, ours, theirs)
