"""The types of the public face: fresh, complete, and of use to a type checker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.cli import type_stubs

CONFIGURATION = """[mypy]
strict = true
show_error_codes = true
[mypy-torch.*]
follow_imports = skip
[mypy-triton.*,rich.*]
ignore_missing_imports = true
"""
SNIPPET = """import torch
import kernelmux as kx
x = torch.zeros(3)
reveal_type(kx.softmax)
kx.softmx(x)
kx.softmax(x, no_such=3)
kx.gelu(x, approximate="tan")
kx.softmax(x, axis=0.5)
kx.softmax(x, backend=3)
kx.rms_norm_backward(x, x, x, eps=1e-5, backend=["cuda", "triton"])
kx.which("softmax", x, backend="cuda")
with kx.use("triton", ops=["softmax"]):
    kx.reduce_sum(x, axis=None, keepdim=True)
"""
EXPECTED = {
    4: "def (x: Any, axis: int =, scale: float =, *, backend: str | typing.Sequence[str] | None =) -> Any",
    5: 'Module has no attribute "softmx"',
    6: 'Unexpected keyword argument "no_such" for "softmax"',
    7: 'expected "Literal[',
    8: 'Argument "axis" to "softmax" has incompatible type "float"; expected "int"',
    9: 'Argument "backend" to "softmax" has incompatible type "int"',
}


def test_the_types_are_those_of_the_specs() -> None:
    assert type_stubs.path().read_text(encoding="utf-8") == type_stubs.text(), "run: python -m kernelmux.registry.stubs"


def test_what_is_listed_is_there_and_what_is_there_is_listed() -> None:
    public = {name for name in dir(kx) if not name.startswith("_")} | {"__version__"}
    assert set(kx.__all__) == public >= set(catalog.names())
    assert all(getattr(kx, name) is not None for name in kx.__all__)


def test_a_star_brings_every_operator() -> None:
    scope: dict[str, object] = {}
    exec("from kernelmux import *", scope)
    assert set(kx.__all__) <= set(scope)


def test_a_type_checker_knows_the_operators(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "snippet.py").write_text(SNIPPET)
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    root = str(Path(str(kx.__file__)).parents[1])
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "snippet.py"]
    env = os.environ | {"MYPYPATH": root}
    told = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    lines = [line for line in told.stdout.splitlines() if line.startswith("snippet.py:") and " defined in " not in line]
    found = {int(line.split(":")[1]): line for line in lines}
    assert set(found) == set(EXPECTED), told.stdout + told.stderr
    for number, text in EXPECTED.items():
        assert text in found[number]
