"""rms_norm in fp32: a block per row, whose threads add up squares in shared memory."""

import math

import torch
from numba import cuda, float32

from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Dtypes
from kernels_in_numba._launch import launch

THREADS = 128


@cuda.jit
def rms_norm_rows(x, weight, y, eps):  # x, y: [rows, n]
    sums = cuda.shared.array(THREADS, float32)
    row, lane, n = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    squares = float32(0)
    for i in range(lane, n, THREADS):
        squares += x[row, i] * x[row, i]
    sums[lane] = squares
    cuda.syncthreads()
    step = THREADS // 2
    while step:
        if lane < step:
            sums[lane] += sums[lane + step]
        cuda.syncthreads()
        step //= 2
    root = float32(math.sqrt(float32(sums[0] / float32(n) + float32(eps))))
    for i in range(lane, n, THREADS):
        y[row, i] = x[row, i] / root * weight[i]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    y, n = torch.empty_like(x), weight.numel()
    if x.numel():
        launch(rms_norm_rows, x.numel() // n, THREADS, x.view(-1, n), weight, y.view(-1, n), eps)
    return y


VARIANTS = {
    "rows": Implementation(
        fn=rms_norm,
        idea="a block per row",
        requires=(Dtypes("x", torch.float32),),
        layout={"x": "contiguous", "weight": "contiguous"},
    )
}
