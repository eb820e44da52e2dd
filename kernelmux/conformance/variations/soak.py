"""Many equal calls: each gives the first one's bits in memory of its own, and nothing of them is kept."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise, repeat
from typing import Any

import torch

from kernelmux import emulator
from kernelmux.candidate import implementation as candidate
from kernelmux.candidate.gpu.timed_calls import TimedCalls
from kernelmux.conformance.inputs.layouts import laid_out
from kernelmux.conformance.inputs.trials import Trial, same_bits
from kernelmux.conformance.judging import ahead, expected_warnings
from kernelmux.conformance.judging.probe import Judge
from kernelmux.conformance.variations import neighbouring_trials
from kernelmux.conformance.variations.interleaving import Living
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.util.memory_format import format_of, strides_of

MANY = 1000  # calls in a row
STRETCH = 1000  # calls of a candidate in one message
MANY_SMOKE = 100  # of them in tier smoke, and of torch's own operators on a CPU in tier ci, which keep nothing of ours
EMULATED = {0.02: 24, 0.1: 12, float("inf"): 6}  # of kernels that are emulated, by the seconds that one takes at most
WINDOWS = 2  # of as many calls, in which the same has to grow before it is called a leak
LARGE_CALLS = 3  # on large tensors, between two counts of what is left
BLOCK = 512  # bytes: the least that torch's allocator gives
PART = 1 << 16  # bytes of another process: what comes and goes there by itself is less for each call

Tensors = Sequence[torch.Tensor]


def many(judge: Judge, most: int = MANY) -> None:
    """Many calls, `most` at most; every input is a new tensor.

    The results of the first half are alive until all of it is done, so that buffers used in turn come round.
    """
    with _frozen(), expected_warnings.noted(judge.remark):
        _many(judge, most)


@contextmanager
def _frozen() -> Iterator[None]:
    """What is there now, garbage too, is not looked at by the collections inside, which are short then."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _many(judge: Judge, most: int) -> None:
    first = judge.call()
    judge.accurate(first)
    if most == MANY:
        _at_a_stretch(judge, first)
    half = min(_how_many(judge), most) // 2
    with judge.probe.environment(), Living() as living:
        _distinct(judge, _calls(judge, first, half, keep=True))
        grown = _grown(judge, first, living, half)
        for _ in range(WINDOWS):  # what grows once is a cache, what grows again and again a leak
            again = _grown(judge, first, living, half) if grown else {}
            grown = {what: count for what, count in again.items() if what in grown}
    text = ", ".join(f"{count} {what}" for what, count in grown.items())
    judge.require(not grown, f"memory leaks: {half} more calls have kept {text}, and as many before")


def _at_a_stretch(judge: Judge, want: Tensors) -> None:
    """Calls of a candidate in one message, nothing between them: one that is wrong now and then hardly passes these.

    They have inputs in memory of the device, which is not where an operator with input in host memory has it.
    """
    probe = judge.probe
    process = candidate.process_of(probe.implementation.fn)
    if process is None or probe.spec.hosted or neighbouring_trials.slow(probe):
        return
    with probe.environment():
        each = ahead.arguments(probe, process, [judge.trial.values]) * STRETCH
    kinds = [(tuple(out.shape), out.dtype) for out in want]
    with closing(TimedCalls(process.timed, each, kinds, probe.device)) as calls:
        calls.fill(each)
        *_, results = calls.run(STRETCH)
    alike = (torch.stack([row[i] for row in results]) for i in range(len(want)))
    if all(same_bits(rows, out.contiguous().expand_as(rows)) for rows, out in zip(alike, want, strict=True)):
        return
    for turn, outputs in enumerate(results):
        laid = [torch.empty_like(first).copy_(out) for first, out in zip(want, outputs, strict=True)]
        _compared(judge, want, turn, laid)


def large_calls(judge: Judge) -> None:
    """Of a few calls on large tensors nothing is kept, that every one of them adds to. No kernel is emulated for that.

    Of a candidate in a process of its own one only has to return: the memory of that comes and goes by more.
    """
    probe, trial = judge.probe, judge.trial
    apart = candidate.process_of(probe.implementation.fn) is not None

    def left(living: Living) -> int:
        for _ in range(1 if apart else LARGE_CALLS):
            dispatch.call(trial.spec, trial.values, probe.label)
        gc.collect()
        return living.count()

    runs = not neighbouring_trials.slow(probe)
    with _frozen(), probe.environment(), emulator.recorder(run=runs), Living() as living:
        counts = [left(living) for _ in range(1 if apart else WINDOWS + 2)]
    # What only the first calls keep for a while, and then give back, hides what each one keeps.
    kept = min((after - before for before, after in pairwise(counts[1:])), default=0)
    judge.require(kept < LARGE_CALLS, f"memory leaks: {LARGE_CALLS} calls on large tensors keep {kept} more each time")


