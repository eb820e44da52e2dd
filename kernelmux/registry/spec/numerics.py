"""How far a right result may be from the reference: the bound, computed from what the op and the kernel declare.

    bound = roundings * u_out * |ref| * (1 + 2^-6)          the rounding(s) to the output dtype
          + (8 + tail(h, n) + linear * h) * u_acc * M        accumulation over a chain of h terms of magnitude M; the linear
                                                             term stops growing where sums are promoted
          + 2 * 2^-24 * E                                    what is rounded to fp32 before a function amplifies it
          + 2 * u_operand * M                                operands that the kernel rounds first (tf32)
          + u_in * I                                         intermediates that are rounded to the storage dtype
          + u_in * D                                         those that a variant of torch's operators declares (`Rounding`)
          + what the reference changes by if subnormal inputs are 0, for operators that may flush them
          + smallest number of the output dtype              2^-126 at least for operators that may flush subnormal
                                                             numbers; half the smallest fp32 one per further term

Roundings, M, E, I and the length of the chain belong to the operator (`ErrorModel`); u_acc, u_operand, linear, D and
whether the chain is sequential belong to the arithmetic of the implementation (`Arithmetic`); n is the number of outputs
(`tail`). The constants were calibrated against torch's kernels on an H200 (docs/conformance.md). A result passes iff
max |out - ref| / bound <= 1 and NaN and Inf stand in exactly the same places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kernelmux.registry.dtypes import UNIT, smallest
from kernelmux.registry.errors import SpecError

Tensor = torch.Tensor


@dataclass(frozen=True)
class Rounding:
    """An intermediate that an implementation rounds to the storage dtype, where the operator asks for one rounding.

    what: the intermediate, as in "silu(a)". magnitude: how far the output moves if it changes by its own size, from the
    float64 arguments, shaped like the output. sensitivity: how far the output moves if it changes by 1: below the smallest
    normal number rounding is an absolute error. output: the output that it arrives in, "" for all.
    """

    what: str
    magnitude: Callable[..., Tensor]
    sensitivity: Callable[..., Tensor]
    output: str = ""


@dataclass(frozen=True)
class Arithmetic:
    """How an implementation accumulates.

    unit: unit roundoff of one accumulation. sequential: one long chain instead of partial sums of 16 terms or more.
    linear: bias per term, for accumulators that truncate. operand: unit roundoff to which operands are rounded first.
    promoted: terms after which a sum goes on in fp32, so that the bias grows no further; 0: never. rounds: intermediates
    that it rounds to the storage dtype beside those of the operator.
    """

    name: str
    unit: float
    sequential: bool = False
    linear: float = 0.0
    operand: float = 0.0
    promoted: int = 0
    rounds: tuple[Rounding, ...] = ()

    def chain(self, terms: int) -> float:
        """Length of the longest sequential accumulation over `terms` terms."""
        return float(terms) if self.sequential else terms / 16 + 5

    def bias(self, terms: int) -> float:
        """Units that truncation adds up to: of every run of terms up to a promotion, relative to its own magnitude."""
        return self.linear * self.chain(min(terms, self.promoted or terms))


FP32 = Arithmetic("fp32", 2.0**-24)
FP32_SEQUENTIAL = Arithmetic("fp32_sequential", 2.0**-24, sequential=True)
# A tensor core cuts its 16 products and the accumulator to multiples of 2^-25 of the largest of them, adds them, and cuts
# the sum to 24 digits (measured bit by bit on an H200, docs/emulator.md). On positive data all cuts point the same way: 16
# halves of 2^-25 and half of 2^-23 a step, 2.5 units of 2^-23 (2.2 with one large first product, fp16, K = 4096).
MMA = Arithmetic("mma", 2.0**-23, linear=2.5)
MMA_16 = replace(MMA, name="mma_16")  # also where integers of 8 bits become operands of 16 first, which is exact
# Operands keep 10 bits after the point. cuBLAS rounds them to nearest (2^-11); the tensor core itself truncates what it
# is given, and Triton gives it fp32 as it is (1.9 times the bound with 2^-11 at K = 2). A step has 8 products: twice 1.5.
TF32 = Arithmetic("tf32", 2.0**-23, linear=3.0, operand=2.0**-10)

# Of fp8 a tensor core cuts 32 products and the sum so far to multiples of 2^-13 of the largest of them (docs/emulator.md).
# A product loses half of that, a unit of 2^-14, or less: 16 for 16 products, and 130 for the 128 up to a promotion.
FP8_MMA = Arithmetic("fp8_mma", 2.0**-14, linear=10.0, promoted=128)
FP8_FAST = Arithmetic("fp8_fast", 2.0**-14, linear=16.0)
INT32 = Arithmetic("int32", 0.0)  # integers add up exactly

# How often a sound kernel may exceed the bound anywhere in one tensor.
CHANCE = 2.0**-20

ARITHMETICS = {a.name: a for a in (FP32, FP32_SEQUENTIAL, MMA, MMA_16, TF32, FP8_MMA, FP8_FAST, INT32)}
# What "mma" is for operands of other formats than 16 bits; fp32 asks for tf32 by name.
MMA_OF = {torch.float8_e4m3fn: FP8_MMA, torch.float8_e5m2: FP8_MMA, torch.int8: INT32}


def arithmetic(name: str, dtype: torch.dtype, scalars: Mapping[str, Any]) -> Arithmetic:
    """The arithmetic of a call, of whose operands the leading one has this dtype.

    A tensor-core kernel given fp32 runs as tf32, or as plain fp32 for precision="ieee"; fp8 and int8 have others. With
    accumulation="fast" sums of fp8 are never promoted.
    """
    if name not in ARITHMETICS:
        raise SpecError(f"arithmetic: expected one of {', '.join(ARITHMETICS)}, got {name!r}")
    if name == "mma" and dtype == torch.float32:
        return TF32 if scalars.get("precision") == "tf32" else FP32_SEQUENTIAL
    found = MMA_OF.get(dtype, MMA) if name == "mma" else ARITHMETICS[name]
    return FP8_FAST if found is FP8_MMA and scalars.get("accumulation") == "fast" else found


def tail(h: float, n: int, correlated: bool = False) -> float:
    """How many units of u * M the h roundings of a chain add up to at most, in any of n outputs, but for `CHANCE`.

    Rounding k of a chain is off by at most u * |S_k|, with S_k the sum so far and |S_k| <= M. Spread evenly over that
    range and independent, such errors add up to a sub-Gaussian sum of variance u^2 * (|S_1|^2 + ... + |S_h|^2) / 3, at
    most (u * M)^2 * h / 3. It exceeds t standard deviations with a chance of at most 2 * exp(-t^2 / 2), and in one of n
    outputs with n times that: t = sqrt(2 * ln(2 * n / CHANCE)). No chain can be off by more than h roundings.

    correlated: the terms repeat one another (an expanded input), so that all roundings may point the same way: h.
    """
    return h if correlated else min(h, math.sqrt(2 * math.log(2 * max(n, 1) / CHANCE) * h / 3))


def repeats(x: Tensor) -> bool:
    """Whether x is expanded, so that elements along an axis are one and the same."""
    return any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True))


@dataclass(frozen=True)
class ErrorModel:
    """What the operator itself contributes to the error of one output.

    magnitude: M, from the float64 arguments, shaped like the output (for sums: the reference on absolute values).
    terms: number of terms that one output element accumulates, from the axes. roundings: to the output dtype.
    amplified: E, how much of the relative error of what is rounded to fp32 before a function amplifies it (scale * x
    before exp) arrives in the output, or None. intermediate: I, the magnitude of what is rounded once to the storage
    dtype on the way, or None. sensitivity: S, by how much the output moves if all of those intermediates move by 1, or
    None: below the smallest normal number rounding is an absolute error. flushes: subnormal numbers of fp32, inputs and
    results, may become zero. chosen: an output is the number of one of the inputs, found by comparisons, without a bound;
    which of two zeros it is, and the bits of a NaN, are not settled.
    """

    magnitude: Callable[..., Tensor]
    terms: Callable[[Mapping[str, Any]], int] = lambda axes: 1
    roundings: int = 1
    amplified: Callable[..., Tensor] | None = None
    intermediate: Callable[..., Tensor] | None = None
    sensitivity: Callable[..., Tensor] | None = None
    flushes: bool = False
    chosen: bool = False


EQUAL = ErrorModel(magnitude=lambda *arguments: torch.zeros(()), roundings=0)  # of what is moved, counted or found
CHOSEN = replace(EQUAL, chosen=True)


@dataclass(frozen=True)
class Bound:
    """The bound of one output, term by term; each tensor is float64 and shaped like the output."""

    rounding: Tensor
    accumulation: Tensor
    amplified: Tensor
    operands: Tensor
    intermediate: Tensor
    declared: Tensor
    flushed: Tensor
    floor: float
    formula: str

    @property
    def total(self) -> Tensor:
        return sum((getattr(self, term) for term in TERMS), torch.zeros_like(self.rounding)) + self.floor

    def at(self, index: tuple[int, ...]) -> str:
        """The bound at one element, spelt out."""
        parts = {term: getattr(self, term)[index].item() for term in TERMS} | {"floor": self.floor}
        terms = " + ".join(f"{value:.3g} {name}" for name, value in parts.items() if value)
        return f"{self.total[index].item():.3g} = {terms}   [{self.formula}]"

    def settled(self) -> Bound:
        """The bound in which a term that is NaN counts as nothing."""
        return replace(self, **{term: getattr(self, term).nan_to_num(nan=0.0) for term in TERMS})


# The terms of a bound by element, in the order of the formula.
TERMS = ("rounding", "accumulation", "amplified", "operands", "intermediate", "declared", "flushed")


def bound(
    model: ErrorModel,
    how: Arithmetic,
    ref: Tensor,
    out_dtype: torch.dtype,
    in_dtype: torch.dtype,
    arguments: tuple[Any, ...],
    axes: Mapping[str, Any],
    correlated: bool = False,
) -> Bound:
    """The bound for one output of a call; `arguments` are the float64 arguments, `ref` the float64 reference.

    correlated: the terms of a sum repeat one another, as along an expanded axis; see `tail`.
    """

    def term(magnitude: Callable[..., Tensor] | None, unit: float) -> Tensor:
        return unit * magnitude(*arguments).to(ref).expand_as(ref) if magnitude else torch.zeros_like(ref)

    u_out, terms = UNIT[out_dtype], model.terms(axes)
    storage = in_dtype if in_dtype in UNIT else out_dtype  # integers hold no intermediate
    u, least = UNIT[storage], smallest(storage, model.flushes)
    h = how.chain(terms)
    factor = 8 + tail(h, ref.numel(), correlated) + how.bias(terms)
    m = term(model.magnitude, 1.0)
    return Bound(
        rounding=model.roundings * u_out * ref.abs() * (1 + 2.0**-6),
        accumulation=factor * how.unit * m,
        amplified=term(model.amplified, 2 * UNIT[torch.float32]),
        operands=2 * how.operand * m,
        intermediate=term(model.intermediate, UNIT.get(in_dtype, 0.0))
        + term(model.sensitivity, smallest(in_dtype, model.flushes) if model.sensitivity else 0.0),
        declared=sum((term(r.magnitude, u) + term(r.sensitivity, least) for r in how.rounds), torch.zeros_like(ref)),
        flushed=torch.zeros_like(ref),
        floor=_floor(model, terms, out_dtype),
        formula=f"{model.roundings} rounding(s); {how.name}: h = {h:g} of {terms} terms, factor {factor:.3g}{_rounds(how)}",
    )


def _rounds(how: Arithmetic) -> str:
    """What the variant says it rounds on the way, for the derivation of a bound."""
    names = ", ".join(r.what for r in how.rounds)
    return f"; declared: rounds {names} to the storage dtype" if names else ""


def _floor(model: ErrorModel, terms: int, dtype: torch.dtype) -> float:
    """What every element may be off by; nothing where values are only moved.

    Of subnormal products each is rounded by up to half the smallest number of fp32, whatever they add up to. An
    intermediate that is rounded to the storage dtype has fewer digits below the smallest normal number of that.
    """
    if not model.roundings:
        return 0.0
    if model.intermediate:
        return float(torch.finfo(dtype).smallest_normal)
    return smallest(dtype, flushed=model.flushes) + (terms * smallest(torch.float32) / 2 if terms > 1 else 0.0)


@dataclass(frozen=True)
class Comparison:
    """A result against the reference: `budget` is the largest share of the bound in use (inf: wrong pattern)."""

    budget: float
    index: tuple[int, ...]
    wrong: Tensor

    @property
    def passed(self) -> bool:
        return self.budget <= 1.0


def compare(out: Tensor, ref: Tensor, limit: Tensor) -> Comparison:
    """Judge `out` (any float dtype) against float64 `ref` with the elementwise bound `limit`.

    A reference beyond the largest finite number of the output dtype must come out as the infinity of its sign; within
    the bound of that limit either is right, and where the bound reaches beyond the range on the other side, the other
    infinity too. NaN must be NaN, and nothing else may be.
    """
    got = out.to(torch.float64)
    if got.numel() == 0:
        return Comparison(0.0, (), torch.zeros_like(got, dtype=torch.bool))
    largest = float(torch.finfo(out.dtype).max)
    over = ref.abs() > largest
    want = torch.where(over, torch.copysign(torch.full_like(ref, math.inf), ref), ref)
    edge = torch.isfinite(ref) & ((ref.abs() - largest).abs() <= limit)
    limit = limit.clamp(min=torch.finfo(torch.float64).tiny)  # of 0, where only equality passes
    special = ~torch.isfinite(want) | ~torch.isfinite(got)
    same = (want == got) | (want.isnan() & got.isnan())
    finite = ((got - ref).abs() / limit).nan_to_num(nan=math.inf, posinf=math.inf)
    used = torch.where(special, torch.where(same, 0.0, math.inf), finite)
    either = (got == torch.copysign(torch.full_like(ref, math.inf), ref)) | ((got - ref).abs() <= limit)
    either |= got.isinf() & (limit - ref.abs() >= largest)
    used = torch.where(edge & either, 0.0, used)
    flat = int(used.flatten().argmax())
    index = tuple(map(int, np.unravel_index(flat, used.shape)))  # torch's imports sympy
    return Comparison(float(used.flatten()[flat]), index, used > 1.0)


def ulps(got: float, want: float, dtype: torch.dtype) -> float:
    """Distance in units in the last place of `want` in `dtype`."""
    if not (math.isfinite(got) and math.isfinite(want)):
        return 0.0 if got == want else math.inf
    exponent = math.frexp(want)[1] if want else -(10**6)
    return abs(got - want) / max(2.0**exponent * UNIT[dtype], smallest(dtype))
