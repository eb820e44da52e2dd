"""CUDA's intrinsics and mathematical functions: what NVRTC makes of them is executed; packed integers bit by bit."""

from collections.abc import Callable

import numpy as np
import pytest

from kernelmux.emulator import checks, compile_ptx, load, nvrtc

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

INTEGERS = """
s ^= __brev(a) ^ __clz(a) ^ __ffs(a) ^ __popc(a) ^ __byte_perm(a, b, c) ^ __funnelshift_l(a, b, c);
s ^= __funnelshift_rc(a, b, c) ^ __hadd(a, b) ^ __rhadd(a, b);
s ^= __mulhi((int)a, (int)b) ^ __umul24(a, b) ^ __sad(a, b, c);
s ^= __usad(a, b, c) ^ __uhadd(a, b) ^ __urhadd(a, b) ^ __dp2a_lo((int)a, (int)b, (int)c) ^ __dp4a(a, b, c);
s ^= __viaddmax_s16x2_relu(a, b, c) ^ __vimax3_s32(a, b, c) ^ __vimin3_u16x2(a, b, c) ^ __fns(a, b & 31, 1);
s ^= __clzll(w) ^ __popcll(w) ^ __brevll(w) ^ __umul64hi(w, w + c) ^ __mul64hi(w, w + c) ^ __ffsll(w);
"""
FLOATS = """
r += __fadd_rd(f, g) + __fadd_ru(f, g) + __fmul_rz(f, g) + __fmaf_ru(f, g, f) + __fdiv_rd(f, g) + __fsqrt_ru(f);
r += __frcp_rz(f) + __frsqrt_rn(f) + __fdividef(f, g) + __expf(f);
r += __logf(f) + __powf(f, g) + __sinf(f) + __cosf(f) + __tanf(f);
r += __saturatef(f) + __log2f(f) + __log10f(f) + __exp10f(f) + sinf(f);
r += cosf(f) + tanf(f) + expf(f) + logf(f) + powf(f, g);
r += erff(f) + erfcf(f) + tgammaf(f) + lgammaf(f) + cbrtf(f) + atan2f(f, g) + fmodf(f, g) + remainderf(f, g) + j0f(f);
r += normcdff(f) + rsqrtf(f) + rcbrtf(f) + hypotf(f, g) + ldexpf(f, 3) + nextafterf(f, g) + rintf(f) + roundf(f);
r += truncf(f) + ceilf(f) + floorf(f) + fdimf(f, g) + logbf(f);
r += asinf(f) + acosf(f) + atanf(f) + sinhf(f) + coshf(f) + tanhf(f);
r += asinhf(f) + acoshf(f) + atanhf(f) + exp2f(f) + expm1f(f) + log1pf(f) + sinpif(f) + cospif(f) + erfinvf(f);
q += __dadd_rd(d, e) + __dmul_ru(d, e) + __fma_rz(d, e, d) + __ddiv_ru(d, e) + __dsqrt_rd(d) + __drcp_ru(d) + sin(d);
q += exp(d) + log(d) + pow(d, e) + erf(d) + tgamma(d);
q += fmod(d, e) + cbrt(d) + atan2(d, e) + rsqrt(d) + hypot(d, e) + erfcx(d);
s ^= __float_as_uint(r) ^ __double2hiint(q) ^ __double2loint(q) ^ __double2ll_rd(q) ^ __float2uint_rz(r);
s ^= __float2int_ru(r) ^ __float2ull_rn(r);
s ^= __double2uint_rn(q) ^ __float_as_uint(__ll2float_rd(w)) ^ __float_as_uint(__ull2float_ru(w));
s ^= __double_as_longlong(__ull2double_rz(w)) ^ __float_as_uint(__double2float_rz(q));
"""
HALVES = """
__half2 h = *(__half2*)&a, i = *(__half2*)&b, o = __hfma2_relu(h, i, h);
o = __hmax2_nan(__hmul2(__hadd2_sat(o, h), h2exp(h)), h2sqrt(i));
o = __hadd2(h2tanh(h2sin(h2log2(h2rcp(__hmin2(o, __habs2(i)))))), h2rint(i));
o = __hcmadd(h2exp10(h2cos(h2rsqrt(__hgtu2(__heq2(h2floor(__h2div(o, h)), h), i)))), h, i);
__nv_bfloat162 u = *(__nv_bfloat162*)&b, v = *(__nv_bfloat162*)&c;
u = __hlt2(h2tanh(__h2div(h2exp2(__hmax2_nan(__hfma2_relu(u, v, u), v)), v)), v);
__nv_fp8x4_e4m3 four(float4{f, g, r, f});
__nv_fp8x2_e5m2 two(h);
s ^= *(unsigned*)&o ^ *(unsigned*)&u ^ __hbeq2(h, i) ^ __half2int_rd(h.x) ^ __half2ll_ru(h.y) ^ four.__x ^ two.__x;
s ^= __half_as_ushort(__ull2half_rz(w)) ^ __bfloat16_as_ushort(__ll2bfloat16_ru(w)) ^ __bfloat162uint_rn(u.x);
s ^= __half_as_ushort(__double2half(q)) ^ __bfloat16_as_ushort(__double2bfloat16(q)) ^ __float_as_uint(float4(four).x);
"""
WARPS = """
int all;
s ^= __match_any_sync(~0u, a & 3) ^ __ballot_sync(~0u, a & 1) ^ __shfl_xor_sync(~0u, a, 3) ^ __reduce_add_sync(~0u, a);
s ^= __activemask() ^ __any_sync(~0u, a & 8) ^ __reduce_xor_sync(~0u, b) ^ __match_all_sync(~0u, a, &all);
s ^= __syncthreads_count(a & 1) ^ __syncthreads_or(b & 1) ^ __syncthreads_and(c & 1) ^ all;
atomicAdd((__half2*)(y + 64), h); atomicAdd((float*)(y + 65), f); atomicAdd((double*)(y + 66), d); atomicInc(y + 68, a);
atomicCAS((unsigned long long*)(y + 70), w, w + 1); atomicAdd((__nv_bfloat162*)(y + 72), v);
atomicMin((long long*)(y + 74), (long long)w); atomicCAS((unsigned short*)(y + 76), (unsigned short)1, (unsigned short)2);
"""
SOURCE = f"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
extern "C" __global__ void everything(const unsigned* x, unsigned* y) {{
  unsigned a = x[threadIdx.x], b = x[threadIdx.x + 32], c = x[threadIdx.x + 64];
  unsigned long long w = (unsigned long long)a << 32 | b, s = 0;
  float f = __uint_as_float(a & 0x3fffffff), g = __uint_as_float(b & 0x3fffffff), r = 0;
  double d = f, e = g, q = 0;
  {INTEGERS} {FLOATS} {HALVES} {WARPS}
  y[threadIdx.x] = s ^ s >> 32;
}}"""


@pytest.mark.skipif(
    nvrtc.unavailable() is not None or not any((f / "cuda_fp8.h").is_file() for f in nvrtc._headers()),
    reason="cuda_fp8.h is not installed",
)
@pytest.mark.parametrize("mode", ["full", "fast"])
def test_every_intrinsic_is_executed(mode: str) -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 96, np.uint64).astype(np.uint32)
    y = np.zeros(128, np.uint32)
    with checks(mode):
        load(compile_ptx(SOURCE, arch="sm_90a")).kernel("everything").launch(1, 32, (x, y))
    assert len(set(y[:32].tolist())) > 1


def fields(value: int, bits: int, signed: bool) -> list[int]:
    parts = [value >> i & (1 << bits) - 1 for i in range(0, 32, bits)]
    return [p - (1 << bits) if signed and p >> bits - 1 else p for p in parts]


def packed(numbers: list[int], bits: int) -> int:
    return sum((n & (1 << bits) - 1) << i * bits for i, n in enumerate(numbers))


def limited(number: int, bits: int, signed: bool) -> int:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(number, low), high)


# Name, signed operands, and the result of one pair; sums over all pairs where the name says so.
PACKED: list[tuple[str, bool, Callable[[int, int, int], int]]] = [
    ("__vadd", False, lambda a, b, n: a + b),
    ("__vaddss", True, lambda a, b, n: limited(a + b, n, True)),
    ("__vaddus", False, lambda a, b, n: limited(a + b, n, False)),
    ("__vsub", False, lambda a, b, n: a - b),
    ("__vsubss", True, lambda a, b, n: limited(a - b, n, True)),
    ("__vsubus", False, lambda a, b, n: limited(a - b, n, False)),
    ("__vavgu", False, lambda a, b, n: a + b + 1 >> 1),
    ("__vhaddu", False, lambda a, b, n: a + b >> 1),
    ("__vabsdiffu", False, lambda a, b, n: abs(a - b)),
    ("__vabsdiffs", True, lambda a, b, n: abs(a - b)),
    ("__vmaxs", True, lambda a, b, n: max(a, b)),
    ("__vminu", False, lambda a, b, n: min(a, b)),
    ("__vcmpges", True, lambda a, b, n: -int(a >= b)),
    ("__vcmpltu", False, lambda a, b, n: -int(a < b)),
    ("__vsetne", False, lambda a, b, n: int(a != b)),
    ("__vsadu", False, lambda a, b, n: abs(a - b)),
    ("__vsads", True, lambda a, b, n: abs(a - b)),
]


@pytest.mark.parametrize("count", [2, 4])
def test_packed_integers(count: int) -> None:
    x = np.random.default_rng(count).integers(0, 2**32, 128, np.uint64).astype(np.uint32)
    x[:8] = [0, 0xFFFFFFFF, 0x80008000, 0x7FFF7FFF, 0x80808080, 0x7F7F7F7F, 1, 0x00FF00FF]
    calls = "\n".join(f"y[{i} * 64 + i] = {name}{count}(a, b);" for i, (name, _, _) in enumerate(PACKED))
    source = 'extern "C" __global__ void k(const unsigned* x, unsigned* y) {\n  int i = threadIdx.x;\n'
    source += f"  unsigned a = x[i], b = x[i + 64];\n{calls}\n}}"
    y = np.zeros((len(PACKED), 64), np.uint32)
    with checks("full"):
        load(compile_ptx(source, arch="sm_90a")).kernel("k").launch(1, 64, (x, y))
    bits = 32 // count
    for (name, signed, one), got in zip(PACKED, y.tolist(), strict=True):
        for a, b, value in zip(x[:64].tolist(), x[64:].tolist(), got, strict=True):
            pairs = zip(fields(a, bits, signed), fields(b, bits, signed), strict=True)
            results = [one(p, q, bits) for p, q in pairs]
            assert value == (sum(results) if name.startswith("__vsad") else packed(results, bits)), name
