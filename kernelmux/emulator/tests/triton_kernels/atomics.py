"""Atomics of every kind and type."""

import triton
import triton.language as tl


@triton.jit
def integers_kernel(out_ptr, x_ptr, index_ptr, n, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    """Row k of out: out[index] = out[index] (+, max, min, &, |, ^) x, for n elements that share few places."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    out = out_ptr + tl.load(index_ptr + offs, mask=mask, other=0)
    tl.atomic_add(out, x, mask=mask, sem="relaxed")
    tl.atomic_max(out + PLACES, x, mask=mask, sem="acquire")
    tl.atomic_min(out + 2 * PLACES, x, mask=mask, sem="release")
    tl.atomic_and(out + 3 * PLACES, x, mask=mask, sem="acq_rel")
    tl.atomic_or(out + 4 * PLACES, x, mask=mask, scope="sys")
    tl.atomic_xor(out + 5 * PLACES, x, mask=mask, scope="cta")


@triton.jit
def add_kernel(out_ptr, x_ptr, index_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    index = tl.load(index_ptr + offs, mask=mask, other=0)
    tl.atomic_add(out_ptr + index, tl.load(x_ptr + offs, mask=mask), mask=mask)


@triton.jit
def add_neighbours_kernel(out_ptr, x_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def extremes_kernel(out_ptr, x_ptr, index_ptr, n, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    out = out_ptr + tl.load(index_ptr + offs, mask=mask, other=0)
    tl.atomic_max(out, x, mask=mask)
    tl.atomic_min(out + PLACES, x, mask=mask)


@triton.jit
def exchange_kernel(out_ptr, old_ptr, x_ptr, index_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    out = out_ptr + tl.load(index_ptr + offs, mask=mask, other=0)
    tl.store(old_ptr + offs, tl.atomic_xchg(out, tl.load(x_ptr + offs, mask=mask), mask=mask), mask=mask)


@triton.jit
def swap_kernel(out_ptr, old_ptr, expected_ptr, x_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    old = tl.atomic_cas(out_ptr + offs, tl.load(expected_ptr + offs), tl.load(x_ptr + offs), sem="relaxed")
    tl.store(old_ptr + offs, old)


@triton.jit
def ticket_kernel(count_ptr, order_ptr, SCOPE: tl.constexpr):
    """Every program takes a number."""
    number = tl.atomic_add(count_ptr, 1, sem="acq_rel", scope=SCOPE)
    tl.store(order_ptr + number, tl.program_id(0))


@triton.jit
def handover_kernel(data_ptr, flag_ptr, out_ptr, BLOCK: tl.constexpr):
    """Program i waits for the flag of i - 1, adds one to its data, and raises its own flag."""
    i, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.zeros((BLOCK,), tl.int32)
    if i > 0:
        while tl.atomic_add(flag_ptr + i - 1, 0, sem="acquire") == 0:
            pass
        x = tl.load(data_ptr + (i - 1) * BLOCK + offs, volatile=True)
    tl.store(data_ptr + i * BLOCK + offs, x + offs)
    tl.debug_barrier()
    tl.atomic_xchg(flag_ptr + i, 1, sem="release")
    tl.store(out_ptr + i, tl.sum(x, 0))


@triton.jit
def load_store_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.atomic_store(out_ptr + offs, tl.atomic_load(x_ptr + offs, sem="acquire"), sem="release")
