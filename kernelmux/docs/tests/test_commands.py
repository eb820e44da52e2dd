"""Every command that a page shows is one that its program takes, and the snippets of pages that print nothing run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelmux import emulator
from kernelmux.conformance.cli import arguments as conformance
from kernelmux.conformance.cli import ledger_command
from kernelmux.emulator import nvrtc, triton_driver
from kernelmux.nn import check_command
from kernelmux.perf.cli import main as perf
from kernelmux.perf.emulated import emulate
from kernelmux.perf.profile import cli as profile
from kernelmux.registry.cli import main as registry
from kernelmux.registry.scaffold import command as new
from kernelmux.tune import cli as tune
from kernelmux.warm import cli as warm

DOCS = Path(__file__).parents[3] / "docs"
TOP = DOCS.parent
PACKAGE = TOP / "kernelmux"
PAGES = [
    TOP / "README.md",
    TOP / "CONTRIBUTING.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(TOP.glob("examples/*/README.md")),
]
PROGRAMS = {
    "conformance": conformance.parser,
    "perf": perf.parser,
    "tune": tune.parser,
    "perf.profile": profile.parser,
    "profile": profile.parser,
    "emulate": emulate.parser,
    "check-model": check_command.parser,
    "ledger": ledger_command.parser,
    "new": new.parser,
    "warm": warm.parser,
    "registry": registry._parser,
}
PROGRAM = r"(?:nox (?:--no-venv )?-s|python -m kernelmux\.|kernelmux )"
COMMAND = re.compile(rf"^(?:    |\$ )?((?:[A-Z_]+=\S* )*{PROGRAM}(?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
INLINE = re.compile(r"`((?:nox -s|python -m kernelmux\.|kernelmux )[^`]*)`")
# Sessions of nox that give their words to others, or take none.
NOT_OURS = ("lint", "tests", "docs", "dev", "build", "count", "torch_versions", "triton_versions")


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        inline = [" ".join(found.split()) for found in INLINE.findall(text)]
        for command in dict.fromkeys([*COMMAND.findall(text), *inline]):
            if "..." not in command and "--help" not in command:
                yield page.name, command.replace("\\\n", " ")


def words(command: str) -> tuple[str, list[str]]:
    """The program that a command starts, and its arguments."""
    told = shlex.split(re.sub(r"^(?:[A-Z_]+=\S* )*", "", command).partition(" > ")[0], comments=True)
    if told[0] == "nox":
        told.remove("--no-venv") if "--no-venv" in told else None
        return told[2], told[4:]
    if told[0] == "kernelmux":
        if told[1] in registry.PROGRAMS:
            return registry.PROGRAMS[told[1]][0].removeprefix("kernelmux."), told[2:]
        return (told[1], told[2:]) if told[1] in registry.PROVIDED else ("registry", told[1:])
    return told[2].removeprefix("kernelmux."), told[3:]


@pytest.mark.parametrize(("page", "command"), list(commands()), ids=lambda text: text[:60])
def test_a_program_takes_the_command(page: str, command: str) -> None:
    program, given = words(command)
    if program in NOT_OURS or (
        program not in PROGRAMS and (PACKAGE / program.replace(".", "/")).with_suffix(".py").exists()
    ):
        return
    if program not in PROGRAMS:
        assert (PACKAGE / program.replace(".", "/") / "__main__.py").exists(), f"{page}: {command}"
    elif given:
        PROGRAMS[program]().parse_args(given)


def test_commands_are_found_and_wrong_ones_are_noticed() -> None:
    found = [command for _, command in commands()]
    assert len(found) > 100 and {words(command)[0] for command in found} >= {*PROGRAMS} - {"profile"}
    with pytest.raises(SystemExit):
        test_a_program_takes_the_command("page", "nox -s perf -- --no-such-option")


needs_emulator = pytest.mark.skipif(
    nvrtc.unavailable() is not None or torch.cuda.is_available(), reason="the snippets run on the emulator"
)


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def outputs(page: Path) -> list[str]:
    return re.findall(r"^```text\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@needs_emulator
def test_the_readme_shows_what_its_lines_print(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    (code,) = snippets(TOP / "README.md")
    with warnings.catch_warnings(action="ignore"):
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == outputs(TOP / "README.md")[0]


@needs_emulator
def test_the_readme_shows_lines_of_what_its_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = COMMAND.findall((TOP / "README.md").read_text(encoding="utf-8"))
    (command,) = (command for command in told if "emulate" in command)
    assert registry.main(shlex.split(command)[1:]) == 0 and (tmp_path / "out.html").exists()
    printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    shown = [line for line in outputs(TOP / "README.md")[1].splitlines() if line != "..."]
    assert len(shown) > 2 and not [line for line in shown if line not in printed]


@needs_emulator
def test_the_snippets_of_the_page_on_the_emulator_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")
    race, kernel, orders, covered, targets = snippets(DOCS / "emulator.md")
    page = (DOCS / "emulator.md").read_text(encoding="utf-8")
    with pytest.raises(emulator.EmulatorError) as raised:
        exec(compile(race, "emulator.md", "exec"), {})
    for line in str(raised.value).splitlines():
        assert line in page
    given = kernels(tmp_path, kernel, monkeypatch)
    x, y, n = torch.arange(8.0), torch.zeros(8), 8
    names: dict[str, Any] = {"emulator": emulator, "kernel": given.one_each, "grid": (8,), "x": x, "y": y, "n": n}
    with emulator.triton_active():
        exec(compile(orders, "emulator.md", "exec"), names)
        exec(compile(covered, "emulator.md", "exec"), names)
    assert y.equal(x) and "one_each []" in capsys.readouterr().out
    names |= {
        "kernel": _with_weight(given),
        "triton_driver": triton_driver,
        "x": torch.randn(256),
        "y": torch.zeros(256),
    }
    exec(compile(targets, "emulator.md", "exec"), names | {"grid": (1,), "n": 256})
    assert not names["y"].isnan().any() and names["y"].any()


def kernels(folder: Path, snippet: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The kernel of the page, ended as its text says, and one whose programs copy an element each; Triton reads files."""
    head = "import triton\nimport triton.language as tl\n\n\n"
    end = "    tl.store(y + row * n + columns, values / tl.sqrt(mean + eps) * tl.load(weight + columns, mask), mask)\n"
    copy = "\n\n@triton.jit\ndef one_each(x, y, n):\n    i = tl.program_id(0)\n"
    copy += "    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)\n"
    (folder / "of_the_page.py").write_text(head + snippet + end + copy)
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("of_the_page", None)
    return __import__("of_the_page")


