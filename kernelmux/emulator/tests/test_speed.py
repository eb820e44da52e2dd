"""The speed command: its cases, and a wrong result."""

import re

import pytest

from kernelmux.emulator.tests.launching import needs_nvrtc
from kernelmux.emulator.validation.speed import cases, cli


@needs_nvrtc
@pytest.mark.parametrize("name", cases.cases)
def test_a_case_is_right_in_every_mode(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(("--only", name, "--repeat", "1")) == cli.OK
    assert re.search(rf"{name}\s+│\s+[\d,]+\.\d\s+│\s+[\d,]+\.\d", capsys.readouterr().out)


@needs_nvrtc
def test_a_wrong_result_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def off(run):
        got, want, tolerance = cases.add(run)
        return got, want + 39, tolerance

    monkeypatch.setitem(cases.cases, "off", off)
    assert cli.main(("--only", "off", "--repeat", "1")) == cli.WRONG
    assert "off, full: off by 39, 0 is allowed" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("--only", "nothing"), ("--repeat", "0")])
def test_usage_errors(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == cli.USAGE
    assert capsys.readouterr().err.startswith("speed: ")
