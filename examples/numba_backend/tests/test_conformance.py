"""The suite of kernelmux on the kernels of this package: on a GPU all of it, else some of it on numba's simulator."""

import os
import subprocess
import sys

import torch


def test_the_kernels_pass_the_suite() -> None:
    command = [sys.executable, "-m", "kernelmux.conformance", "--backend", "numba"]
    on_gpu, simulated = (
        ["--tier", "ci"],
        ["--in-process", "numba", "--device", "cpu", "--tier", "smoke", "--check", "accuracy", "exact"],
    )
    env = os.environ if torch.cuda.is_available() else os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    command += on_gpu if torch.cuda.is_available() else simulated
    told = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert told.returncode == 0, told.stdout + told.stderr
