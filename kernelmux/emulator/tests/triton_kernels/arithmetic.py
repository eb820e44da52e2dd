"""Arithmetic, functions and conversions of every type."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

__all__ = ["libdevice"]


@triton.jit
def functions_kernel(x_ptr, out_ptr, FUNCTIONS: tl.constexpr, N: tl.constexpr):
    offs = tl.arange(0, N)
    for i in tl.static_range(len(FUNCTIONS)):
        tl.store(out_ptr + i * N + offs, FUNCTIONS[i](tl.load(x_ptr + i * N + offs)))


@triton.jit
def pairs_kernel(x_ptr, y_ptr, out_ptr, FUNCTIONS: tl.constexpr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    for i in tl.static_range(len(FUNCTIONS)):
        tl.store(out_ptr + i * N + offs, FUNCTIONS[i](x, y))


@triton.jit
def fma_kernel(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x, y, z = tl.load(x_ptr + offs), tl.load(y_ptr + offs), tl.load(z_ptr + offs)
    tl.store(out_ptr + offs, tl.fma(x, y, z))
    tl.store(out_ptr + N + offs, libdevice.fma(x, y, z))


@triton.jit
def integers_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    """y is never 0."""
    offs = tl.arange(0, N)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, x + y)
    tl.store(out_ptr + N + offs, x - y)
    tl.store(out_ptr + 2 * N + offs, x * y)
    tl.store(out_ptr + 3 * N + offs, x // y)
    tl.store(out_ptr + 4 * N + offs, x % y)
    tl.store(out_ptr + 5 * N + offs, x & y)
    tl.store(out_ptr + 6 * N + offs, x | y)
    tl.store(out_ptr + 7 * N + offs, x ^ y)
    tl.store(out_ptr + 8 * N + offs, ~x)
    tl.store(out_ptr + 9 * N + offs, x << (y & 7))
    tl.store(out_ptr + 10 * N + offs, x >> (y & 7))
    tl.store(out_ptr + 11 * N + offs, tl.maximum(x, y))
    tl.store(out_ptr + 12 * N + offs, tl.minimum(x, y))
    tl.store(out_ptr + 13 * N + offs, tl.where(x < y, x, -y))
    tl.store(out_ptr + 14 * N + offs, ((x <= y) & (x != y)).to(x.dtype))


@triton.jit
def floats_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, x + y)
    tl.store(out_ptr + N + offs, x - y)
    tl.store(out_ptr + 2 * N + offs, x * y)
    tl.store(out_ptr + 3 * N + offs, x / y)
    tl.store(out_ptr + 4 * N + offs, tl.maximum(x, y))
    tl.store(out_ptr + 5 * N + offs, tl.minimum(x, y))
    tl.store(out_ptr + 6 * N + offs, tl.abs(x))
    tl.store(out_ptr + 7 * N + offs, -x)
    tl.store(out_ptr + 8 * N + offs, tl.where(x < y, x, y))
    tl.store(out_ptr + 9 * N + offs, tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def clamp_kernel(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, tl.clamp(x, -1.0, 1.0))
    tl.store(out_ptr + N + offs, tl.clamp(x, -0.5, 1.0))


@triton.jit
def casts_kernel(x_ptr, outs, N: tl.constexpr):
    """x in the type of each of `outs`."""
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    for i in tl.static_range(len(outs)):
        tl.store(outs[i] + offs, tl.cast(x, outs[i].dtype.element_ty))


@triton.jit
def rounding_kernel(x_ptr, near_ptr, cut_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(near_ptr + offs, tl.cast(x, near_ptr.dtype.element_ty, fp_downcast_rounding="rtne"))
    tl.store(cut_ptr + offs, tl.cast(x, cut_ptr.dtype.element_ty, fp_downcast_rounding="rtz"))


@triton.jit
def bitcast_kernel(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs).to(out_ptr.dtype.element_ty, bitcast=True))


@triton.jit
def high_half_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, tl.umulhi(x, y))


@triton.jit
def random_kernel(seed, uniform_ptr, normal_ptr, integer_ptr, four_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(uniform_ptr + offs, tl.rand(seed, offs))
    tl.store(normal_ptr + offs, tl.randn(seed, offs))
    tl.store(integer_ptr + offs, tl.randint(seed, offs))
    a, b, c, d = tl.randint4x(seed, offs)
    tl.store(four_ptr + offs, a)
    tl.store(four_ptr + N + offs, b)
    tl.store(four_ptr + 2 * N + offs, c)
    tl.store(four_ptr + 3 * N + offs, d)


@triton.jit
def inline_kernel(x_ptr, y_ptr, out_ptr, pair_ptr, bytes_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    shifted = tl.inline_asm_elementwise("shf.l.wrap.b32 $0, $1, $2, 7;", "=r,r,r", [x, y], tl.int32, True, 1)
    tl.store(out_ptr + offs, shifted)
    both = tl.inline_asm_elementwise(
        "{ add.s32 $0, $2, $3; sub.s32 $1, $2, $3; }", "=r,=r,r,r", [x, y], (tl.int32, tl.int32), True, 1
    )
    tl.store(pair_ptr + offs, both[0])
    tl.store(pair_ptr + N + offs, both[1])
    four = tl.load(bytes_ptr + offs)  # four bytes in one register
    tl.store(bytes_ptr + offs, tl.inline_asm_elementwise("not.b32 $0, $1;", "=r,r", [four], tl.int8, True, 4))


@triton.jit
def integer_functions_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, libdevice.clz(x))
    tl.store(out_ptr + N + offs, libdevice.popc(x))
    tl.store(out_ptr + 2 * N + offs, libdevice.brev(x))
    tl.store(out_ptr + 3 * N + offs, libdevice.ffs(x))
    tl.store(out_ptr + 4 * N + offs, libdevice.mulhi(x, y))
    tl.store(out_ptr + 5 * N + offs, libdevice.mul24(x & 0xFFFF, y & 0xFF))
    tl.store(out_ptr + 6 * N + offs, libdevice.hadd(x, y))
    tl.store(out_ptr + 7 * N + offs, libdevice.byte_perm(x, y, tl.full((N,), 0x3175, tl.int32)))


@triton.jit
def to_integer_kernel(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs)
    tl.store(out_ptr + offs, libdevice.float2int_rn(x))
    tl.store(out_ptr + N + offs, libdevice.float2int_rz(x))
    tl.store(out_ptr + 2 * N + offs, libdevice.float2int_rd(x))
    tl.store(out_ptr + 3 * N + offs, libdevice.float2int_ru(x))
    tl.store(out_ptr + 4 * N + offs, libdevice.float_as_int(x))
