"""Macros of CUDA C++ that double forty times: a judge that reads sizes from the source reads for ever.

The function itself is right, and never uses them. Found by the limits of the process that reads.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "the sizes of .* cannot be read"
NEEDS = "cpu"
ALLOW = "torch"
SOURCE = r"""
#define M0 4
#define M1 M0 + M0
#define M2 M1 + M1
#define M3 M2 + M2
#define M4 M3 + M3
#define M5 M4 + M4
#define M6 M5 + M5
#define M7 M6 + M6
#define M8 M7 + M7
#define M9 M8 + M8
#define N0 M9 + M9
#define N1 N0 + N0
#define N2 N1 + N1
#define N3 N2 + N2
#define N4 N3 + N3
#define N5 N4 + N4
#define N6 N5 + N5
#define N7 N6 + N6
#define N8 N7 + N7
#define N9 N8 + N8
#define P0 N9 + N9
#define P1 P0 + P0
#define P2 P1 + P1
#define P3 P2 + P2
#define P4 P3 + P3
#define P5 P4 + P4
#define P6 P5 + P5
#define P7 P6 + P6
#define P8 P7 + P7
#define P9 P8 + P8
__global__ void kernel(float* y, int n) { if (n < P9) y[0] = 1; }
"""


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    scale = scale if SOURCE else 0.0
    return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
