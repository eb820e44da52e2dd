"""transpose: tiles in shared memory, as bits, since numbers are moved and not computed."""

from functools import cache
from typing import Any

import numba
import torch
from numba import cuda

from kernelmux.registry.backend import Implementation
from kernels_in_numba._launch import launch

TILE, ROWS = 32, 8  # a tile is 32 x 32, read and written by 8 rows of threads
PADDED = TILE + 1  # columns in memory: no two rows begin in one bank. numba wants lengths that are names or numbers
MOST_BLOCKS = 65535
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


@cache
def tiles_of(size: int) -> Any:
    """The kernel for elements of so many bytes."""
    kind = {1: numba.int8, 2: numba.int16, 4: numba.int32}[size]

    @cuda.jit
    def transpose_tiles(x, y):  # x: [m, n], y: [n, m]
        tile = cuda.shared.array((TILE, PADDED), kind)
        column, first = cuda.threadIdx.x % TILE, cuda.threadIdx.x // TILE
        across = (x.shape[1] + TILE - 1) // TILE
        for at in range(cuda.blockIdx.x, across * ((x.shape[0] + TILE - 1) // TILE), cuda.gridDim.x):
            top, left = at // across * TILE, at % across * TILE
            for row in range(first, TILE, ROWS):
                if top + row < x.shape[0] and left + column < x.shape[1]:
                    tile[row, column] = x[top + row, left + column]
            cuda.syncthreads()
            for row in range(first, TILE, ROWS):
                if left + row < x.shape[1] and top + column < x.shape[0]:
                    y[left + row, top + column] = tile[column, row]
            cuda.syncthreads()

    return transpose_tiles


def transpose(x: torch.Tensor) -> torch.Tensor:
    y, size = x.new_empty(x.shape[1], x.shape[0]), x.element_size()
    if x.numel():
        blocks = min(-(-x.shape[0] // TILE) * -(-x.shape[1] // TILE), MOST_BLOCKS)
        launch(tiles_of(size), blocks, TILE * ROWS, x.view(BITS[size]), y.view(BITS[size]))
    return y


VARIANTS = {"tiles": Implementation(fn=transpose, idea="tiles in padded shared memory", layout={"x": "contiguous"})}