def _grown(judge: Judge, first: Tensors, living: Living, times: int) -> dict[str, int]:
    """What there is more of after so many calls, one at least for every second of them."""
    gc.collect()
    objects = times >= MANY // 2 and not neighbouring_trials.slow(judge.probe)
    before = _kept(judge, living, objects)
    _calls(judge, first, times)
    gc.collect()
    more = {what: count - before[what] for what, count in _kept(judge, living, objects).items()}
    return {what: count for what, count in more.items() if count >= times // 2}


def _how_many(judge: Judge) -> int:
    """Many calls, unless kernels are emulated."""
    probe = judge.probe
    if not neighbouring_trials.slow(probe):
        few = registered.composite(probe.backend) and probe.device.type == "cpu" and probe.options.tier == "ci"
        return MANY_SMOKE if few or probe.options.tier == "smoke" else MANY
    start = time.perf_counter()
    judge.call()
    seconds = time.perf_counter() - start
    return next(times for most, times in EMULATED.items() if seconds <= most)


def _calls(judge: Judge, want: Tensors, times: int, keep: bool = False) -> list[Tensors]:
    """So many calls, each with tensors of its own; keep: all results, else none. A process has several in a message."""
    kept = list[Tensors]()
    apart = candidate.process_of(judge.probe.implementation.fn)
    made = (_fresh(judge.trial) for _ in range(times))
    for turn, values in enumerate(ahead.calls(judge.probe, made) if apart else repeat((), times)):
        one = [_call(judge, want, turn, values)]
        kept += one if keep else []
        del one
    return kept


def _fresh(trial: Trial) -> tuple[Any, ...]:
    """The arguments of a call, its tensors new and contiguous, or channels-last as they were."""
    fresh = {name: laid_out(x, strides_of(x.shape, format_of(x))) for name, x in trial.tensors.items()}
    return tuple(fresh.get(item.name, value) for item, value in zip(trial.spec.inputs, trial.values, strict=True))


def _call(judge: Judge, want: Tensors, turn: int, values: tuple[Any, ...] = ()) -> Tensors:
    """The outputs of a call with tensors of its own."""
    spec = judge.trial.spec
    result = dispatch.call(spec, values or _fresh(judge.trial), judge.probe.label)
    outputs = result if isinstance(result, tuple) else (result,)
    _compared(judge, want, turn, outputs)
    return outputs


def _compared(judge: Judge, want: Tensors, turn: int, outputs: Tensors) -> None:
    """They have the bits of the first call's, or are right where bits may differ."""
    if not all(map(same_bits, outputs, want)):
        judge.accurate(outputs)
        for output, out, first in zip(judge.trial.spec.outputs, outputs, want, strict=True):
            if judge.probe.implementation.deterministic:
                judge.equal(f"{output.name} of call {turn + 1}, equal to the ones before", out, first)


def _distinct(judge: Judge, results: Sequence[Tensors]) -> None:
    """Results that are alive at the same time share no memory."""
    owners: dict[int, int] = {}
    for turn, out in ((turn, out) for turn, outputs in enumerate(results) for out in outputs if out.numel()):
        other = owners.setdefault(out.untyped_storage().data_ptr(), turn)
        judge.require(other == turn, f"results {other + 1} and {turn + 1} share their memory")


def _kept(judge: Judge, living: Living, objects: bool) -> dict[str, int]:
    """What calls have made and is still there, by what it is: tensors; memory of a GPU; else objects of Python.

    objects: whether to count those as well; a few hundred come and go by themselves, and the emulator remembers some.
    """
    device = judge.probe.device
    found = {"tensors": living.count()}
    if device.type == "cuda":
        found[f"blocks of {BLOCK} bytes"] = torch.cuda.memory_allocated(device) // BLOCK
    elif objects:
        found["blocks of Python's memory"] = sys.getallocatedblocks()
    if process := candidate.process_of(judge.probe.implementation.fn):
        found[f"blocks of {PART >> 10} KiB in its process"] = process.resident() // PART
    return found
