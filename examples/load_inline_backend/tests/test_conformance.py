"""The suite of kernelmux on the kernels of this package: pytest, where both are installed and there is a GPU."""

import subprocess
import sys

import pytest
import torch


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compiled for a GPU, and torch sees none here")
def test_the_kernels_pass_the_suite() -> None:
    command = [sys.executable, "-m", "kernelmux.conformance", "--backend", "load_inline", "--tier", "ci"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
