"""newop: nothing is left to fill in, and all backends pass the suite of kernelmux."""

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parents[1]
OPERATOR = Path(__file__).stem.removeprefix("test_")
MARK = f"TODO({OPERATOR})"


def test_nothing_is_left_to_fill_in() -> None:
    sources = (path for path in sorted(TOP.rglob(f"{OPERATOR}.*")) if path.suffix in {".py", ".cu"})
    left = [
        f"{path.relative_to(TOP)}:{number}: {line.partition(MARK)[2].strip(': ')}"
        for path in sources
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MARK in line
    ]
    assert not left, "fill in, then delete the mark:\n" + "\n".join(left)


def test_all_backends_pass_the_suite() -> None:
    command = [sys.executable, "-m", "kernelmux.conformance", "--op", OPERATOR, "--tier", "ci"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
