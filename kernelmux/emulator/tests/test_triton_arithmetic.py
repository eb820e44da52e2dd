"""Arithmetic, functions and conversions of Triton on both targets, against numpy and torch in float64."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from kernelmux.emulator.tests.near import assert_near
from kernelmux.emulator.tests.triton_kernels import arithmetic as kernels
from kernelmux.emulator.tests.triton_version import VERSION

pytestmark = pytest.mark.usefixtures("arch")
libdevice, special = kernels.libdevice, torch.special

N = 128
REAL, POSITIVE, UNIT, SMALL = (-6.0, 6.0), (0.01, 9.0), (-0.98, 0.98), (-2.0, 2.0)
# Triton's or libdevice's function, its equal in float64, its domain, the largest error in units in the last place
FUNCTIONS: list[tuple[Any, Any, tuple[float, float], float]] = [
    (tl.exp, torch.exp, SMALL, 4),
    (tl.exp2, torch.exp2, SMALL, 4),
    (tl.log, torch.log, (2.0, 50.0), 4),
    (tl.log2, torch.log2, (2.0, 50.0), 4),
    (tl.sin, torch.sin, (0.1, 3.0), 4),
    (tl.cos, torch.cos, (-1.4, 1.4), 4),
    (tl.sqrt, torch.sqrt, POSITIVE, 2),
    (tl.rsqrt, torch.rsqrt, POSITIVE, 4),
    (tl.erf, torch.erf, REAL, 4),
    (tl.floor, torch.floor, REAL, 0),
    (tl.ceil, torch.ceil, REAL, 0),
    (tl.abs, torch.abs, REAL, 0),
    (tl.sigmoid, torch.sigmoid, SMALL, 6),
    (libdevice.tanh, torch.tanh, REAL, 4),
    (libdevice.exp, torch.exp, REAL, 4),
    (libdevice.exp10, lambda x: 10**x, SMALL, 4),
    (libdevice.expm1, torch.expm1, UNIT, 4),
    (libdevice.log, torch.log, (2.0, 50.0), 4),
    (libdevice.log10, torch.log10, (2.0, 50.0), 5),
    (libdevice.log1p, torch.log1p, (0.01, 50.0), 4),
    (libdevice.erf, torch.erf, REAL, 4),
    (libdevice.erfc, torch.erfc, SMALL, 8),
    (libdevice.erfinv, torch.erfinv, UNIT, 8),
    (libdevice.normcdf, special.ndtr, SMALL, 12),
    (libdevice.lgamma, torch.lgamma, (3.0, 30.0), 10),
    (libdevice.tgamma, lambda x: torch.lgamma(x).exp(), (1.0, 9.0), 40),  # the reference loses some of them
    (libdevice.rsqrt, torch.rsqrt, POSITIVE, 4),
    (libdevice.sqrt_rn, torch.sqrt, POSITIVE, 1),
    (libdevice.rcp_rn, torch.reciprocal, POSITIVE, 1),
    (libdevice.cbrt, lambda x: x.sign() * x.abs() ** (1 / 3), POSITIVE, 4),
    (libdevice.sin, torch.sin, (0.1, 3.0), 4),
    (libdevice.cos, torch.cos, (-1.4, 1.4), 4),
    (libdevice.tan, torch.tan, (-1.4, 1.4), 8),
    (libdevice.asin, torch.asin, UNIT, 6),
    (libdevice.acos, torch.acos, UNIT, 6),
    (libdevice.atan, torch.atan, REAL, 4),
    (libdevice.sinh, torch.sinh, SMALL, 6),
    (libdevice.cosh, torch.cosh, SMALL, 4),
    (libdevice.asinh, torch.asinh, REAL, 6),
    (libdevice.acosh, torch.acosh, (1.5, 9.0), 8),
    (libdevice.atanh, torch.atanh, (0.05, 0.9), 6),
    (libdevice.j0, special.bessel_j0, UNIT, 12),
    (libdevice.cyl_bessel_i0, special.i0, SMALL, 12),
    (libdevice.rint, torch.round, REAL, 0),
    (libdevice.nearbyint, torch.round, REAL, 0),
    (libdevice.trunc, torch.trunc, REAL, 0),
    (libdevice.round, lambda x: x.sign() * (x.abs() + 0.5).floor(), REAL, 0),
]
PAIRS: list[tuple[Any, Any, float]] = [
    (libdevice.pow, torch.pow, 16),
    (libdevice.atan2, torch.atan2, 6),
    (libdevice.hypot, torch.hypot, 4),
    (libdevice.fmod, torch.fmod, 0),
    (libdevice.copysign, torch.copysign, 0),
    (libdevice.fdim, lambda x, y: (x - y).clamp(min=0), 1),
    (libdevice.nextafter, None, 0),
    (libdevice.div_rn, torch.div, 1),
    (tl.div_rn, torch.div, 1),
    (tl.fdiv, torch.div, 4),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("part", range(3))
def test_functions(dtype: torch.dtype, part: int) -> None:
    chosen = FUNCTIONS[part::3]
    if dtype == torch.float64:  # exp2 and the like are approximate instructions: float32 alone has them
        chosen = [row for row in chosen if row[0] not in (libdevice.cyl_bessel_i0, libdevice.j0, tl.sigmoid)]
    x = torch.stack([torch.linspace(low, high, N, dtype=torch.float64) for _, _, (low, high), _ in chosen]).to(dtype)
    out = torch.empty(len(chosen), N, dtype=dtype)
    kernels.functions_kernel[(1,)](x, out, FUNCTIONS=tuple(row[0] for row in chosen), N=N)
    for (function, reference, _, ulps), got, exact in zip(chosen, out, x.double(), strict=True):
        assert_near(got, reference(exact), ulps, unit=torch.finfo(dtype).eps, where=f"{function.__name__}: ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions_of_two(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = (torch.rand(N).to(dtype) * 5 + 0.1), (torch.rand(N).to(dtype) * 4 + 0.1)
    chosen = [row for row in PAIRS if dtype == torch.float32 or row[0] not in (tl.div_rn, tl.fdiv)]
    out = torch.empty(len(chosen), N, dtype=dtype)
    kernels.pairs_kernel[(1,)](x, y, out, FUNCTIONS=tuple(row[0] for row in chosen), N=N)
    for (function, reference, ulps), got in zip(chosen, out, strict=True):
        expected = reference(x.double(), y.double()) if reference else torch.nextafter(x, y)
        assert_near(got, expected, ulps, unit=torch.finfo(dtype).eps, where=f"{function.__name__}: ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_fma_rounds_once(dtype: torch.dtype) -> None:
    x = 1 + torch.arange(N).to(dtype) * torch.finfo(dtype).eps
    out = torch.empty(2, N, dtype=dtype)
    kernels.fma_kernel[(1,)](x, x, -(x * x), out, N=N)
    fine = np.longdouble(x.numpy()) if dtype == torch.float64 else x.double().numpy()
    expected = fine * fine - (x * x).numpy()
    if dtype == torch.float32:
        assert torch.equal(out, torch.tensor(expected).to(dtype).expand(2, N))
    assert out.abs().amax() > 0 and torch.equal(out[0], out[1])


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers(name: str) -> None:
    dtype = np.dtype(name)
    limits = np.iinfo(dtype)
    random = np.random.default_rng(0)
    x, y = (random.integers(limits.min, limits.max, N, dtype, endpoint=True) for _ in range(2))
    x[:3], y[:3] = (limits.min, limits.max, 0), (3, 2, 7)
    y[3:40] = random.integers(1, 10, 37, dtype)
    y[y == 0] = 1
    if limits.min < 0:
        y[(y == -1) & (x == limits.min)] = 1
    out = np.empty((15, N), dtype)
    kernels.integers_kernel[(1,)](*(torch.from_numpy(t) for t in (x, y, out)), N=N)
    quotient = _quotient(x, y)
    with np.errstate(over="ignore"):
        expected = [
            x + y,
            x - y,
            x * y,
            quotient,
            x - quotient * y,
            x & y,
            x | y,
            x ^ y,
            ~x,
            x << (y & 7),
            x >> (y & 7),
            np.maximum(x, y),
            np.minimum(x, y),
            np.where(x < y, x, -y),
            (x < y),
        ]
    for i, (got, want) in enumerate(zip(out, expected, strict=True)):
        assert (got == want.astype(dtype)).all(), f"row {i}: {got[:8]} and not {want[:8]}"


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rounded towards zero, as in C."""
    exact = [abs(int(a)) // abs(int(b)) * (-1 if (a < 0) != (b < 0) else 1) for a, b in zip(x, y, strict=True)]
    return np.array(exact, x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_floats(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(N).to(dtype), torch.randn(N).to(dtype)
    x[:4], y[:4] = torch.tensor([torch.nan, 1, torch.inf, -0.0]).to(dtype), torch.tensor([1, torch.nan, 2, 3]).to(dtype)
    out = torch.empty(10, N, dtype=dtype)
    kernels.floats_kernel[(1,)](x, y, out, N=N)
    a, b = x.double(), y.double()
    number = [a + b, a - b, a * b, a / b, torch.fmax(a, b), torch.fmin(a, b), a.abs(), -a]
    for i, expected in enumerate(number):
        assert_near(out[i], expected, 4 if i == 3 else 0, where=f"row {i}: ")  # the quotient is approximate
    assert_near(out[8], torch.where(a < b, a, b), 0)
    assert_near(out[9], torch.maximum(a, b), 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_clamp(arch: str, dtype: torch.dtype) -> None:
    if arch != "sm_80" and dtype == torch.float64:
        pytest.skip("Triton cannot compile a clamp of float64 from sm_90 on")
    x, out = torch.randn(N).to(dtype), torch.empty(2, N, dtype=dtype)
    kernels.clamp_kernel[(1,)](x, out, N=N)
    assert torch.equal(out, torch.stack((x.clamp(-1, 1), x.clamp(-0.5, 1))))


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("source", [*FLOATS, *EIGHT_BITS, torch.int8, torch.int32, torch.uint8], ids=str)
def test_casts(arch: str, source: torch.dtype) -> None:
    """Triton converts 8-bit floats to and from float32, float16 and bfloat16."""
    if arch == "sm_80" and source == torch.float8_e4m3fn:
        pytest.skip("Triton has no e4m3 on sm_80")
    torch.manual_seed(0)
    unsigned = source == torch.uint8
    x = (torch.rand(N) * 120).to(source) if unsigned else (torch.randn(N) * 30).clamp(-120, 120).to(source)
    targets = [torch.float32, torch.float16, torch.bfloat16]
    if source not in EIGHT_BITS:
        targets += [torch.float64, torch.int8, torch.int64]
    if source in targets[:3]:
        targets += EIGHT_BITS[arch == "sm_80" :]
    outs = tuple(torch.empty(N, dtype=target) for target in targets)
    kernels.casts_kernel[(1,)](x, outs, N=N)
    for out in outs:
        expected = (x.float() if out.dtype in EIGHT_BITS else x.double()).to(out.dtype)
        if VERSION < (3, 9) and (source, out.dtype) == (torch.bfloat16, torch.float8_e5m2):
            continue  # rounded half away from zero where no instruction does it
        assert torch.equal(out.double(), expected.double()), out.dtype


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16, torch.float8_e5m2], ids=str)
def test_rounding(target: torch.dtype) -> None:
    x = torch.randn(N)
    near, cut = torch.empty(N, dtype=target), torch.empty(N, dtype=target)
    kernels.rounding_kernel[(1,)](x, near, cut, N=N)
    nearest = x.to(target)
    below = torch.where(nearest.float().abs() > x.abs(), (nearest.view(_bits(target)) - 1).view(target), nearest)
    assert torch.equal(near.float(), nearest.float()) and torch.equal(cut.float(), below.float())


def _bits(dtype: torch.dtype) -> torch.dtype:
    return torch.int8 if dtype.itemsize == 1 else torch.int16


@pytest.mark.parametrize(
    ("source", "target"),
    [(torch.float32, torch.int32), (torch.int16, torch.bfloat16), (torch.int64, torch.float64)],
    ids=str,
)
def test_bitcasts(source: torch.dtype, target: torch.dtype) -> None:
    x = torch.randint(-128, 128, (N * source.itemsize,), dtype=torch.int8).view(source)
    out = torch.empty(N, dtype=target)
    kernels.bitcast_kernel[(1,)](x, out, N=N)
    assert (out.view(torch.int8) == x.view(torch.int8)).all()


@pytest.mark.parametrize("name", ["uint32", "uint64"])
def test_high_half_of_a_product(name: str) -> None:
    dtype = np.dtype(name)
    random = np.random.default_rng(0)
    x, y = (random.integers(0, np.iinfo(dtype).max, N, dtype) for _ in range(2))
    out = np.empty(N, dtype)
    kernels.high_half_kernel[(1,)](*(torch.from_numpy(t) for t in (x, y, out)), N=N)
    assert [int(v) for v in out] == [int(a) * int(b) >> 8 * dtype.itemsize for a, b in zip(x, y, strict=True)]


def test_integer_functions() -> None:
    x, y = (torch.randint(-(2**31), 2**31, (N,), dtype=torch.int64).int() for _ in range(2))
    x[0], y[0] = 0, -1
    out = torch.empty(8, N, dtype=torch.int32)
    kernels.integer_functions_kernel[(1,)](x, y, out, N=N)
    for i in range(N):
        a, b = int(x[i]), int(y[i])
        bits, parts = (
            f"{a & 0xFFFFFFFF:032b}",
            (a & 0xFFFFFFFF).to_bytes(4, "little") + b.to_bytes(4, "little", signed=True),
        )
        expected = [
            32 if a == 0 else bits.index("1"),
            bits.count("1"),
            int(bits[::-1], 2),
            bits[::-1].index("1") + 1 if a else 0,
            a * b >> 32,
            (a & 0xFFFF) * (b & 0xFF),
            (a + b) >> 1,
            int.from_bytes(bytes(parts[k] for k in (5, 7, 1, 3)), "little"),
        ]
        assert [int(v) & 0xFFFFFFFF for v in out[:, i]] == [v & 0xFFFFFFFF for v in expected]


def test_conversions_to_integers() -> None:
    x, out = torch.linspace(-9, 9, N), torch.empty(5, N, dtype=torch.int32)
    kernels.to_integer_kernel[(1,)](x, out, N=N)
    assert torch.equal(out[:4], torch.stack((x.round(), x.trunc(), x.floor(), x.ceil())).int())
    assert torch.equal(out[4], x.view(torch.int32))


def test_eight_bits_without_infinities() -> None:
    """e4b15: no torch type, so the tensor is given as bytes. Triton's way back stops one code below the largest."""
    codes = torch.arange(256, dtype=torch.uint8)
    field, digits = (codes >> 3 & 15).double(), (codes & 7).double()
    size = torch.where(field > 0, (1 + digits / 8) * 2 ** (field - 15), digits / 8 * 2.0**-14)
    wide, back = torch.empty(256, dtype=torch.float16), torch.empty(256, dtype=torch.uint8)
    eight = triton.reinterpret(codes, tl.float8e4b15)
    kernels.casts_kernel[(1,)](eight, (wide,), N=256)
    assert torch.equal(wide.double(), torch.where(codes > 127, -size, size))
    kernels.casts_kernel[(1,)](wide, (triton.reinterpret(back, tl.float8e4b15),), N=256)
    assert torch.equal(back, torch.where(codes & 127 == 127, codes - 1, codes))


def test_random_numbers() -> None:
    n, seed = 2048, 123456789012345
    uniform, normal, integer = torch.empty(n), torch.empty(n), torch.empty(n, dtype=torch.uint32)
    four = torch.empty(4, n, dtype=torch.uint32)
    kernels.random_kernel[(1,)](seed, uniform, normal, integer, four, N=n)
    expected = _philox(seed, n)
    assert (four.numpy() == expected).all() and (integer.numpy() == expected[0]).all()
    signed = expected[:2].view(np.int32)
    u1, u2 = (np.where(v < 0, -v - 1, v) * 4.6566127342e-10 for v in signed.astype(np.float64))
    assert_near(uniform, u1, 4)
    radius = np.sqrt(-2 * np.log(np.maximum(u1, 1e-7)))
    near_one = 1 / np.maximum(1 - u1, 1e-7)  # where a rounding of u1 is many of its logarithm
    assert_near(normal, radius * np.cos(6.283185307179586 * u2), 16, radius + 1 + near_one)
    assert abs(uniform.mean() - 0.5) < 0.03 and abs(normal.std() - 1) < 0.06


def _philox(seed: int, n: int) -> np.ndarray:
    """Philox-4x32-10 of the counters (i, 0, 0, 0) and the key `seed`; (4, n)."""
    c = [np.arange(n, dtype=np.uint64), *(np.zeros(n, np.uint64) for _ in range(3))]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        low = np.uint64(0xFFFFFFFF)
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
            b & low,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
            a & low,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c).astype(np.uint32)


def test_inline_assembly() -> None:
    x, y = (torch.randint(-(2**31), 2**31, (N,), dtype=torch.int64).int() for _ in range(2))
    eight = torch.randint(-128, 128, (N,), dtype=torch.int8)
    out, pair, turned = torch.empty_like(x), torch.empty(2, N, dtype=torch.int32), eight.clone()
    kernels.inline_kernel[(1,)](x, y, out, pair, turned, N=N, num_warps=1)
    a, b = x.numpy().view(np.uint32), y.numpy().view(np.uint32)
    assert (out.numpy().view(np.uint32) == (b << np.uint32(7) | a >> np.uint32(25))).all()
    assert torch.equal(pair, torch.stack((x + y, x - y))) and torch.equal(turned, ~eight)
