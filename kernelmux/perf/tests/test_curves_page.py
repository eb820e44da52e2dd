"""docs/curves.md: its commands run, or plan what they would run; its pictures are those of the recorded sweeps."""

import doctest
import re
import shlex
from pathlib import Path

import pytest
import torch

from kernelmux.perf.cli import main
from kernelmux.perf.pictures import curves
from kernelmux.perf.sweeps import curve

PAGE = Path(__file__).parents[3] / "docs/curves.md"
TEXT = PAGE.read_text(encoding="utf-8")
WRITTEN, RECORDED = TEXT.split("<!-- sweeps -->")
BLOCKS = re.findall(r"^```console\n(.*?)^```", WRITTEN, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(BLOCKS), re.MULTILINE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what it shows is said of a machine without a GPU")
@pytest.mark.parametrize(
    ("line", "shown"), [c for c in COMMANDS if "--sweep" in c[0].split()], ids=lambda text: text[:60]
)
def test_a_sweep_of_the_page_can_be_planned(line, shown, capsys):
    """With the output that the page shows, where it shows one. Backends for GPUs plan nothing on a CPU."""
    words = [word for word in shlex.split(line)[3:] if word not in ("--plot", "--list")]
    assert main.main([*words, "--list"]) == 0
    told = capsys.readouterr().out
    assert told.count("\n") > 3 and doctest.OutputChecker().check_output(shown or told, told, 0), told


def test_the_page_shows_every_option_of_sweeps():
    others = [line for line, _ in COMMANDS if "--sweep" not in line.split()]
    assert [shlex.split(line)[3] for line in others] == ["--show-sweeps", "--show-sweeps", "--update"]
    assert len(COMMANDS) == len(others) + 5


def test_the_page_has_what_is_on_record_and_pictures_of_some():
    assert RECORDED.strip().startswith(curves.section()), "nox -s docs writes it anew"
    shown = set(re.findall(r"\(images/curves/(.*?)\.svg\)", RECORDED))
    known = [made for made in map(curve.read, curve.shipped()) if made.op in curves.PICTURED]
    assert shown == {curve.name_of(made) for made in known} and {made.op for made in known} == {*curves.PICTURED}
    for made in known:
        drawn = (PAGE.parent / f"images/curves/{curve.name_of(made)}.svg").read_text(encoding="utf-8")
        assert made.shape.split()[0] in drawn and made.date in drawn
