"""Convolution by torch.nn.functional.conv2d; where torch's flags allow fp32 less than its precision, not by those."""

from typing import Any

import torch
import torch.nn.functional as F

from kernelmux.backends.torch_ref._conditions import USUAL, at_most, filled
from kernelmux.backends.torch_ref._zeros import zeros
from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding
from kernelmux.registry.spec.sliding_windows import Pair, windows
from kernelmux.registry.util.memory_format import format_of, fresh

Maybe = torch.Tensor | None
MOST = 2**31 - 1  # elements of a weight: cuDNN 9 reads outside of one that has more
_precision: Any = torch._C._get_fp32_precision_getter


def plain(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    return fresh(F.conv2d(x, weight, bias, stride, padding, dilation), format_of(x))


def exact(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    if x.numel() and weight.numel():
        y = convolution(x, weight, bias, stride, padding, dilation)
    else:
        y = _of_nothing(x, weight, bias, windows(weight.shape, stride, padding, dilation))
    return fresh(y, format_of(x))


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair, *rest: Pair
) -> torch.Tensor:
    """torch's convolution; transposed if `rest` is given, its output padding."""
    if weight.numel() > MOST and not rest:
        parts = zip(weight.chunk(2), [None] * 2 if bias is None else bias.chunk(2), strict=True)
        return torch.cat([convolution(x, *part, stride, padding, dilation) for part in parts], 1)
    if through_single(x) or (bias is not None and x.dtype.itemsize == 2):  # cuDNN rounds before it adds a bias
        single = (t if t is None else t.float() for t in (x, weight, bias))
        return convolution(*single, stride, padding, dilation, *rest).to(x.dtype)  # type: ignore[arg-type]
    if coarse(x):
        if not x.is_cuda:
            double = (t if t is None else t.double() for t in (x, weight, bias))
            return convolution(*double, stride, padding, dilation, *rest).to(x.dtype)  # type: ignore[arg-type]
        flags = (False, False, True, False)  # benchmark, deterministic, cuDNN, tf32
        around = (stride, padding, dilation, bool(rest), rest[0] if rest else (0, 0), 1)
        return torch.ops.aten._convolution(x, weight, bias, *around, *flags)  # type: ignore[no-any-return]
    if rest:
        return F.conv_transpose2d(x, weight, bias, stride, padding, rest[0], 1, dilation)
    return F.conv2d(x, weight, bias, stride, padding, dilation)


def through_single(x: torch.Tensor) -> bool:
    """Whether it is halves on a CPU, some of which multiply them in their own way."""
    return x.dtype.itemsize == 2 and not x.is_cuda


def coarse(x: torch.Tensor) -> bool:
    """Whether torch's flag lets convolutions in fp32 be less precise than that, as by default on a GPU."""
    return x.dtype == torch.float32 and _precision("cuda" if x.is_cuda else "mkldnn", "conv") not in ("none", "ieee")


def _of_nothing(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, over: Any) -> torch.Tensor:
    """Sums without terms, which torch does not take."""
    places = (o.places(n) for o, n in zip(over, x.shape[2:], strict=True))
    y = zeros((len(x), len(weight), *places), x, weight)
    return y if bias is None else y + bias[:, None, None]


def _sum(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    if bias is None or not (x.numel() and weight.numel()):
        return x.new_zeros(())
    return F.conv2d(x, weight, None, stride, padding, dilation).abs()


def _one(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *window: Pair) -> torch.Tensor:
    return torch.full((), bias is not None, dtype=x.dtype)


SUM = Rounding("the sum, to which a bias is added", _sum, _one)
# In fp32 a flag allows TF32 on a GPU by default, which the spec does not.
NEEDS = (USUAL, filled("x", "weight"), at_most(MOST, "weight"))

VARIANTS = {
    "plain": Implementation(
        fn=plain, idea="torch.nn.functional.conv2d", requires=NEEDS, arithmetic="mma", rounds=(SUM,)
    ),
    "exact": Implementation(
        fn=exact, idea="torch.nn.functional.conv2d, in fp32 where it would round before a bias", arithmetic="mma"
    ),
}
