"""A package of operators outside of the tree: the files that its operators share, and how an existing one is recognised."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.entry_points import OPERATORS

PYPROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "0.1.0"
description = "Operators of kernelmux in a package of their own"
requires-python = ">=3.11"
dependencies = [] # kernelmux, installed from its checkout: no package index has it

[project.optional-dependencies]
test = ["pytest>=8", "execnet>=2.1", "hypothesis>=6.100", "Jinja2>=3.1", "filelock>=3.13", "nvidia-ml-py>=12"]

[project.entry-points."{group}"]
{package} = "{package}"

[tool.setuptools]
package-dir = {{ "" = "." }} # an editable install is then a path, which type checkers can follow

[tool.setuptools.packages.find]
include = ["{package}*"]

[tool.setuptools.package-data]
"*" = ["*.cu", "*.cuh", "*.toml", "*.json"]
"""
README = """# {distribution}

Operators of kernelmux in a package of their own: what each means in `{package}/ops`, its kernels in `{package}/backends`.

```console
pip install -e '.[test]'   # beside kernelmux
python -m pytest           # what is left to fill in, and the suite of kernelmux on every operator
```
"""
INIT = '"""Operators of kernelmux, found by the names of their files."""\n'


class Home(NamedTuple):
    """Where a package is: the folder of its project, its name, and the folder of its modules."""

    project: Path
    name: str
    modules: Path

    @property
    def shared(self) -> dict[Path, str]:
        """The files that its operators share; those that exist stay as they are."""
        words = {"distribution": self.name.replace("_", "-"), "package": self.name, "group": OPERATORS}
        made = {
            self.project / "pyproject.toml": PYPROJECT.format(**words),
            self.project / "README.md": README.format(**words),
            self.modules / "__init__.py": INIT,
        }
        return {path: text for path, text in made.items() if not path.exists()}


def at(folder: Path) -> Home:
    """The package in a folder: that which its pyproject.toml announces, or a new one with the name of the folder.

    ArgumentError for a folder that holds another project, and for a name that no new package can have.
    """
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"--package: expected a folder, got the file {folder}")
    if (folder / "pyproject.toml").exists():
        return _announced(folder)
    name = folder.name.replace("-", "_")
    if problem := _unusable(name, folder):
        raise ArgumentError(
            f"--package: expected a folder whose name can be that of a package, got {folder.name!r}: {problem}"
        )
    return Home(folder, name, folder / name)


def _announced(folder: Path) -> Home:
    path = folder / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
        packages = list(project.get("entry-points", {}).get(OPERATORS, {}).values())
    except (OSError, ValueError, AttributeError) as error:  # AttributeError: what should be a table is none
        raise ArgumentError(f"--package: {path} cannot be read: {error}") from error
    if len(packages) != 1:
        raise ArgumentError(
            f"--package: expected a new folder, or a project that announces one package of operators, got {len(packages)}"
            f' in {path}: there, [project.entry-points."{OPERATORS}"] holds a line such as our_ops = "our_ops"'
        )
    inner = Path(*packages[0].split("."))
    places = [folder / "src" / inner, folder / inner]
    return Home(folder, packages[0], next((place for place in places if place.is_dir()), places[-1]))


def _unusable(name: str, folder: Path) -> str | None:
    """Why a new package cannot have this name, or None."""
    if not (name.isidentifier() and name.isascii()):
        return "it takes letters, digits and _, and begins with a letter"
    if name in sys.stdlib_module_names:
        return "a module of Python has this name"
    found = importlib.util.find_spec(name)
    places = (found.submodule_search_locations or [str(found.origin)]) if found else []
    elsewhere = next((place for place in places if not Path(place).resolve().is_relative_to(folder)), None)
    return f"a package of this name is installed: {elsewhere}" if elsewhere else None
