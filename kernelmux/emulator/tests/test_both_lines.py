"""A race names the lines of both accesses."""

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError
from kernelmux.emulator.tests.launching import launch, needs_nvrtc

pytestmark = needs_nvrtc

KERNEL = """extern "C" __global__ void race(float* x, float* y) {{
int i = threadIdx.x;
__shared__ float t[64];
__shared__ unsigned char b[64];
{body}
}}"""
SHARED_WRITE = "t[i] = x[i];\n\ny[i] = t[63 - i];\n"
SHARED_READ = "t[i] = x[i];\n__syncthreads();\nfloat v = t[63 - i];\n\nt[i] = v;\n__syncthreads();\n y[i] = t[i];"
SHARED_TWICE = "t[i] = x[i];\n\nt[x[0] == 0.f ? 63 - i : i] = 3.f * x[i];\n__syncthreads();\ny[i] = t[i];"
LATER_PART = "t[i] = x[i];\n__syncthreads();\nt[i] = 2.f * t[i];\ny[i] = t[i ^ 33];"
BYTES = "t[i] = x[i];\n__syncthreads();\nb[i] = t[i];\nt[0] = b[i ^ 32];"
GLOBAL_WRITE = "y[i] = x[i];\n\ny[i ^ 1] = 3.f * x[i];"
GLOBAL_READ_AFTER = "y[i] = x[i];\n\nx[i] = y[i ^ 32];"
GLOBAL_READ_BEFORE = "float v = x[i ^ 32];\n\nx[i] = v + 1.f;"


@pytest.mark.parametrize(
    ("body", "line", "earlier"),
    [
        (SHARED_WRITE, 7, 5),
        (SHARED_READ, 9, 7),
        (SHARED_TWICE, 7, 5),
        (LATER_PART, 8, 7),
        (BYTES, 8, 7),
        (GLOBAL_WRITE, 7, 5),
        (GLOBAL_READ_AFTER, 7, 5),
        (GLOBAL_READ_BEFORE, 7, 5),
    ],
)
def test_a_race_names_both_lines(body: str, line: int, earlier: int) -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with pytest.raises(EmulatorError, match="race") as caught:
        launch(KERNEL.format(body=body), "race", 1, 64, x, y, mode="full")
    error = caught.value
    assert (error.line, error.earlier) == (line, (error.file, earlier))
    assert f" at {error.file}:{earlier}" in str(error).splitlines()[0]


def test_the_line_of_another_block_is_known_as_well() -> None:
    """Blocks of different chunks: the first ones have ended long ago."""
    body = "if (blockIdx.x == 0) y[0] = 1.f;\n__syncthreads();\nif (blockIdx.x == gridDim.x - 1) y[0] = 2.f;"
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    with pytest.raises(EmulatorError, match="race") as caught:
        launch(KERNEL.format(body=body), "race", 5000, 64, x, y, mode="full")
    assert (caught.value.line, caught.value.earlier) == (7, (caught.value.file, 5))
