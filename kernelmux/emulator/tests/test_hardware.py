"""The comparison with a GPU: the recorded bits of an H200, and the tools that compare."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelmux.emulator.validation.hardware import cli, comparing, record
from kernelmux.emulator.validation.hardware.catalogue import cases
from kernelmux.emulator.validation.hardware.launching import emulate
from kernelmux.emulator.validation.hardware.matrices import draw
from kernelmux.emulator.validation.hardware.values import KINDS, operands

ADD = next(case for case in cases() if case.name == "add.rn.f32")


def test_the_bits_of_the_gpu_are_still_given() -> None:
    """Every case that was equal when the record was made, run again: thousands of results each."""
    assert list(record.lost(record.read())) == []


def test_a_lost_bit_is_noticed() -> None:
    known = record.read()
    wrong = replace(known, gpu={ADD.name: "0" * 12}, differences={})
    assert list(record.lost(wrong)) == ["add.rn.f32: other bits than the GPU's"]
    gone = replace(known, gpu={"frobnicate.b32": "0" * 12}, differences={})
    assert list(record.lost(gone)) == ["frobnicate.b32: not in the catalogue any more"]


def test_nothing_differed() -> None:
    """What docs/emulator.md says of the record."""
    assert not record.read().differences


def test_every_case_is_in_the_record() -> None:
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)
    assert set(names) == set(record.read().gpu)


def test_operands_are_the_same_everywhere() -> None:
    """Drawn from the raw bits of a generator, so that no version of numpy changes them."""
    a, b = operands("some name", ["f32", "s16"], 64)
    assert [hex(x) for x in a[-3:]] == ["0xbf3593b7", "0xc3ee4618", "0x439202f0"]
    assert [hex(x) for x in b[-3:]] == ["0x18fb", "0x5c71", "0x2761"]


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_special_values_come_in_every_combination(kind: str) -> None:
    a, b = operands("pairs", [kind, kind], 4096)
    special = KINDS[kind].special
    assert {(int(x), int(y)) for x, y in zip(a, b, strict=True)} >= {(x, y) for x in special for y in special}


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "e4m3", "e5m2", "f32"])
def test_extreme_elements_are_finite(kind: str) -> None:
    from kernelmux.emulator.arithmetic.matrix_elements import STORAGE, to_float

    values = to_float(draw("x", 4096, kind, "extreme").view(STORAGE[kind]), kind)
    assert np.isfinite(values).all()
    assert np.log2(np.abs(values[values != 0])).std() > 3  # of all sizes


def test_distances() -> None:
    """In units of the last place, across zero; NaN are all alike; NaN against a number has no distance."""
    one = np.array([1.0, 0.0, np.nan, 2.0], np.float32)
    other = np.array([np.nextafter(np.float32(1), np.float32(2)), -0.0, -np.nan, 2.0], np.float32)
    assert comparing.of_kind("f32", one, other) == comparing.Difference(4, 2, 1, 2.0**-23)
    assert comparing.of_kind("f32", one, one[::-1].copy()) == comparing.Difference(4, 4, None, 1.0)
    halves = np.array([0x3C003C01], np.uint32), np.array([0x3C003C03], np.uint32)
    assert comparing.of_kind("f16x2", *halves) == comparing.Difference(2, 1, 2, 2.0**-9)
    brains = np.array([0x3F803F81], np.uint32), np.array([0x3F803F83], np.uint32)
    assert comparing.of_kind("bf16x2", *brains) == comparing.Difference(2, 1, 2, 2.0**-6)
    assert comparing.of_kind("s32", np.array([1, 2], np.int32), np.array([1, 3], np.int32)) == comparing.Difference(
        2, 1, None
    )


def _file(folder: Path, change: int) -> Path:
    """Results as a GPU would have written them, one of them `change` steps from the emulator's."""
    (bits,) = emulate(ADD)
    moved = bits.copy()
    at = int(np.flatnonzero((bits & 0x7FFFFFFF) < 0x7F000000)[0])
    moved[at] += change
    about = {"gpu": "some GPU", "driver": "1.2", "command": "this test"}
    file = folder / "bits.npz"
    np.savez(file, about=np.array(json.dumps(about)), **{f"{ADD.name} | 0": moved})  # type: ignore[arg-type]
    return file


def test_comparing_and_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "record.json"
    assert cli.main(["--compare", str(_file(tmp_path, 0)), "--record", str(target)]) == cli.OK
    assert "some GPU" in capsys.readouterr().out
    known = record.read(target)
    assert not known.differences and list(record.lost(known)) == []
    assert cli.main(["--compare", str(_file(tmp_path, 3))]) == cli.FAILED
    assert "3 ulp" in capsys.readouterr().out


def test_a_missing_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--compare", str(tmp_path / "none.npz")]) == cli.USAGE
    assert "none.npz" in capsys.readouterr().err
