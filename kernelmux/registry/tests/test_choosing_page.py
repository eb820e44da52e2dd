"""Every snippet of docs/choosing_a_backend.md, run in its order: Python in one session, commands one by one."""

import doctest
import os
import re
import shlex
from pathlib import Path

import pytest
import torch

from kernelmux.emulator import nvrtc
from kernelmux.registry.choice import precedence
from kernelmux.registry.cli import main

PAGE = Path(__file__).parents[3] / "docs/choosing_a_backend.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)

pytestmark = [
    pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable())),
    pytest.mark.skipif(torch.cuda.is_available(), reason="what it shows is said of a machine without a GPU"),
]


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """A folder without a configuration, in which the page's own file stands."""
    pytest.importorskip("triton")
    for name in [n for n in os.environ if n.startswith("KERNELMUX_BACKEND") or n == "KERNELMUX_CONFIG"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "choice.toml").write_text(only("toml")[0])
    precedence.reread()
    yield
    monkeypatch.undo()
    precedence.reread()


def only(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


def test_every_block_is_of_a_kind_that_is_run():
    assert {kind for kind, _ in BLOCKS} == {"pycon", "console", "toml"} and len(only("toml")) == 1


def test_python_gives_what_the_page_shows():
    session = doctest.DocTestParser().get_doctest("".join(only("pycon")), {}, PAGE.name, str(PAGE), 0)
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert len(session.examples) > 20
    assert runner.run(session, out=told.append).failed == 0, "".join(told)


COMMANDS = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(only("console")), re.MULTILINE)


@pytest.mark.parametrize(("line", "shown"), COMMANDS, ids=lambda text: text[:60])
def test_a_command_prints_what_the_page_shows(monkeypatch, capsys, line, shown):
    words = shlex.split(line)
    program = words.index("kernelmux")
    for setting in words[:program]:
        monkeypatch.setenv(*setting.split("=", 1))
    precedence.reread()
    assert main.main(words[program + 1 :]) == 0
    told = capsys.readouterr().out
    assert doctest.OutputChecker().check_output(shown, told, doctest.ELLIPSIS), told
