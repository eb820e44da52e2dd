"""Random workloads of an operator, of shapes that users have: `--random N --seed S`.

`random_texts` has the texts of each operator with axes in braces; `AXES` says how each axis is drawn. An axis has one
length in a text, and may follow from others. A text that the spec does not permit, or that takes more memory or work
than a run has, is drawn anew.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from math import ceil, exp, log

import torch

from kernelmux.perf.sweeps.random_texts import OF_TYPE, TEXTS
from kernelmux.registry import dtypes
from kernelmux.registry.cases import Case
from kernelmux.registry.errors import ArgumentError, KernelmuxError
from kernelmux.registry.spec import Call, OpSpec

LARGEST = {"cuda": 2_000_000_000, "cpu": 16_000_000}  # bytes of the inputs and outputs of a call, by device
USUAL_FLOPS, FP32_FLOPS = 1e13, 1e12  # of a call; fp32 is computed in fp32, at a tenth of the rate on an H200
TRIES, SMALLER, LEAST = 30, 0.6, 1e-5  # draws at one scale; the next scale; where it is given up
OFTEN = {torch.bfloat16: 7, torch.float16: 2, torch.float8_e4m3fn: 7}  # times as often as any other dtype

Value = int | str
Draw = Callable[["Axes"], Value]


class Axes(dict[str, Value]):
    """The axes of one text, each drawn when it is first asked for. scale: of the ends of all ranges."""

    def __init__(self, draws: dict[str, Draw], rng: random.Random, scale: float) -> None:
        super().__init__()
        self.draws, self.rng, self.scale = draws, rng, scale

    def __missing__(self, name: str) -> Value:
        self[name] = found = self.draws[name](self)
        return found

    def length(self, name: str) -> int:
        """An axis that is a number."""
        return int(self[name])


def pick(*choices: Draw | Value) -> Draw:
    """One of these, each as likely as the others: a number, a word, or another draw."""

    def drawn(axes: Axes) -> Value:
        choice = axes.rng.choice(choices)
        return choice(axes) if callable(choice) else choice

    return drawn


def between(least: int, most: int, step: int = 1) -> Draw:
    """A multiple of `step` in a range, evenly spread on a logarithmic axis."""

    def drawn(axes: Axes) -> int:
        low = max(step, least * axes.scale)
        high = max(low, most * axes.scale)
        return max(step, round(exp(axes.rng.uniform(log(low), log(high))) / step) * step)

    return drawn


def _part(place: int) -> Draw:
    """A number of the block: its channels in and out, window, stride, padding and dilation."""
    return lambda axes: int(str(axes["block"]).split()[place])


def _way(axes: Axes, side: str) -> int:
    """How far a window can move along a side of an image."""
    return axes.length(side) + 2 * axes.length("pad") - axes.length("hole") * (axes.length("window") - 1) - 1


def _convolutions() -> Iterator[str]:
    """Channels in and out, window, stride, padding, dilation, as ResNets, ConvNeXts and U-Nets have them."""
    yield from ("3 64 7 2 3 1", "3 96 4 4 0 1", "3 128 4 4 0 1", "3 32 3 2 1 1", "3 64 3 1 1 1", "64 21 1 1 0 1")
    for c in (64, 128, 256, 512):  # ResNet: bottlenecks, shortcuts, stages, and with dilation for segmentation
        yield from (f"{c} {c} 3 1 1 1", f"{c} {c} 3 2 1 1", f"{c} {4 * c} 1 1 0 1", f"{4 * c} {c} 1 1 0 1")
        yield from (f"{2 * c} {4 * c} 1 2 0 1", f"{c} {2 * c} 3 2 1 1", f"{c} {c} 3 1 2 2")
    for c in (96, 192, 384, 768):  # ConvNeXt: between stages, products of channels; a wider window
        yield from (f"{c} {2 * c} 2 2 0 1", f"{c} {4 * c} 1 1 0 1", f"{c} {c} 5 1 2 1")
    for c in (32, 64, 128, 256, 320, 512):  # U-Net: down, and after a concatenation; the first one had no padding
        yield from (f"{c} {2 * c} 3 1 1 1", f"{2 * c} {c} 3 1 1 1", f"{c} {c} 3 1 0 1", f"{c} {c} 3 2 1 1")


WIDTHS = (between(2000, 20000), between(2000, 20000, 8), between(2000, 20000, 64))
VOCABULARIES = (between(1000, 256_000), between(1000, 256_000, 64))
POOLS = ("64 64 3 2 1 1", "96 96 2 2 0 1", "128 128 3 2 0 1", "192 192 3 1 1 1", "256 256 5 1 2 1")
AXES: dict[str, Draw] = {
    "rows": pick(between(1, 64), between(65, 1_000_000), between(256, 32768, 64)),
    "few": between(1, 16),
    "hidden": pick(*WIDTHS, *WIDTHS, 2880, 4096, 5120, 11008),
    "width": pick(*WIDTHS, *WIDTHS, 2880, 4096, 5120, 14336),
    "by16": pick(between(2000, 20000, 16), between(2000, 20000, 128), between(2000, 20000)),  # of 8-bit formats
    "any_a": between(50, 5000),
    "any_b": between(50, 5000),
    "any_c": between(50, 5000),
    "vocabulary": pick(*VOCABULARIES, 32000, 50257, 128256, 151936, 256_000),
    "columns": pick(*WIDTHS, *WIDTHS, between(64, 256, 8), between(256, 2000), *VOCABULARIES),
    "axis": pick(0, 1),
    "column": lambda axes: axes.rng.randrange(axes.length("hidden")),
    "elements": between(1000, 500_000_000),
    "groups_a": lambda axes: ceil(axes.length("by16") / 128),  # blocks of scales
    "groups_b": lambda axes: ceil(axes.length("width") / 128),
    "batch": between(1, 64),
    "kv_heads": pick(1, 2, 4, 8, between(1, 16)),
    "heads": lambda axes: axes.length("kv_heads") * int(pick(1, 1, 2, 4, 7, 8)(axes)),
    "queries": pick(between(128, 16384), between(128, 16384, 64)),
    "keys": lambda axes: axes.length("queries") + int(pick(0, between(1, 16384))(axes)),
    "depth": between(64, 256, 8),
    "half": lambda axes: axes.length("depth") // 2,
    "back": between(16, 8192),  # a window of attention
    "cached": between(64, 100_000),
    "slots": pick(16, 16, 32, 64, 128, 256),
    "table": lambda axes: ceil(axes.length("cached") / axes.length("slots")),
    "pages": lambda axes: axes.length("table") * axes.length("batch"),
    "images": between(1, 128),
    "high": pick(7, 14, 28, 56, 112, 224, between(7, 260)),
    "wide": lambda axes: axes["high"] if axes.rng.random() < 0.7 else between(7, 260)(axes),
    "block": pick(*_convolutions()),
    "in": _part(0),
    "out": _part(1),
    "window": _part(2),
    "stride": _part(3),
    "pad": _part(4),
    "hole": _part(5),
    "out_high": lambda axes: _way(axes, "high") // axes.length("stride") + 1,
    "out_wide": lambda axes: _way(axes, "wide") // axes.length("stride") + 1,
    "rest_high": lambda axes: _way(axes, "high") % axes.length("stride"),
    "rest_wide": lambda axes: _way(axes, "wide") % axes.length("stride"),
    "order": pick("", "channels-last"),
    "flag": pick("False", "True"),
    "act": pick("none", "gelu", "silu", "relu"),
    "approximate": pick("none", "tanh"),
    "accumulation": pick("full", "fast"),
    "reduction": pick("mean", "sum"),
    "format": pick("int8", "e4m3"),
}
OWN: dict[str, dict[str, Draw]] = {name: {"block": pick(*POOLS)} for name in ("max_pool2d", "max_pool2d_backward")}


def draw(
    spec: OpSpec, count: int, seed: int, allowed: Sequence[torch.dtype] = (), largest: int = LARGEST["cuda"]
) -> list[tuple[Case, torch.dtype]]:
    """So many different workloads of an operator, each with a dtype; the same for the same seed.

    allowed: dtypes, or none for all of the spec. largest: bytes of the inputs and outputs of a call.
    ArgumentError if there are not so many.
    """
    rng = random.Random(f"{spec.name}/{seed}")
    kinds = [dtype for dtype in spec.dtypes if not allowed or dtype in allowed]
    found: dict[tuple[str, torch.dtype], Case] = {}
    for _ in range(count):
        case, dtype = _one(spec, kinds, rng, largest, found)
        found[case.text, dtype] = case
    return [(case, dtype) for (_, dtype), case in found.items()]


def _one(
    spec: OpSpec,
    kinds: Sequence[torch.dtype],
    rng: random.Random,
    largest: int,
    known: dict[tuple[str, torch.dtype], Case],
) -> tuple[Case, torch.dtype]:
    dtype = rng.choices(kinds, [OFTEN.get(kind, 1) for kind in kinds])[0]
    texts = OF_TYPE.get((spec.name, dtypes.SHORT[dtype]), TEXTS[spec.name])
    scale = 1.0
    while scale > LEAST:
        for _ in range(TRIES):
            axes = Axes(AXES | OWN.get(spec.name, {}), rng, scale)
            case = spec.case(" ".join(rng.choice(texts).format_map(axes).split()))
            if (case.text, dtype) not in known and _fits(spec, case, dtype, largest):
                return case, dtype
        scale *= SMALLER  # where little memory is allowed, lengths come from smaller ranges
    raise ArgumentError(f"--largest: found no further {spec.name} in {dtypes.SHORT[dtype]} of at most {largest} bytes")


def _fits(spec: OpSpec, case: Case, dtype: torch.dtype, largest: int) -> bool:
    """Whether the spec permits the call, and it is neither empty nor too large."""
    try:
        call = spec.hypothetical(case, dtype)
        flops = call.cost.flops
    except KernelmuxError:
        return False
    return 0 < size(call) <= largest and flops <= (FP32_FLOPS if dtype == torch.float32 else USUAL_FLOPS)


def size(call: Call) -> int:
    """Bytes of the inputs and outputs of a call."""
    given = sum(x.numel() * x.element_size() for x in call.arguments.values() if isinstance(x, torch.Tensor))
    made = ((torch.Size(output.shape(call)), output.dtype_of(call)) for output in call.spec.outputs)
    return given + sum(shape.numel() * dtype.itemsize for shape, dtype in made)
