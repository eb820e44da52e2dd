"""docs/profiling.md: its Python runs, its commands print what it shows, thresholds and examples are those in force."""

from __future__ import annotations

import doctest
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelmux.emulator import nvrtc
from kernelmux.perf.profile import cli as profile
from kernelmux.perf.rows import thresholds
from kernelmux.perf.tests import planted
from kernelmux.registry.cli import main
from kernelmux.registry.errors import KernelFailure
from kernelmux.registry.observe import gpu_failures

PAGE = Path(__file__).parents[3] / "docs/profiling.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def only(kind: str) -> str:
    return "".join(text for found, text in BLOCKS if found == kind)


def shows(block: str, printed: str) -> None:
    """Every line of a block is printed, in its order; ... stands for the rest of a line."""
    lines = iter(line.rstrip() for line in printed.splitlines())
    for line in block.splitlines():
        start, dots, _ = line.partition(" ...")
        assert any(found == line or (dots and found.startswith(start)) for found in lines), line


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert {kind for kind, _ in BLOCKS} == {"console", "pycon", "text"}


def test_python_gives_what_the_page_shows() -> None:
    session = doctest.DocTestParser().get_doctest(only("pycon"), {}, PAGE.name, str(PAGE), 0)
    told: list[str] = []
    assert doctest.DocTestRunner().run(session, out=told.append).failed == 0, "".join(told)


COMMANDS = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", only("console"), re.MULTILINE)


@pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))
@pytest.mark.skipif(torch.cuda.is_available(), reason="what it shows is said of a machine without a GPU")
@pytest.mark.filterwarnings("ignore:backend .* runs its GPU kernels on the emulator")
@pytest.mark.parametrize(("line", "shown"), COMMANDS, ids=lambda text: text[:60])
def test_a_command_prints_what_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any, line: str, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.json").write_text(json.dumps(planted.everything().content))
    words = shlex.split(line)
    run = main.main(words[1:]) if words[0] == "kernelmux" else profile.main(words[3:])
    assert run == 0
    shows(shown, capsys.readouterr().out)


def test_the_commands_at_the_top_are_understood() -> None:
    lines = re.findall(r"^    nox -s profile -- (.*?)(?:  +#.*)?$", TEXT, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        profile.parser().parse_args(shlex.split(line))


def test_what_was_planted_on_a_gpu_was_named() -> None:
    """The table of the page, the record of that run, and what `test_profile_gpu` looks for."""
    found = json.loads(
        (PAGE.parents[1] / "kernelmux/records/nvidia_h200/trials/profile_planted.json").read_text(encoding="utf-8")
    )
    rows = re.findall(r"^\| [^|]*\| (?:timeline|ncu) \| (.*) \|$", TEXT, re.MULTILINE)
    for planted_thing, row in zip(("idle gap", "uncoalesced store", "spill"), rows, strict=True):
        begin, _, end = row.partition(" ...")
        assert any(said.startswith(begin) and end in said for said in found[planted_thing]["said"]), row
    assert not any(name in said for said in found["nothing planted"]["said"] for name in ("uncoalesced", "spilled"))
    assert found["illegal address"]["error"][2].strip().startswith("launch: square_beyond grid")


def test_the_thresholds_are_those_in_force() -> None:
    rows = re.findall(r"^\| .* \| ([\d.]+)(%?) \| ([\d.]+)%? \|$", TEXT, re.MULTILINE)
    shown = [tuple(float(n) / (100 if percent else 1) for n in (good, poor)) for good, percent, poor in rows]
    names = ("BANDWIDTH", "COMPUTE", "LAST_WAVE", "OCCUPANCY", "USED", "CONFLICTS", "TRAFFIC", "SPILLED")
    assert shown == [tuple(getattr(thresholds, name)) for name in names]
    assert f"for {thresholds.IDLE_US:.0f} us or more" in TEXT and f"less than {thresholds.TINY_US:.0f} us" in TEXT


def test_the_failure_is_worded_as_the_page_shows() -> None:
    with FakeTensorMode():
        x = torch.empty(64, 1000, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(KernelFailure) as raised:
        gpu_failures.tell(
            RuntimeError("CUDA error: an illegal memory access was encountered\nmore"),
            gpu_failures.Ran("softmax", "cuda/online", "auto"),
            (x, -1, 1.0),
        )
    shows(only("text"), str(raised.value))
