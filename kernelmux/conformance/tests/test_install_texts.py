"""What the user is told to install: packages that exist, and none by the name of the project, which no index has."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from kernelmux.conformance import __main__ as program

TOP = Path(__file__).parents[3]
SUFFIXES = {".py", ".md", ".toml", ".html", ".cu", ".lock", ".yaml", ".bzl", ".csv", ""}
# A path (./kernelmux) and an extra of the checkout ('.[cuda]') are no names of an index.
NAMED = re.compile(
    r"""pip3?[ ]install[ ](?:[^\n#]*[ "'])?kernelmux(?![\w/.-]) | kernelmux\[[a-z] | ["']kernelmux\s*(?:[<>~!;]|==)""",
    re.VERBOSE,
)


def offences(text: str) -> list[str]:
    return [found.group() for found in NAMED.finditer(text)]


def tracked() -> list[Path]:
    """Files of the checkout; those of a folder without git, too."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP, capture_output=True, text=True)
    if listed.returncode:
        return [path for path in TOP.rglob("*") if path.is_file() and ".git" not in path.parts]
    return [TOP / name for name in listed.stdout.splitlines()]


def test_no_text_names_the_project_as_a_package_of_an_index() -> None:
    wrong = [
        f"{path.relative_to(TOP)}: {found}"
        for path in tracked()
        if path.suffix in SUFFIXES and path.is_file() and path.name != Path(__file__).name
        for found in offences(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "print `pip install cupy-cuda13x`, or `pip install '.[cuda]'` in a checkout:\n" + "\n".join(wrong)


def test_no_project_of_ours_depends_on_that_name() -> None:
    """pip would ask the index for it."""
    for path in (path for path in tracked() if path.name == "pyproject.toml"):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {}).values()
        needed = [*project["dependencies"], *(name for extra in extras for name in extra)]
        assert not [name for name in needed if re.match(r"kernelmux\b", name)], path


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('pip install "kernelmux[cuda]"', True),
        ("pip install kernelmux", True),
        ("pip install -U nox kernelmux # all", True),
        ('dependencies = ["kernelmux>=1"]', True),
        ("pip install cupy-cuda13x", False),
        ("pip install '.[cuda]'   # beside kernelmux", False),
        ("pip install ./kernelmux", False),
        ("pip install kernelmux-0.1.0-py3-none-any.whl", False),
        ("pip install nox\nkernelmux doctor", False),
    ],
)
def test_the_rule_tells_names_from_paths(text: str, named: bool) -> None:
    assert bool(offences(text)) == named


def test_conformance_names_all_that_its_extra_installs() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [re.split("[<>=]", name)[0] for name in project["optional-dependencies"]["conformance"]]
    assert program.INSTALL.split() == needed
