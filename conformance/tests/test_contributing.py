"""The operator that CONTRIBUTING.md adds, typed in by a machine: in a copy of the checkout it passes the suite."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
FILES = (
    "registry/ops/cube.py",
    "backends/torch_ref/cube.py",
    "backends/triton/cube.py",
    "backends/cuda/cube.cu",
    "backends/cuda/cube.py",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the parts with the five files of the page in it."""
    page = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:python|cuda)\n(.*?)```", page, re.DOTALL)
    for part in ("registry", "backends", "emulator", "conformance"):
        shutil.copytree(TOP / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    shutil.copytree(TOP / ".pyroot", tmp_path / ".pyroot", symlinks=True)
    for name, block in zip(FILES, blocks, strict=True):
        (tmp_path / name).write_text(block, encoding="utf-8")
    return tmp_path


def test_the_operator_of_the_page_passes_the_suite(checkout: Path) -> None:
    command = [sys.executable, "-m", "kernelmux.conformance", "--op", "cube", "--tier", "smoke", "-n", "1"]
    env = os.environ | {"PYTHONPATH": ".pyroot"}
    run = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
