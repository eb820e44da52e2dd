"""Product of 8-bit floats by torch._scaled_mm where that takes the call, else of the numbers that they stand for."""

import torch

from kernelmux.backends.torch_ref._conditions import Where, filled
from kernelmux.registry import dtypes
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, Multiple, Multiplies

BLOCK = 128


def plain(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    out, fast = dtypes.parse(out_dtype), accumulation == "fast"
    rows, columns = _aligned(a), _aligned(b.t()).t()  # the only order that cuBLAS takes
    return torch._scaled_mm(rows, columns, scale_a, scale_b, out_dtype=out, use_fast_accum=fast)


def exact(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    out, kinds = dtypes.parse(out_dtype), (scale_a.dim(), scale_b.dim())
    aligned = not any(n % 16 for n in (a.shape[1], b.shape[1])) and a.numel() and b.numel()
    both = {a.dtype, b.dtype} != {torch.float8_e5m2}
    if a.is_cuda and aligned and both and kinds == (0, 0):
        # cuBLAS refuses addresses that are no multiples of 16 bytes
        rows, columns, by_a, by_b = (_aligned(x) for x in (a, b.t(), scale_a, scale_b))
        return torch._scaled_mm(rows, columns.t(), by_a, by_b, out_dtype=out, use_fast_accum=accumulation == "fast")
    return torch.mm(a.double() * _spread(scale_a, a), b.double() * _spread(scale_b, b)).to(out)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    usual = x.dim() < 2 or x.stride(0) == x.shape[1]  # cuBLAS reads the stride of a single row, too
    if usual and x.is_contiguous() and x.data_ptr() % 16 == 0:
        return x
    return torch.empty_like(x, memory_format=torch.contiguous_format).copy_(x)


def _spread(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for axis, length in enumerate(x.shape) if scale.dim() else ():
        if scale.shape[axis] not in (1, length):
            scale = scale.repeat_interleave(BLOCK, axis).narrow(axis, 0, length)
    return scale.double()


SCALES = Where(
    "one scale for all of a, and one for all of b",
    lambda call: call.arguments["scale_a"].dim() == call.arguments["scale_b"].dim() == 0,
    "there is a scale for each line or block",
)
FORMATS = Where(
    "a or b in e4m3",
    lambda call: torch.float8_e4m3fn in (call.arguments["a"].dtype, call.arguments["b"].dtype),
    "both are e5m2",
)

ALIGNED = tuple(Aligned(name) for name in ("a", "b", "scale_a", "scale_b"))

VARIANTS = {
    "plain": Implementation(
        fn=plain,
        idea="torch._scaled_mm",
        requires=(Multiplies("a"), SCALES, FORMATS, Multiple("K", 16), Multiple("N", 16), filled("a", "b"), *ALIGNED),
        layout={"a": "contiguous"},
        arithmetic="mma",
    ),
    # Of the other scales too: on one kind of GPU a call either runs or not, whatever its scales.
    "exact": Implementation(
        fn=exact,
        idea="torch._scaled_mm where it takes the call, else a product in fp64",
        requires=(Multiplies("a"),),
        arithmetic="mma",
    ),
}
