"""Values around the breakpoints of a piecewise formula (`Tensor.breakpoints`): a branch that lies elsewhere shows there.

Around each breakpoint stand the nearest number of the dtype, its neighbours up to 8 ulps away, and on both sides the
numbers at distances of 2^k ulps up to the size of the breakpoint: of any misplaced branch one of them lies on the wrong
side, at least half as far from the breakpoint as the branch does. Each stands in each lane of an access of 16 bytes. Where
the formulas of both sides agree within the bound of the spec nothing can tell where the branch is: hardswish has no jump,
and in fp32 a branch at 3.000004 in place of 3 is within its bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from kernelmux.conformance.inputs import generate
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging.probe import Failed
from kernelmux.registry.cases import Case
from kernelmux.registry.dtypes import UNIT
from kernelmux.registry.errors import SpecError
from kernelmux.registry.spec import Tensor, numerics

if TYPE_CHECKING:
    from kernelmux.conformance.judging.probe import Probe

NEIGHBOURS = 8  # ulps on both sides of which none is left out
ACCESS_BYTES = 16  # of the widest access of a thread
WARP = 32  # elements that a length is made a multiple of for variants that take no others


def ask(probe: Probe) -> None:
    """Judge the variant around every breakpoint of the spec, in every dtype."""
    for item in (t for t in probe.spec.tensors if t.breakpoints):
        for turn, dtype in enumerate(d for d in probe.options.dtypes_of(probe.spec) if d.is_floating_point):
            for base in _bases(probe, item, dtype, turn):
                for trial in around(base, item):
                    with probe.judge(trial) as judge:
                        outputs = judge.call()
                        try:
                            judge.accurate(outputs)
                        except Failed as failure:
                            limits = trial.bounds(probe.arithmetics(trial))
                            failure.args = (f"{failure}{_where(trial, item.name, outputs, limits)}",)
                            raise


def around(base: Trial, item: Tensor, apart: bool = False) -> Iterator[Trial]:
    """The call with the values around each breakpoint of a tensor in all of its elements; what the dtype lacks stays.

    apart: the breakpoint itself is left out, where a formula has no derivative.
    """
    x = base.tensors.get(item.name)
    if x is None or not x.is_floating_point():
        return
    for number, point in enumerate(_points(base, item), 1):
        told = f"{float(point):.9g}" if point.dim() == 0 else f"number {number}"
        period = _period(x.dtype)
        for start in range(0, period, x.numel()) if x.numel() < period else (0,):
            turn = (torch.arange(x.numel(), device=x.device).view(x.shape) + start) % period
            at = point.to(x.device).expand(x.shape)
            made = values(at, turn, x.dtype)
            made = made.masked_fill(made == at, math.nan) if apart else made
            made = torch.where(made.isfinite(), made, x.double()).to(x.dtype)
            note = f"{item.name} around its breakpoint {told}"
            yield base.changed(note, **{item.name: item.domain.lawful(made, base.call)})


def _points(base: Trial, item: Tensor) -> list[torch.Tensor]:
    """The breakpoints of a call in float64, each a number or a tensor that broadcasts to the argument."""
    given = item.breakpoints(base.call.exact) if callable(item.breakpoints) else item.breakpoints
    try:
        points = [torch.as_tensor(point, dtype=torch.float64) for point in given]
        shape = base.tensors[item.name].shape
        if all(point.expand(shape).shape == shape for point in points):
            return points
    except (TypeError, ValueError, RuntimeError):
        pass
    raise SpecError(
        f"{base.spec.name}: {item.name}: breakpoints: expected numbers, or tensors that broadcast to {item.name},"
        f" got {given!r}"
    )


# --- which values ----------------------------------------------------------------------------------------------


def steps(dtype: torch.dtype) -> torch.Tensor:
    """The distances from a breakpoint in ulps, from 0 on, of both signs; half an ulp is one below a power of 2."""
    near = [k / 2 for k in range(1, 2 * NEIGHBOURS + 1)]
    far = [2.0**k for k in range(int(math.log2(NEIGHBOURS)) + 1, _digits(dtype) + 1)]
    return torch.tensor([0.0, *(sign * d for d in (*near, *far) for sign in (1, -1))], dtype=torch.float64)


def _digits(dtype: torch.dtype) -> int:
    return round(-math.log2(UNIT[dtype]))


def _period(dtype: torch.dtype) -> int:
    """How many values there are: an odd number, so that each comes to every lane."""
    return len(steps(dtype))


def values(point: torch.Tensor, turn: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The value number `turn` around each point, a number of the dtype in float64; not finite where there is none to ask.

    Kernels hold a point in fp32. Where it is no number of fp32, the one that they hold is not asked: either side is right.
    """
    nearest, chosen = point.to(dtype).double(), steps(dtype).to(point.device)[turn]
    ulp = torch.ldexp(torch.ones_like(nearest), torch.frexp(nearest).exponent - _digits(dtype))
    # Around 0 there is no ulp: from the smallest normal number up to 1, as many of each sign, evenly by their exponents.
    share = ((turn + 1) // 2 - 1) / (_period(dtype) // 2 - 1)
    least = torch.sign(chosen) * torch.exp2((1 - share.double()) * math.log2(torch.finfo(dtype).smallest_normal))
    found = torch.where(nearest == 0, least, nearest + chosen * ulp).to(dtype).double()
    single = point.float().double()
    return found.masked_fill((found == single) & (point != single), math.nan)


# --- in which calls ------------------------------------------------------------------------------------------------


def _bases(probe: Probe, item: Tensor, dtype: torch.dtype, turn: int) -> Iterator[Trial]:
    """A call in which the tensor has room for each value in each lane, or the nearest to it that the variant takes.

    Where the breakpoints follow from scalars, with other values of these as well.
    """
    cases = [c for c in _cases(probe, item, dtype) if generate.permitted(probe.spec, c, dtype)]
    base = next((t for t in (probe.make(c, dtype) for c in cases) if not probe.reasons(t)), None)
    if base is None:
        for case in cases[:1]:
            probe.able(probe.make(case, dtype))  # which records why not
        return
    yield base
    if callable(item.breakpoints) and not probe.options.cases:
        other = generate.varied(probe.spec, probe.spec.case(base.text), turn + probe.options.seed)
        if other.text != base.text and generate.permitted(probe.spec, other, dtype):
            made = probe.make(other, dtype)
            yield from () if probe.reasons(made) else (made,)


def _cases(probe: Probe, item: Tensor, dtype: torch.dtype) -> Iterator[Case]:
    """Those that are asked for; else ones of the right size, then those of the spec, the nearest in size first."""
    lanes = ACCESS_BYTES // dtype.itemsize
    wanted = _period(dtype) * lanes + lanes - 1  # some elements lie behind the last whole access
    allowed = [c for c in probe.small_cases(16) if dtype in probe.options.dtypes_of(probe.spec, c)]
    if not probe.options.cases:
        for multiple in (1, WARP):
            flat = any(t.flat for t in probe.spec.tensors)
            axes = [d for d in item.forms[0] if not d.isdigit() and (flat or d != "...")]
            length = math.ceil(wanted ** (1 / len(axes)) / multiple) * multiple if axes else 1
            yield generate.case_of_lengths(
                probe.spec, dict.fromkeys(generate.letters(probe.spec), length), (length,) * flat
            )
    yield from sorted(allowed, key=lambda c: abs(torch.Size(c.shapes.get(item.name, ())).numel() - wanted))


# --- what is said ----------------------------------------------------------------------------------------------------


def _where(
    trial: Trial, name: str, outputs: tuple[torch.Tensor, ...], limits: tuple[numerics.Bound | None, ...]
) -> str:
    """The values of the tensor where an output of its shape is wrong."""
    x = trial.tensors[name]
    for got, ref, limit in zip(outputs, trial.references, limits, strict=True):
        if got.shape == ref.shape == x.shape and limit is not None:
            if bool((wrong := numerics.compare(got, ref, limit.total).wrong).any()):
                found = x[wrong].double()
                return f"\n  wrong for {name} from {found.min().item():.9g} to {found.max().item():.9g}"
    return ""
