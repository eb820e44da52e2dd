"""Rows of numbers in 8 bits each, with one scale per row."""

from __future__ import annotations

import torch

from kernelmux.registry import dtypes
from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import EQUAL
from kernelmux.registry.spec import BatchInvariant, Call, NoGradient, OpSpec, Output, Scalar, Tensor

FORMATS = ("int8", "e4m3", "e5m2")
LARGEST = {"int8": 127.0, "e4m3": 448.0, "e5m2": 57344.0}
LEAST = {"e4m3": 2.0**-9, "e5m2": 2.0**-16}  # the smallest positive number, which is the step of all subnormal ones
DIGITS = {"e4m3": 3, "e5m2": 2}  # after the point


def nearest(x: torch.Tensor, format: str) -> torch.Tensor:
    """The number of an 8-bit float that is nearest to x, of two the even one, at most the largest."""
    _, exponent = torch.frexp(x)
    step = torch.ldexp(torch.ones_like(x), exponent - 1 - DIGITS[format]).clamp(min=LEAST[format])
    return (torch.round(x / step) * step).clamp(-LARGEST[format], LARGEST[format])


def fp32(x: torch.Tensor) -> torch.Tensor:
    """Rounded once to fp32, still in float64."""
    return x.to(torch.float32).to(torch.float64)


def reference(x: torch.Tensor, format: str) -> tuple[torch.Tensor, torch.Tensor]:
    largest = torch.cat([x.abs(), torch.zeros_like(x[:, :1]) if x.shape[1] else x.new_zeros(len(x), 1)], 1).amax(1)
    scale = fp32(largest / LARGEST[format])
    quotient = torch.where(scale[:, None] == 0, 0.0, fp32(x / scale[:, None]))
    if format == "int8":
        return torch.round(quotient).nan_to_num(nan=0.0).clamp(-128, 127).to(torch.int8), scale
    return torch.where(quotient.isnan(), quotient, nearest(quotient.nan_to_num(nan=0.0), format)), scale


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Numbers of the format and those half-way between two of them, in rows whose scale is a power of two.

    In fp32 every third row has the smallest positive number for its scale, rounded down, and numbers beyond the range.
    """
    (m, n), format = case.shapes["x"], case.scalars.get("format", FORMATS[0])
    numbers = positive(format)
    numbers = torch.cat([numbers, (numbers[1:] + numbers[:-1]) / 2])
    signs = 2 * torch.randint(0, 2, (m, n), generator=rng) - 1
    x = numbers[torch.randint(0, len(numbers), (m, n), generator=rng)] * signs
    x[:, :1] = LARGEST[format]
    x = torch.ldexp(x, -(torch.arange(m)[:, None] % 3))
    if dtype == torch.float32:
        beyond = int(1.49 * LARGEST[format])
        tiny = torch.randint(-beyond, beyond + 1, (m, n), generator=rng).double()
        tiny[:, :1] = -beyond
        x[2::3] = torch.ldexp(tiny, torch.tensor(-149))[2::3]
    return {"x": x.to(dtype)}


def positive(format: str) -> torch.Tensor:
    """The numbers of a format from 0 to the largest."""
    if format == "int8":
        return torch.arange(128, dtype=torch.float64)
    numbers = torch.arange(128, dtype=torch.uint8).view(dtypes.parse(format)).to(torch.float64)
    return numbers[numbers.isfinite()]


def cost(call: Call) -> Cost:
    """Two operations for each element: a comparison and a division."""
    (m, n), size = call.arguments["x"].shape, call.arguments["x"].element_size()
    return Cost(bytes=m * n * (size + 1) + 4 * m, flops=2 * m * n)


HALF, BF16, SINGLE = (torch.float16,), (torch.bfloat16,), (torch.float32,)

SPEC = OpSpec(
    name="quantize_rowwise",
    version=1,
    family="Products",
    summary="Rows in 8 bits per number, each with the scale that maps its largest magnitude to the largest of the format.",
    math="scale = max|x| / largest and q = x / scale along each row; in fp32, then to the nearest number, ties to even",
    inputs=(
        Tensor("x", "M N"),
        Scalar(
            "format",
            str,
            "int8",
            choices=FORMATS,
            trials=("e4m3", "e5m2"),
            doc="largest number: int8 127, e4m3 448, e5m2 57344",
        ),
    ),
    outputs=(
        Output(
            "q",
            like="x",
            dtype=lambda call: dtypes.parse(call.arguments["format"]),
            doc="within the range of the format; 0 where the scale is 0, and for the NaN of a row that has one in int8",
        ),
        Output(
            "scale",
            like="x",
            dims="M",
            dtype=torch.float32,
            doc="0 for a row of zeros, or of numbers so small that it rounds to 0; inf or NaN for a row that has one",
        ),
    ),
    reference=reference,
    error=(EQUAL, EQUAL),
    exact=exact,
    cases=(
        Case("x=4x100", tier="smoke"),
        Case("x=4x100 format=e4m3", tier="smoke"),
        Case("x=4x100 format=e5m2", tier="smoke"),
        Case("x=1x1"),
        Case("x=48x48 format=e5m2"),
        Case("x=37x257", inputs="wide"),
        Case("x=37x1000 format=e4m3", inputs="wide"),
        Case("x=6x515 format=e5m2", inputs="wide"),
        Case("x=9x64", inputs="gaps"),
        Case("x=9x72 format=e4m3", inputs="gaps", dtypes=BF16),
        Case("x=5x48", inputs="tiny", dtypes=(*SINGLE, *BF16)),
        Case("x=5x47 format=e4m3", inputs="tiny", dtypes=(*SINGLE, *BF16)),
        Case("x=5x49 format=e5m2", inputs="tiny", dtypes=(*SINGLE, *BF16)),
        Case("x=17x40 format=e4m3", inputs="vast", dtypes=(*SINGLE, *BF16)),
        Case("x=3x5120", dtypes=BF16),
        Case("x=2x16387 format=e4m3", dtypes=BF16),
        Case("x=2x16387", dtypes=SINGLE),
        Case("x=1x40008", dtypes=HALF),
        Case("x=0x8"),
        Case("x=8x0 format=e4m3"),
        Case("x=4099x4099", tier="full"),
        Case("x=70000x33 format=e4m3", tier="full"),
        Case("x=3x262147 format=e5m2", tier="full"),
        Case("x=2x300000", tier="full"),
    ),
    workloads=(
        Case("x=8192x8192"),
        Case("x=8192x8192 format=e4m3"),
        Case("x=16384x5120 format=e4m3", dtypes=BF16),
        Case("x=1024x131072", dtypes=BF16),
        Case("x=8x4096 format=e4m3", dtypes=BF16),
    ),
    cost=cost,
    gradient=NoGradient(
        "a step function has the derivative 0; what stands in for it is the choice of a training method"
    ),
    properties=(BatchInvariant(("M",)),),
)
