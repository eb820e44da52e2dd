"""The catalogue of planted defects: full mode reports each one, at its line, and no right kernel."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelmux.emulator.errors import KINDS
from kernelmux.emulator.tests.launching import needs_nvrtc
from kernelmux.emulator.validation.defects import catalogue, cli, families
from kernelmux.emulator.validation.defects.model import MARK, Defect
from kernelmux.emulator.validation.defects.running import DefectRunner

DEFECTS = catalogue.defects()
JUDGE = DefectRunner()


@needs_nvrtc
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_defect(defect: Defect) -> None:
    outcome = JUDGE(defect)
    assert outcome.good, f"{outcome.state}: {outcome.text}"


def test_size_and_blind_spots() -> None:
    assert len(DEFECTS) >= 60
    assert len(catalogue.blind_spots()) <= 5
    assert all(spot.blind and not spot.kinds for spot in catalogue.blind_spots())


def test_names_are_unique_and_kinds_exist() -> None:
    names = [defect.name for defect in DEFECTS]
    assert len(set(names)) == len(names)
    assert {kind for defect in DEFECTS for kind in defect.kinds} <= set(KINDS)


def test_marks_name_defects_that_exist() -> None:
    names = {defect.name for defect in DEFECTS}
    folder = Path(families.__file__).parent
    lines = [line for path in sorted(folder.glob("*.cu")) for line in path.read_text().splitlines() if MARK in line]
    marked = {name for line in lines for name in line.partition(MARK)[2].lower().split(", ")}
    assert marked <= names, marked - names


FIRST = DEFECTS[0]


def _run(monkeypatch: pytest.MonkeyPatch, defect: Defect, *arguments: str) -> int:
    monkeypatch.setattr(cli, "defects", lambda: (defect,))
    return cli.main(arguments)


@needs_nvrtc
def test_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "outcomes.json"
    assert _run(monkeypatch, FIRST, "--json", str(file)) == cli.OK
    assert "1 caught, 0 blind, 0 lost" in capsys.readouterr().out
    (record,) = json.loads(file.read_text())
    assert (record["defect"], record["state"], record["line"]) == (FIRST.name, "caught", FIRST.lines[0])


@needs_nvrtc
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kinds": ("trap",)}, "1 lost"),
        ({"name": "no_such_switch"}, "1 lost"),
        ({"kinds": (), "blind": "it was not seen"}, "known blind spots that are reported now"),
    ],
    ids=("another kind", "not noticed", "stale"),
)
def test_what_differs_from_the_catalogue_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    assert _run(monkeypatch, replace(FIRST, **changes)) == cli.FAILED
    assert said in capsys.readouterr().out


@needs_nvrtc
def test_a_false_alarm_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong_expectation() -> Any:
        launch: Any = FIRST.launch()
        return replace(launch, expected={name: values + 1 for name, values in launch.expected.items()})

    assert _run(monkeypatch, replace(FIRST, launch=wrong_expectation)) == cli.FAILED
    assert "1 false alarms" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("--only", "nothing_of_the_kind"), ("--family", "nothing of the kind")])
def test_unknown_selections_are_usage_errors(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert cli.main(arguments) == cli.USAGE
    assert "defects: no defect" in capsys.readouterr().err


def test_list_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(("--list", "--only", FIRST.name)) == cli.OK
    assert FIRST.name in capsys.readouterr().out
