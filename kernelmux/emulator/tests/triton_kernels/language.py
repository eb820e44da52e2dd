"""Control flow, memory modifiers, printing and asserting."""

import triton
import triton.language as tl


@triton.jit
def collatz_kernel(x_ptr, out_ptr):
    """Steps to 1: a while loop with a branch; one number per program."""
    i = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    x, steps = tl.load(x_ptr + i), 0
    while x != 1:
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    tl.store(out_ptr + i, steps)


@triton.jit
def newton_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Roots of a whole tile, until all lanes are still."""
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    root, moved, rounds = x, 1.0, 0
    while (moved > 0) & (rounds < 60):
        new = 0.5 * (root + x / root)
        moved = tl.max(tl.where(new < root, 1.0, 0.0), 0)
        root = tl.where(new < root, new, root)
        rounds += 1
    tl.store(out_ptr + offs, root)


@triton.jit
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


@triton.jit(noinline=True)
def affine(x, y):
    if x > 0:
        return x * 2 + y
    return x - y


@triton.jit
def calls_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """A function that is called, not inlined, twice, and one that returns early."""
    i = tl.program_id(0)
    x = tl.sum(tl.load(x_ptr + i * N + tl.arange(0, N)), 0)
    tl.store(out_ptr + 2 * i, affine(x, 1.0) + affine(-x, 2.0))
    if i == 2:
        return
    tl.store(out_ptr + 2 * i + 1, fibonacci(i + 5).to(tl.float32))


@triton.jit
def ranges_kernel(x_ptr, out_ptr, n, m, STAGES: tl.constexpr, FLATTEN: tl.constexpr, BLOCK: tl.constexpr):
    """Nested loops with options; ragged rows."""
    offs = tl.arange(0, BLOCK)
    for i in tl.range(tl.program_id(0), n, tl.num_programs(0), flatten=FLATTEN):
        total = tl.zeros((BLOCK,), tl.float32)
        for j in tl.range(0, m, num_stages=STAGES, loop_unroll_factor=2):
            total += tl.load(x_ptr + (i * m + j) * BLOCK + offs) * (j + 1)
        tl.store(out_ptr + i * BLOCK + offs, total)


@triton.jit
def modifiers_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Every cache modifier and eviction policy; `other` fills what the mask leaves out."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offs = tl.max_contiguous(tl.multiple_of(offs, BLOCK), BLOCK)
    tl.assume(n > 0)
    mask = offs < n
    total = tl.load(x_ptr + offs, mask=mask, other=1.0, cache_modifier=".ca")
    total += tl.load(x_ptr + offs, mask=mask, other=2.0, cache_modifier=".cg")
    total += tl.load(x_ptr + offs, mask=mask, other=3.0, cache_modifier=".cv")
    total += tl.load(x_ptr + offs, mask=mask, other=4.0, eviction_policy="evict_first")
    total += tl.load(x_ptr + offs, mask=mask, other=5.0, eviction_policy="evict_last")
    total += tl.load(x_ptr + offs, mask=mask, other=6.0, volatile=True)
    tl.debug_barrier()
    tl.store(out_ptr + offs, total, cache_modifier=".wb")
    tl.store(out_ptr + offs, total, cache_modifier=".cg")
    tl.store(out_ptr + offs, total, eviction_policy="evict_first")
    tl.store(out_ptr + offs, total, cache_modifier=".cs")
    tl.store(out_ptr + offs, total, cache_modifier=".wt")


@triton.jit
def block_pointer_kernel(x_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Walks along the columns; zeros or NaN outside."""
    x = tl.make_block_ptr(x_ptr, (M, N), (N, 1), (tl.program_id(0) * BLOCK_M, 0), (BLOCK_M, BLOCK_N), (1, 0))
    out = tl.make_block_ptr(out_ptr, (M, N), (N, 1), (tl.program_id(0) * BLOCK_M, 0), (BLOCK_M, BLOCK_N), (1, 0))
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, N, BLOCK_N):
        tile = tl.load(x, boundary_check=(0, 1), padding_option="zero")
        total += tile
        tl.store(out, tile + tl.sum(total, 1)[:, None], boundary_check=(0, 1))
        x, out = tl.advance(x, (0, BLOCK_N)), tl.advance(out, (0, BLOCK_N))


@triton.jit
def printing_kernel(x_ptr, N: tl.constexpr):
    tl.static_assert(N == 32, "as many as a warp has lanes")
    tl.static_print("compiling for", N)
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.device_print("x", x)
    tl.device_print("flags", x > 1.0, hex=True)


@triton.jit
def asserting_kernel(x_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.device_assert(x > 0, "x must be positive")  # fails for the last element


@triton.jit
def options_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, x * tl.sum(x, 0), mask=offs < n)


@triton.jit
def tile_add_kernel(x_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """A tile that lies over the blocks of a cluster where there is one."""
    i = tl.program_id(0)
    tile = (i * M + tl.arange(0, M))[:, None] * N + tl.arange(0, N)[None, :]
    x, y = tl.load(x_ptr + tile), tl.load(y_ptr + tile)
    tl.store(out_ptr + tile, x + y)


@triton.jit
def dependent_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Programmatic dependent launch: waits for the kernel before, lets the next one start."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) + 1)


@triton.jit
def clock_kernel(out_ptr):
    """Where a program runs and when: a processor number, and clocks that do not go back."""
    before = tl.extra.cuda.globaltimer()
    tl.store(out_ptr, tl.extra.cuda.smid())
    tl.store(out_ptr + 1, (tl.extra.cuda.globaltimer() >= before).to(tl.int32))
    tl.store(out_ptr + 2, tl.extra.cuda.num_threads())
    tl.store(out_ptr + 3, tl.extra.cuda.num_warps())
