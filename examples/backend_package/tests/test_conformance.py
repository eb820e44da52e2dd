"""The suite of kernelmux on the kernels of this package: pytest, in the environment where both are installed."""

import subprocess
import sys


def test_the_kernels_pass_the_suite() -> None:
    command = [sys.executable, "-m", "kernelmux.conformance", "--backend", "numpy", "--tier", "smoke"]
    command += ["--device", "cpu"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
