"""The operator that CONTRIBUTING.md adds, typed in by a machine: in a copy of the checkout it passes the suite."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
FILES = (
    "kernelmux/registry/ops/hardswish.py",
    "kernelmux/backends/torch_ref/hardswish.py",
    "kernelmux/backends/triton/hardswish.py",
    "kernelmux/backends/cuda/hardswish.cu",
    "kernelmux/backends/cuda/hardswish.py",
)


def blocks() -> list[str]:
    page = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.findall(r"```(?:python|cuda)\n(.*?)```", page, re.DOTALL)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the parts with the five files of the page in it."""
    shutil.copytree(
        TOP / "kernelmux", tmp_path / "kernelmux", ignore=shutil.ignore_patterns("__pycache__", "tests", "perf", "docs")
    )
    for name, block in zip(FILES, blocks(), strict=True):
        (tmp_path / name).write_text(block, encoding="utf-8")
    return tmp_path


def suite(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The suite on the operator, in tier ci."""
    command = [
        sys.executable,
        "-m",
        "kernelmux.conformance",
        "--op",
        "hardswish",
        "--tier",
        "ci",
        "-n",
        "1",
        *arguments,
    ]
    env = os.environ | {"PYTHONPATH": ".", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=False)


def test_the_operator_of_the_page_passes_the_suite(checkout: Path) -> None:
    run = suite(checkout)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "✓ ✓ ✓ ✓ hardswish" in run.stdout  # all three backends, and the spec


def test_a_kernel_whose_branch_is_a_little_off_fails(checkout: Path) -> None:
    kernel, bounded = checkout / "kernelmux/backends/triton/hardswish.py", "tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0)"
    text = kernel.read_text(encoding="utf-8")
    assert bounded in text
    kernel.write_text(text.replace(bounded, "tl.where(x < 3.002, tl.maximum(x + 3.0, 0.0), 6.0)"), encoding="utf-8")
    run = suite(checkout, "--backend", "triton", "--check", "special_values")
    assert run.returncode == 1 and "x around its breakpoint 3)" in run.stdout
    assert "wrong for x from 3.00000763 to 3.00195312" in run.stdout


def test_the_operator_of_the_page_is_short() -> None:
    lines = [line for block in blocks() for line in block.splitlines() if line.strip()]
    page = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"complete, in {len(lines)} lines." in page and len(lines) <= 60
