"""How long a candidate takes, by the clock of this process, with every result of a timed call open to a check.

    seconds of a call = (seconds of N calls - seconds of an answer without one) / N - seconds of copying its outputs

N calls follow one another, each on inputs of its own that were drawn for it. What the process of the candidate says of the
time is a claim. A time below what the memory and the arithmetic of the card allow is a failure.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kernelmux.candidate.gpu.timed_calls import Kind, TimedCalls
from kernelmux.candidate.limits import GIB, Limits
from kernelmux.candidate.process import CandidateProcess
from kernelmux.conformance.inputs import trials
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import ahead
from kernelmux.conformance.judging.probe import Enough, Judge, Probe
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import Item
from kernelmux.perf.timing import sampling
from kernelmux.registry.cases import Case, generator, seed_of
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec import Call
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card

CHECK = "time"
PILOT, PILOTS, ROUNDS = 2, 3, 5
LEAST, MOST = 8, 1000  # calls of a round
HANDSHAKE = 0.01  # the share of a round that an answer without a call may be
LONGEST = 1.0  # seconds of a round, about
SHARE = 0.1  # of the free memory that inputs and outputs of all calls may take, on each of three sides
LOOKED_AT = 16  # calls of a round whose outputs are compared
ATTEMPTS = 4
LARGE = 2**26  # elements that a comparison touches at most; of a larger call a part is compared, drawn anew each time
PACKED = 4  # times the rate of fp32 is the most that a card computes in 16 bits without tensor cores (A100)
ABOVE = 1.05  # a rate beyond this share of what the card can is a wrong time
NOTHING = "def nothing(*values):\n    return None\n"


@dataclass(frozen=True)
class WorkloadTime:
    """seconds: of a call, the median of the rounds; error: half of what the rounds lie apart. claim: what the process of
    the candidate says. floor: the least that the card allows, 0 where that is not known. calls: of a round. handshake: the
    share of a round that the answer took.
    """

    workload: str
    dtype: str
    seconds: float
    error: float
    claim: float
    floor: float
    calls: int
    handshake: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@contextmanager
def idle(limits: Limits, device: str) -> Iterator[CandidateProcess]:
    """A process of the judge's own that is as a candidate's, and computes nothing."""
    with tempfile.TemporaryDirectory(prefix="kernelmux-idle-") as folder:
        path = Path(folder) / "idle.py"
        path.write_text(NOTHING, encoding="utf-8")
        with CandidateProcess(path, "nothing", device, limits) as process:
            yield process


def outcome(probe: Probe, process: CandidateProcess, workloads: Sequence[str]) -> tuple[Outcome, list[WorkloadTime]]:
    """The item "time": a trial for each workload, "x=8192x4096:bf16", or for the first of the operator's own."""
    found = list[WorkloadTime]()
    item, begun = Item(probe.spec.name, probe.backend, probe.variant, CHECK), time.perf_counter()
    if probe.spec.hosted:
        probe.skip_all("its input is in host memory: a transfer is not timed")
    elif probe.device.type == "cpu" and process.launched:
        probe.skip_all("its kernels are emulated: how long that takes says nothing of a GPU")
    else:
        with idle(process.limits, probe.device.type) as nothing, suppress(Enough):
            for case, dtype in _chosen(probe, workloads):
                first = _trial(probe, case, dtype, probe.options.seed, 0)
                if probe.able(first):
                    with probe.judge(first) as judge:
                        found.append(_Timing(judge, case, process, nothing).measured())
    failed = [r.text for r in probe.records if r.status == "failed"]
    passed = any(r.status == "passed" for r in probe.records)
    status = "failed" if failed else "passed" if passed else "skipped"
    seconds = time.perf_counter() - begun
    return Outcome(item, status, "\n".join(failed), seconds, probe.records), found


def _chosen(probe: Probe, workloads: Sequence[str]) -> Iterator[tuple[Case, torch.dtype]]:
    spec = probe.spec
    cases = [spec.case(text) for text in workloads] or [spec.workloads[0]]
    for case in cases:
        kinds = case.dtypes or spec.dtypes
        given = case.parsed[2].get(spec.leading.name)
        yield case, given or next((d for d in (torch.bfloat16, torch.float16) if d in kinds), kinds[0])


