"""The suite of kernelmux on the operators and kernels of this package, in the environment where both are installed."""

import subprocess
import sys


def suite(*words: str) -> None:
    command = [sys.executable, "-m", "kernelmux.conformance", *words, "--tier", "smoke", "--device", "cpu"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


def test_the_operators_pass_the_suite() -> None:
    suite("--op", "hardswish", "hardswish_backward")


def test_the_further_variant_passes_the_suite() -> None:
    suite("--op", "softmax", "--backend", "triton/our_ops.short")
