"""The same call gives the same bits, whatever memory it gets and in whatever order its blocks run.

Sums in an order that changes show where they are long: the largest cases are repeated as well as the smallest. A GPU
runs blocks as it likes; the emulator is told to. Few long sums are made for the purpose. Of what a GPU has verified one
large call and these sums are emulated, the sums shorter where several blocks run for such as well. A variant that
declares `deterministic=False` need not give equal bits but has to stay within its bound in every order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice

import torch

from kernelmux import emulator
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import asked_less
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.conformance.variations import neighbouring_trials, resize
from kernelmux.registry.cases import TIERS, Case

TIMES = 3
TIMES_LARGE = 8  # on a GPU: two of a few calls may well add in one order by chance
ORDERS: tuple[str | int, ...] = ("reverse", 1)  # of blocks, after the ordinary one
LONG = {True: 4111, False: 9001}  # terms of a sum that is made for the purpose, by whether it is emulated; primes
LONG_VERIFIED = 1031  # of what a GPU has verified, where several blocks run for so many as well
SHORT = 2  # the length of the other axes then
FEW = 2**28  # terms of all sums together, on the emulator: long kernels of a convolution make long images, too
ELEMENTS = {True: 2**17, False: 2**27}  # of the largest tensor of a large case, by whether it is emulated


def run(probe: Probe) -> None:
    small = probe.sample(1 if neighbouring_trials.slow(probe) else 8)
    large = list(_large(probe, 1 if neighbouring_trials.slow(probe) else 3)) if small else []
    if probe.verified and large:
        small, large = [], large[:1]
    for trial in small:
        with probe.judge(trial) as judge:
            _repeated(judge, TIMES)
    if not small and not large:
        return  # why nothing runs is on record
    others = [trial for trial in large if trial not in small or not probe.emulated]
    others = list(asked_less.shared_out(probe, others)) if len(others) > 1 else others
    for trial in (*others, *_long(probe)):
        with probe.judge(trial) as judge:
            _repeated(judge, TIMES_LARGE if probe.device.type == "cuda" else TIMES)


def _repeated(judge: Judge, times: int) -> None:
    """Calls that give the bits of the first one, each in memory of its own."""
    probe, first = judge.probe, judge.call()
    if not probe.implementation.deterministic:
        judge.accurate(first)
        judge.remark("declares deterministic=False: each call has to be within its bound, bits may differ")
    kept = []
    for turn, (name, order) in enumerate(_orders(probe, times), 1):
        kept.append(torch.empty(1024 * turn + 7, device=probe.device))  # so that addresses differ
        with order:
            outputs = judge.call()
        if not probe.implementation.deterministic:
            judge.accurate(outputs)
            continue
        for output, want, got in zip(judge.trial.spec.outputs, first, outputs, strict=True):
            judge.equal(f"{output.name} of {name}", got, want)


def _orders(probe: Probe, times: int) -> Iterator[tuple[str, AbstractContextManager[None]]]:
    """What to call each further call, and what to enter around it."""
    if probe.emulated:
        yield from ((f"a call with blocks in the order {order}", emulator.block_order(order)) for order in ORDERS)
        return
    yield from ((f"call {turn}", nullcontext()) for turn in range(2, times + 1))


def _large(probe: Probe, count: int) -> Iterator[Trial]:
    """The largest cases that the variant can run, then those with the longest sums; on a GPU as of tier full at least."""
    listed = probe.cases
    if probe.device.type == "cuda" and not probe.options.cases:
        within = TIERS[: max(TIERS.index("full"), TIERS.index(probe.options.tier)) + 1]
        listed = [c for c in probe.spec.cases if c.tier in within]
    fitting = [c for c in listed if 0 < _elements(c) <= ELEMENTS[probe.emulated]]
    taken: set[str] = set()
    for measure in (_elements, partial(_terms, probe)):
        ordered = sorted(fitting, key=measure, reverse=True)
        for trial in islice(neighbouring_trials.able(probe, ordered), count):
            if trial.case not in taken:
                yield trial
            taken.add(trial.case)


def _long(probe: Probe) -> Iterator[Trial]:
    """Few sums of many terms, in which kernels split them: over the last axis and over others, which are short."""
    slow = neighbouring_trials.slow(probe)
    taken, long = set[tuple[tuple[int, int], ...]](), LONG[slow]
    for base in map(partial(_precise, probe), probe.sample(24)):
        if neighbouring_trials.special(base):
            continue  # sums of special values may well be exact
        axes = neighbouring_trials.axes(probe, base)
        for axis in axes:
            made = neighbouring_trials.resized(probe, base, dict.fromkeys(axes, SHORT) | {axis: long})
            if (
                made is None
                or neighbouring_trials.terms(made.call) < long
                or (slow and neighbouring_trials.terms_of_all(made.call) > FEW)
            ):
                continue
            dims = [(x.dim(), d) for x in made.tensors.values() for d, n in enumerate(x.shape) if n == long]
            places = tuple((d - rank, 0 if slow else rank) for rank, d in dims)
            if places not in taken:
                fewer = dict.fromkeys(axes, SHORT) | {axis: LONG_VERIFIED}
                less = neighbouring_trials.resized(probe, base, fewer) if probe.verified else None
                wanted = (trial for trial in (less, made) if trial and (not slow or _several_blocks(probe, trial)))
                yield from islice(wanted, 1)  # whether there are several blocks takes a compilation
            taken.add(places)


def _precise(probe: Probe, base: Trial) -> Trial:
    """The trial in fp32 if the variant takes it: 16 bits hide most of what another order of a sum changes."""
    case = resize.case_of(probe, base)
    if base.dtype == torch.float32 or torch.float32 not in probe.options.dtypes_of(probe.spec, case):
        return base
    made = probe.make(case, torch.float32)
    return base if probe.reasons(made) else made


def _several_blocks(probe: Probe, trial: Trial) -> bool:
    """Whether some launch of a call has blocks that could run in another order."""
    with emulator.recorder(run=False) as launches:
        probe.call(trial.values)
    return any(math.prod(launch.grid) > 1 for launch in launches)


def _terms(probe: Probe, case: Case) -> int:
    """Terms of the longest sum."""
    call = generate.permitted(probe.spec, case, probe.spec.dtypes[0])
    return 0 if call is None else neighbouring_trials.terms(call)


def _elements(case: Case) -> int:
    """Elements of the largest tensor; 0 if one is empty."""
    sizes = [torch.Size(shape).numel() for shape in case.shapes.values()]
    return 0 if 0 in sizes else max(sizes)


CHECK = Check(
    run=run, column="repeat", summary="equal calls give equal bits, small and large, with blocks in other orders"
)
