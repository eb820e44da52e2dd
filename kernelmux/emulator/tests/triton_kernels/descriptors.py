"""Tensor descriptors, made by the host and by the kernel."""

import triton
import triton.language as tl


@triton.jit
def tile_kernel(x, y, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m, n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    y.store([m, n], x.load([m, n]) * 2)


@triton.jit
def made_here_kernel(x_ptr, y_ptr, M, N, FILL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N], padding_option=FILL)
    m, n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    tile = x.load([m - 8, n])
    offs_m, offs_n = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
    tl.store(y_ptr + offs_m[:, None] * (tl.num_programs(1) * BLOCK_N) + offs_n[None, :], tile)


@triton.jit
def deep_kernel(x, y, RANK: tl.constexpr):
    """The box at (1, 1, .., 0) of x goes to (0, 0, .., 0) of y."""
    if RANK == 1:
        y.store([0], x.load([0]))
    elif RANK == 2:
        y.store([0, 0], x.load([1, 0]))
    elif RANK == 3:
        y.store([0, 0, 0], x.load([1, 1, 0]))
    elif RANK == 4:
        y.store([0, 0, 0, 0], x.load([1, 1, 1, 0]))
    else:
        y.store([0, 0, 0, 0, 0], x.load([1, 1, 1, 1, 0]))


@triton.jit
def line_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [N], [1], [BLOCK])
    y = tl.make_tensor_descriptor(y_ptr, [N], [1], [BLOCK])
    y.store([tl.program_id(0) * BLOCK], x.load([tl.program_id(0) * BLOCK]) + 1)


@triton.jit
def reduce_kernel(out, x_ptr, KIND: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Every program joins its M x N tile with the same place."""
    tile = tl.program_id(0) * M * N + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + tile)
    if KIND == "add":
        out.atomic_add([4, 0], x)
    elif KIND == "min":
        out.atomic_min([4, 0], x)
    elif KIND == "max":
        out.atomic_max([4, 0], x)
    elif KIND == "and":
        out.atomic_and([4, 0], x)
    elif KIND == "or":
        out.atomic_or([4, 0], x)
    else:
        out.atomic_xor([4, 0], x)


@triton.jit
def gather_kernel(x, rows_ptr, out_ptr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.load(rows_ptr + tl.arange(0, BLOCK_M))
    tile = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(out_ptr + tile, x.gather(rows, 8))


@triton.jit
def scatter_kernel(out, rows_ptr, x_ptr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tl.load(rows_ptr + tl.arange(0, BLOCK_M))
    tile = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    out.scatter(tl.load(x_ptr + tile), rows, 8)