class _Timing:
    """Of one workload. every: trials with inputs of their own, of which a call gets each once."""

    def __init__(self, judge: Judge, case: Case, process: CandidateProcess, nothing: CandidateProcess) -> None:
        self.judge, self.probe, self.case = judge, judge.probe, case
        self.process, self.nothing = process, nothing
        self.device, self.seed, self.dtype = judge.probe.device, judge.trial.seed, judge.trial.dtype
        call = judge.trial.call
        self.outputs: list[Kind] = [(tuple(o.shape(call)), o.dtype_of(call)) for o in call.spec.outputs]
        self.most = _most(judge.trial, self.outputs, self.device)
        self.limit = min(_free(self.device) / 2 / sampling.LIVE, LARGE)
        self.every = [judge.trial]
        self.random = random.Random(self.seed)

    def measured(self) -> WorkloadTime:
        """Failed if a result of a timed call is wrong, or the time cannot be true."""
        for _ in range(ATTEMPTS - 1):
            try:
                return self._measured()
            except torch.OutOfMemoryError:  # something else has taken what was free
                self.most, self.limit = max(self.most // 4, 2), self.limit / 4
                self._draw(1)
            torch.cuda.empty_cache()  # behind the handler, whose error holds the tensors of the attempt
        return self._measured()

    def _measured(self) -> WorkloadTime:
        self._draw(min(PILOT, self.most))
        handshake = self._handshake()
        for _ in range(PILOTS):
            took = min(t for t, _ in self._rounds(2))  # the first one compiles
            wanted = _count(max(took - handshake, 1e-7) / len(self.every), handshake, self.most)
            if wanted <= len(self.every):
                break
            self._draw(wanted)
        count, copying = len(self.every), self._copying()
        rounds = self._rounds(ROUNDS)
        seconds = [max((took - handshake) / count - copying, 0.0) for took, _ in rounds]
        row = WorkloadTime(
            workload=self.case.text,
            dtype=SHORT[self.dtype],
            seconds=statistics.median(seconds),
            error=(max(seconds) - min(seconds)) / 2,
            claim=statistics.median(claim for _, claim in rounds) / count,
            floor=least(self.judge.trial, self.device, count),
            calls=count,
            handshake=handshake / statistics.median(took for took, _ in rounds),
        )
        gross = min(took for took, _ in rounds) / count  # nothing that was measured has gone from it
        self.judge.require(
            gross * ABOVE >= row.floor,
            f"{gross * 1e6:.4g} us is below the {row.floor * 1e6:.4g} us that memory and arithmetic of the card take",
        )
        return row

    def _draw(self, count: int) -> None:
        """As many trials as calls."""
        numbers = range(len(self.every), count)
        self.every = [
            *self.every[:count],
            *(_trial(self.probe, self.case, self.dtype, self.seed, number) for number in numbers),
        ]

    def _rounds(self, rounds: int) -> list[tuple[float, float]]:
        """Seconds of each round by the clock here, and by that of the candidate; some results of each are compared."""
        found, count = list[tuple[float, float]](), len(self.every)
        given, cuts = self._given(), sampling.choose(self.every[0].call, self.limit)
        with closing(TimedCalls(self.process.timed, given, self.outputs, self.device)) as timed:
            for _ in range(rounds):
                order = self.random.sample(range(count), count)
                timed.fill([given[i] for i in order])
                took, claim, results = timed.run(count)
                found.append((took, claim))
                for i in self.random.sample(range(count), min(LOOKED_AT, count)):
                    self._accurate(self.every[order[i]], tuple(results[i]), cuts)
                del results
        return found

    def _accurate(self, trial: Trial, outputs: tuple[torch.Tensor, ...], cuts: Sequence[sampling.Cut]) -> None:
        """Whether the outputs, or the part of them that the cuts leave, are right."""
        values = trial.arguments
        for cut in cuts:
            if cut.picker == "spread":  # any positions will do
                length, count = sampling.lengths(trial.call)[cut.axis], len(cut.positions[cut.axis])
                drawn = torch.tensor(sorted(self.random.sample(range(length), count)))
                cut = cut.cut(trial.call, drawn)
            values = sampling.cut_arguments(trial.call, values, cut)
            outputs = sampling.cut_outputs(outputs, (cut,))
        part = replace(trial, values=values)  # its reference goes with it
        kinds = [output.memory_format(part.call) for output in part.spec.outputs]  # of a copy, strides say nothing
        placed = [out.contiguous(memory_format=kind) for out, kind in zip(outputs, kinds, strict=True)]
        Judge(self.probe, part, self.judge.record).accurate(placed)

    def _given(self) -> Sequence[Sequence[Any]]:
        """What calls give the function, which may do without arguments that have a default."""
        with self.probe.environment():
            return ahead.arguments(self.probe, self.process, [t.values for t in self.every])

    def _handshake(self) -> float:
        """Seconds of an answer without a call."""
        each = [self.every[0].arguments]
        with closing(TimedCalls(self.nothing.timed, each, self.outputs, self.device, empty=True)) as timed:
            found = [timed.run(0)[0] for _ in range(4 * ROUNDS)]
        return statistics.median(found[ROUNDS:])

    def _copying(self) -> float:
        """Seconds in which the outputs of a call are copied."""
        each, count = [t.arguments for t in self.every], len(self.every)
        with closing(TimedCalls(self.nothing.timed, each, self.outputs, self.device, empty=True)) as timed:
            found = [timed.run(count)[1] for _ in range(ROUNDS)]
        return min(found[1:]) / count


def least(trial: Trial, device: torch.device, count: int) -> float:
    """Seconds that one of `count` calls takes at least; 0 where that is not known."""
    return floor(trial.call, cards.of(device.index or 0), count) if device.type == "cuda" else 0.0


def floor(call: Call, card: Card, count: int) -> float:
    """Seconds that one of `count` calls, each on memory of its own, takes at least on a card.

    The caches may hold inputs before the first call and outputs behind the last.
    """
    cost = call.cost
    moved = max(cost.bytes - 2 * card.l2 / count, 0.0) / card.bandwidth if card.bandwidth else 0.0
    dtype = SHORT[call.dtype]
    if cost.unit == "tensor":
        rate = card.rates.get({"fp32": "tf32"}.get(dtype, dtype), 0.0)
    elif call.dtype.is_floating_point:
        rate = card.rates.get("fp32", 0.0) * (PACKED if call.dtype.itemsize < 4 else 1)
    else:
        rate = 0.0
    return max(moved, cost.flops / rate if rate else 0.0)


def _trial(probe: Probe, case: Case, dtype: torch.dtype, seed: int, number: int) -> Trial:
    """A trial of a workload that no other number gives, drawn where it will be."""
    spec, device = probe.spec, probe.device
    rng = generator(spec.name, case.name, SHORT[dtype], seed, number)
    if device.type == "cuda" and case.inputs == "normal":
        rng = torch.Generator(device).manual_seed(seed_of(spec.name, case.name, SHORT[dtype], seed, number) % (1 << 62))
    values = trials.values(spec, case, spec.drawn(case, dtype, rng), device)
    return Trial(spec, case.name, case.text, dtype, seed, values, note=f"timed call {number + 1}")


def _most(trial: Trial, outputs: Sequence[Kind], device: torch.device) -> int:
    """How many calls there is memory for: ours, those that both have, and a copy of the outputs."""
    each = sum(x.nbytes for x in trial.tensors.values())
    each += sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in outputs)
    if (most := int(SHARE * (free := _free(device))) // max(each, 1)) < 2:
        raise ArgumentError(
            f"{trial.text}: to time it expected {2 * each / SHARE / GIB:.1f} GiB of free memory, got {free / GIB:.1f}: end"
            " other programs, or time a smaller workload (--time)"
        )
    return min(most, MOST)


def _count(seconds: float, handshake: float, most: int) -> int:
    """How many calls make a round."""
    wanted = max(LEAST, math.ceil(handshake / HANDSHAKE / seconds))
    return min(most, max(min(wanted, round(LONGEST / seconds)), 2))


def _free(device: torch.device) -> int:
    """Bytes that are free, or, of a CPU, that may be used."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 1 << 32