def _with_weight(given: ModuleType) -> Any:
    """The kernel of the page behind the arguments of its last snippet."""

    class Launch:
        def __getitem__(self, grid: Any) -> Any:
            weight = torch.ones(256)
            return lambda x, y, n, BLOCK: given.rms_norm_kernel[grid](x, weight, y, n, 1e-6, BLOCK=BLOCK)

    return Launch()


def test_the_backend_of_the_page_on_conformance_computes_softmax() -> None:
    *_, announced, softmax = snippets(DOCS / "conformance.md")
    names: dict[str, Any] = {}
    for code in (announced, softmax):
        exec(compile(code, "conformance.md", "exec"), names)
    x = torch.randn(3, 5)
    assert names["BACKEND"].name == "their_backend"
    assert torch.allclose(names["VARIANTS"]["plain"].fn(x, 1, 1.0), torch.softmax(x, 1))


def test_the_space_of_the_page_on_tuning_is_one() -> None:
    from kernelmux.registry.backend.search_space import Space

    (code,) = snippets(DOCS / "tuning.md")
    names: dict[str, Any] = {"Space": Space, "persistent_rule": dict, "key": str, "refusal": str}
    exec(compile(code, "tuning.md", "exec"), names)
    assert names["SPACE"].variant == "persistent"


@pytest.mark.parametrize("name", registry.PROGRAMS)
def test_programs_of_other_parts_are_commands(name: str) -> None:
    asked = [sys.executable, "-m", "kernelmux", name, "--no-such-flag"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--no-such-flag" in done.stderr and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("conformance: " if name == "conformance" else f"kernelmux {name}: ")
