"""The bound of fp8 products on sums that are cut as tensor cores cut them (`emulator.arithmetic.fused_dot`)."""

import numpy as np
import pytest
import torch

import kernelmux
from kernelmux.emulator.arithmetic.fused_dot import FP8, fused_dot
from kernelmux.registry import catalog
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.spec import numerics

SIZE = 24  # rows and columns
STEP = 32


def one_large(x):
    """The first of all terms is as large as the sum of the others."""
    x = x.abs() * 0.03 + 0.03
    x[(slice(None), 0) if len(x) == SIZE else 0] = 8
    return x


DRAWS = {"normal": torch.clone, "positive": torch.abs, "wide": lambda x: x * (2 * x).exp(), "one large": one_large}


def sums(a, b, promoted):
    """a @ b in steps of 32, the sum so far going on in fp32 after so many terms."""
    left, right = a.float().numpy()[None], b.float().numpy()[None]
    total, kind = np.zeros((1, SIZE, SIZE), np.float32), SHORT[a.dtype]
    for first in range(0, a.shape[1], promoted):
        part = np.zeros_like(total)
        for k in range(first, min(first + promoted, a.shape[1]), STEP):
            cut = np.ascontiguousarray(left[:, :, k : k + STEP]), np.ascontiguousarray(right[:, k : k + STEP])
            part = fused_dot(*cut, part, (kind, kind), FP8)
        total += part
    return torch.from_numpy(total[0])


@pytest.mark.parametrize("accumulation", ["full", "fast"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_sums_are_within_the_bound(draw, dtype, accumulation):
    rng, used = torch.Generator().manual_seed(0), []
    for length in (32, 128, 416, 2048):
        shapes = (SIZE, length), (length, SIZE)
        a, b = (draw(torch.randn(shape, generator=rng)).clamp(-400, 400).to(dtype) for shape in shapes)
        one = torch.ones(())
        call = catalog.spec("fp8_matmul").bind(a, b, one, one, "fp32", accumulation)
        got = sums(a, b, 128 if accumulation == "full" else length)
        how = numerics.arithmetic("mma", dtype, call.scalars)
        ref = a.double() @ b.double()
        arguments = (a.double(), b.double(), one.double(), one.double(), "fp32", accumulation)
        limit = numerics.bound(call.spec.errors[0], how, ref, torch.float32, dtype, arguments, call.axes)
        used.append(numerics.compare(got, ref, limit.total).budget)
    assert max(used) < 1, used
    assert draw is not one_large or max(used) > 0.4, used


@pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.EmulationWarning")
@pytest.mark.parametrize("lines", [False, True])
def test_promoted_sums_of_several_tiles_in_triton(lines):
    """So many tiles that warps have roles of their own; values that every order of sums gives exactly."""
    pytest.importorskip("triton")
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, (n, 272), generator=rng).to(torch.float8_e4m3fn) for n in (130, 272))
    shapes = ((130, 1), (1, 272)) if lines else ((), ())
    left, right = (2.0 ** torch.randint(-2, 3, shape, generator=rng) for shape in shapes)
    made = kernelmux.fp8_matmul(a, b.t(), left, right, out_dtype="fp32", backend="triton/persistent")
    assert torch.equal(made, (a.float() * left) @ (b.float().t() * right))
