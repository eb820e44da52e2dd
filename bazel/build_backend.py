"""setuptools, but for `pip install -e .`: a plain path to .pyroot, which mypy, pyright and editors can follow.

setuptools' own editable install of a package whose folders have other names is an import hook: it works when Python runs,
and no tool that only reads sources sees the package. New files need no second install.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import tempfile
import zipfile

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (every other hook is setuptools')

IMPORT_ROOT = pathlib.Path(__file__).resolve().parents[1] / ".pyroot"
WHEEL = "Wheel-Version: 1.0\nGenerator: kernelmux\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_editable(
    wheel_directory: str, config_settings: dict[str, object] | None = None, metadata_directory: str | None = None
) -> str:
    """Write a wheel that holds one .pth file, and return its name."""
    if not (IMPORT_ROOT / "kernelmux" / "registry" / "__init__.py").is_file():  # a checkout without symbolic links
        return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))
    with tempfile.TemporaryDirectory() as folder:
        info = pathlib.Path(folder, build_meta.prepare_metadata_for_build_wheel(folder, config_settings))
        files = {f"{info.name}/{path.relative_to(info).as_posix()}": path.read_bytes() for path in _inside(info)}
    project = info.name.removesuffix(".dist-info")
    files[f"__editable__.{project}.pth"] = f"{IMPORT_ROOT}\n".encode()
    files[f"{info.name}/WHEEL"] = WHEEL.encode()
    files[f"{info.name}/RECORD"] = _record(files, f"{info.name}/RECORD").encode()
    name = f"{project}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
    return name


def _inside(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _record(files: dict[str, bytes], own: str) -> str:
    """The table of contents that pip keeps: path, digest, size."""
    lines = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}\n")
    return "".join(lines) + f"{own},,\n"
