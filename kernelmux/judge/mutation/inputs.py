"""Calls of a search for an input that shows a kernel wrong: drawn at random, from a seed and a number each.

Half of them have any lengths; in half one axis or two have a length at, or beside, an integer of the source, the changed
line's first. Numbers are ordinary, large, special or few; tensors lie in any order, and calls come twice in one memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from kernelmux.conformance.inputs import generate, special_numbers
from kernelmux.conformance.inputs.layouts import LAYOUTS
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging.probe import Probe
from kernelmux.registry.cases import Case
from kernelmux.registry.conditions import Multiple
from kernelmux.registry.spec import SPECIAL, Axis, OpSpec, Scalar

ORDINARY = (16, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 200, 255, 256, 257, 320, 511, 512, 513)
LONG = (640, 768, 1000, 1023, 1024, 1025, 1536, 2048, 2049, 4096, 5000, 20001, 65536)
DIVISORS = (1, 2, 3, 4, 5, 8, 16, 32)
SHORT = (1, 2, 3, 4, 5, 6, 7, 9)
ELEMENTS = (2**11, 2**14, 2**17)  # of a tensor: of early, later and the last calls
FLOPS = 2**23  # of a call, at most: the emulator runs some 2^20 a second
DRAWN = 5  # calls of any lengths, of which one is asked: they differ in kind
DRAWS = 40  # calls drawn for one that the variant takes
NORMAL, LARGE, SPECIALS, FEW = "normal", "large", "special", "few values"
KINDS = (NORMAL, NORMAL, LARGE, SPECIALS, NORMAL, FEW)


@dataclass(frozen=True)
class SearchCall:
    """A call, and how it is asked. guarded: in poisoned memory; again: what follows in the same memory ("" or a way)."""

    trial: Trial
    case: Case
    guarded: bool
    again: bool
    special: bool

    @property
    def text(self) -> str:
        """What a report says of it."""
        parts = [self.trial.text, str(self.trial.dtype).removeprefix("torch."), self.trial.note]
        return ", ".join(filter(None, [*parts, "and again in the same memory" if self.again else ""]))


def sizes(numbers: Sequence[int], constants: Sequence[int]) -> list[int]:
    """Lengths that may tell: at the numbers of a changed line, and at other constants of its source."""
    found: dict[int, None] = {}
    for n in numbers:
        found |= dict.fromkeys((n, n + 1, n - 1, 2 * n, n // 2))
    for n in constants:
        found |= dict.fromkeys((n, n + 1, n - 1))
    return [n for n in found if 1 < n <= ELEMENTS[-1]]


def call(probe: Probe, seed: str, turn: int, turns: int, own: Sequence[int]) -> SearchCall | None:
    """The call of a turn, or None where none of those that were drawn fits. own: `sizes`."""
    draws = random.Random(f"{seed}/{turn}")
    elements = ELEMENTS[min(len(ELEMENTS) - 1, turn * len(ELEMENTS) // turns)]
    if turn % 2 == 0:
        number = draws.getrandbits(31)
        several = generate.cases(probe.spec, probe.implementation.requires, DRAWN, elements, number)
        found = next(islice(several, draws.randrange(DRAWN), None), None)
    else:
        found = _of_sizes(probe, draws, elements, own)
    if found is None or not found[1]:
        return None
    case, able = found
    trial = probe.make(case, draws.choice(able), draws.getrandbits(31))
    kind = KINDS[draws.randrange(len(KINDS))]
    trial = _valued(trial, kind, draws)
    trial = _laid_out(trial, draws) if draws.random() < 0.35 else trial
    if probe.reasons(trial):
        return None
    return SearchCall(trial, case, draws.random() < 0.5, draws.random() < 0.4, kind == SPECIALS)


def _of_sizes(
    probe: Probe, draws: random.Random, elements: int, own: Sequence[int]
) -> tuple[Case, list[torch.dtype]] | None:
    spec, requires = probe.spec, probe.implementation.requires
    names = generate.letters(spec)
    anywhere = any(t.any_rank for t in spec.tensors)
    for _ in range(DRAWS):
        axes = {d: _short(d, probe, draws) for d in names}
        lead = tuple(draws.choice(SHORT) for _ in range(draws.randrange(1, 4))) if anywhere else ()
        places = [*names, *(["..."] if anywhere else [])]
        chosen = draws.sample(places, k=min(len(places), draws.choice((1, 1, 2))))
        for name, length in zip(chosen, _lengths(len(chosen), own, draws), strict=True):
            if name == "...":
                place = draws.choice((0, -1)) % len(lead)
                lead = (*lead[:place], length, *lead[place + 1 :])
            else:
                factor = next((c.factor for c in requires if isinstance(c, Multiple) and c.name == name), 1)
                axes[name] = max(1, length // factor) * factor
        case = _with_numbers(spec, generate.refitted(spec, generate.case_of_lengths(spec, axes, lead)), draws)
        calls = {d: made for d in spec.dtypes if (made := generate.permitted(spec, case, d))}
        able = [d for d, made in calls.items() if not any(c.check(made) for c in requires)]
        if able and generate.small(case, elements) and all(c.cost.flops <= FLOPS for c in calls.values()):
            return case, able
    return None


def _lengths(count: int, own: Sequence[int], draws: random.Random) -> list[int]:
    """Lengths of one axis or two; two of them sometimes have a product that counts."""
    pools = (own or ORDINARY, own or ORDINARY, ORDINARY, LONG)
    found = [draws.choice(draws.choice(pools)) for _ in range(count)]
    if count == 2 and draws.random() < 0.5:
        short = draws.choice([n for n in DIVISORS if found[0] % n == 0])
        return draws.sample([short, found[0] // short], k=2)
    return found


def _short(letter: str, probe: Probe, draws: random.Random) -> int:
    allowed = [n for n in generate.lengths_of(letter, probe.implementation.requires) if n]
    least = min(allowed, default=1)
    return draws.choice(SHORT) if least == 1 else draws.choice(allowed[:3])


def _with_numbers(spec: OpSpec, case: Case, draws: random.Random) -> Case:
    """The case with other scalars: an axis, and of each other one in two a value of its pool."""
    values: dict[str, Any] = {}
    for item in spec.scalars:
        if isinstance(item, Axis):
            rank = len(case.shapes[item.of])
            if rank:
                values[item.name] = draws.randrange(-rank, rank)
        elif isinstance(item, Scalar) and not item.length and draws.random() < 0.5 and (pool := generate.pool(item)):
            values[item.name] = draws.choice(pool)
    made = generate.together(spec, case, values) if values else case
    return made if any(generate.permitted(spec, made, d) for d in spec.dtypes) else case


def _valued(trial: Trial, kind: str, draws: random.Random) -> Trial:
    """The call with numbers of a kind."""
    free = {name: x for name, x in trial.free.items() if x.numel()}
    if not free or kind == NORMAL:
        return trial
    if kind == SPECIALS:
        names = (
            [n for n in SPECIAL if not special_numbers.undefined(trial, n)] if special_numbers.defined(trial) else []
        )
        if not names:
            return trial
        chosen, name = draws.choice(names), draws.choice(sorted(free))
        x = free[name].clone(memory_format=torch.contiguous_format)
        for _ in range(draws.choice((1, 1, 3))):
            value = draws.choice(special_numbers.values_of(chosen, x.dtype))
            x.view(-1)[draws.choice((0, x.numel() - 1, draws.randrange(x.numel())))] = value
        return trial.changed(f"{chosen} in {name}", **{name: x})
    made = {}
    for name, x in free.items():
        most = float(torch.finfo(x.dtype).max) / 8
        if kind == LARGE:
            factor = draws.choice((8.0, 64.0, 1000.0))
            made[name] = (x.double() * factor).clamp(-most, most).to(x.dtype)
        else:
            made[name] = (x.double().sign() * (1 + (x.double().abs() > 1))).to(x.dtype)
    return trial.changed(kind, **made)


def _laid_out(trial: Trial, draws: random.Random) -> Trial:
    """The call with some of its tensors in another layout."""
    made, told = {}, []
    for name, x in trial.tensors.items():
        layout = draws.choice([one for one in LAYOUTS if one.same])
        if draws.random() < 0.7 and not x.dtype == torch.bool and (placed := layout.of(x)) is not None:
            made[name] = placed
            told.append(f"{name}: {layout.name}")
    return trial.changed("; ".join(filter(None, [trial.note, *told])), **made) if made else trial


def repeated(probe: Probe, one: SearchCall, turn: int) -> Trial | None:
    """The call with other numbers in the memory of the first; None where there is nothing to change."""
    other = probe.make(one.case, one.trial.dtype, one.trial.seed + 1)
    free = one.trial.free
    if not free:
        return None
    with torch.no_grad():
        for name, x in free.items():
            x.copy_(other.tensors[name])
    case = generate.varied(probe.spec, one.case, turn)
    if turn % 2 and any(generate.permitted(probe.spec, case, d) for d in [one.trial.dtype]):
        again = probe.make(case, one.trial.dtype, one.trial.seed)
        return (
            again.changed("other scalars, the same memory", **one.trial.tensors) if _alike(again, one.trial) else None
        )
    return one.trial.changed(f"{one.trial.note}; other numbers in the same memory", **free)


def _alike(one: Trial, other: Trial) -> bool:
    return {n: x.shape for n, x in one.tensors.items()} == {n: x.shape for n, x in other.tensors.items()}
