"""What travels to the nodes: the sources of this process, whichever commit they are of and whatever was changed since."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import kernelmux

LEFT = shutil.ignore_patterns("__pycache__", "tests", "trials", "*.pyc", "*.svg")
HERE = ("KERNELMUX_HOME",)  # variables that say where things lie on the driver's machine


def environment(folder: Path) -> dict[str, Any]:
    """Ray's runtime environment: a copy of the package as the working directory, made in `folder`, and our variables.

    Ray sends it once per content, and nodes keep it.
    """
    package = Path(str(kernelmux.__file__)).parent
    shutil.copytree(package, folder / "kernelmux", ignore=LEFT)
    named = {name: value for name, value in os.environ.items() if name.startswith("KERNELMUX_") and name not in HERE}
    return {"working_dir": str(folder), "env_vars": named}
