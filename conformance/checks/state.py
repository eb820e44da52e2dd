"""Nothing is left of one call that another one could notice.

Results stay as they are while others are made, and belong to the caller. What is remembered must not be told from its
address, its shape or a few of its elements: inputs change in place, and other inputs come to the same place.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kernelmux import emulator
from kernelmux.conformance import layouts
from kernelmux.conformance.check import Check
from kernelmux.conformance.interleaving import Living, side_by_side
from kernelmux.conformance.layouts import LAYOUTS, contiguous_strides, laid_out
from kernelmux.conformance.probe import Failed, Judge, Probe
from kernelmux.conformance.trials import Trial, same_bits
from kernelmux.registry import dispatch

ALIVE = 5  # results of one shape at the same time: more than a ring of buffers has
THREADS = 4
MANY = 1000  # calls in a row
EMULATED = {0.02: 24, 0.1: 12, float("inf"): 6}  # of kernels that are emulated, by the seconds that one takes at most
ORDER = (0, 1, 0, 2, 1, 0)  # of three different calls
BLOCK = 512  # bytes: the least that torch's allocator gives

Tensors = Sequence[torch.Tensor]


def run(probe: Probe) -> None:
    trials = probe.sample(3)
    if not trials:
        return
    for note, ask in (("results alive", _alive), ("inputs changed in place", _content), ("in threads", _threads)):
        _judged(probe, trials[0], note, ask)
    for trial in (trials[0], *_empty(probe)):
        _judged(probe, trial, "results changed by the caller", _owned)
    _judged(probe, trials[0], "calls in turns, at one address", lambda judge: _in_turns(judge, trials))
    _judged(probe, min(trials, key=lambda t: t.size), "many calls", _many)


def _judged(probe: Probe, trial: Trial, note: str, ask: Callable[[Judge], None]) -> None:
    with probe.judge(trial.changed(note)) as judge:
        ask(judge)


def _outputs(judge: Judge, trial: Trial, when: str, values: Sequence[Any] | None = None) -> tuple[torch.Tensor, ...]:
    """The outputs of a call, which are right."""
    outputs = judge.call(*(values or trial.values))
    _right(judge, trial, when, outputs)
    return outputs


def _right(judge: Judge, trial: Trial, when: str, outputs: Tensors) -> None:
    try:
        Judge(judge.probe, trial, judge.record).accurate(outputs)
    except Failed as failure:
        raise Failed(f"{when}: {failure}") from None


def _again(judge: Judge, turn: int) -> Trial:
    """The trial with other random values."""
    probe, trial = judge.probe, judge.trial
    case = next((c for c in probe.cases if c.name == trial.case), None)
    return probe.make(case, trial.dtype, trial.seed + turn) if case and turn else trial


# --- results ---------------------------------------------------------------------------------------------------


def _alive(judge: Judge) -> None:
    """Several results at the same time are right, and share nothing."""
    trials = [_again(judge, turn) for turn in range(ALIVE)]
    results = [judge.call(*trial.values) for trial in trials]
    for turn, (trial, outputs) in enumerate(zip(trials, results, strict=True)):
        _right(judge, trial, f"result {turn + 1} of {ALIVE} after the last call", outputs)
    owners: dict[int, int] = {}
    for turn, out in ((turn, out) for turn, outputs in enumerate(results) for out in outputs if out.numel()):
        other = owners.setdefault(out.untyped_storage().data_ptr(), turn)
        judge.require(other == turn, f"results {other + 1} and {turn + 1} share their memory")


def _owned(judge: Judge) -> None:
    """A result that its owner overwrites comes back in no later call."""
    first = _outputs(judge, judge.trial, "the first call")
    for out in first:
        out.fill_(torch.nan if out.is_floating_point() else 77)
    second = _outputs(judge, judge.trial, "after the caller has overwritten the first result")
    for output, out, new in zip(judge.trial.spec.outputs, first, second, strict=True):
        judge.require(out is not new, f"{output.name}: two calls returned the very same tensor")


def _empty(probe: Probe) -> Iterator[Trial]:
    """Calls that compute nothing: what they return is often made once."""
    for case in (c for c in probe.cases if any(0 in shape for shape in c.shapes.values())):
        trial = probe.make(case, probe.options.dtypes_of(probe.spec, case)[0])
        if not probe.reasons(trial):
            yield trial


# --- inputs ----------------------------------------------------------------------------------------------------


def _content(judge: Judge) -> None:
    """The same tensors hold other values at each call; then other tensors are where they were."""
    buffers = {name: laid_out(x, contiguous_strides(x.shape)) for name, x in judge.trial.tensors.items()}
    placed = judge.trial.changed(judge.trial.note, **buffers)
    _outputs(judge, placed, "the first call")
    for when, contents in _contents(judge):
        _fill(buffers, judge.trial.tensors)
        judge.call(*placed.values)  # what is remembered now is that of the original values
        _fill(buffers, contents)
        _outputs(judge, judge.trial.changed("", **buffers), f"after {when} changed in place")
    for turn in (1, 2):
        fresh = {name: _same_place(x) for name, x in buffers.items()}
        _fill(fresh, _again(judge, turn).tensors)
        _outputs(judge, judge.trial.changed("", **fresh), "with other tensors at the same addresses")


def _fill(buffers: dict[str, torch.Tensor], contents: dict[str, torch.Tensor]) -> None:
    for name, x in buffers.items():
        x.copy_(contents[name])


def _contents(judge: Judge) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Values for all inputs, by what is different: little of one of them, the order, all but the ends."""
    base = judge.trial.tensors
    for name, x in base.items():
        changed = x.clone().flatten()
        middle = changed[changed.numel() // 2 :][:1]
        middle.copy_(-middle - 2 if x.is_floating_point() else middle + 1)
        yield f"one element of {name} was", {**base, name: changed.view(x.shape)}
    for name, x in base.items():
        yield f"the order of the elements of {name} was", {**base, name: x.flatten().flip(0).view(x.shape)}
    other = {name: x.clone() for name, x in _again(judge, 3).tensors.items()}
    for name, x in other.items():
        for end in (slice(0, 1), slice(-1, None)):
            x.view(-1)[end] = base[name].flatten()[end]
    yield "everything but the first and the last elements was", other


def _same_place(x: torch.Tensor) -> torch.Tensor:
    """Another tensor on the same memory, as new for torch as one that was just allocated there."""
    with torch.no_grad():
        return torch.empty(0, dtype=x.dtype, device=x.device).set_(
            x.untyped_storage(), x.storage_offset(), x.shape, x.stride()
        )


def _in_turns(judge: Judge, trials: Sequence[Trial]) -> None:
    """Calls of different shapes and dtypes in turns, then one shape with other strides, all at one address."""
    sizes = [2 * max(x.numel() * x.element_size() for x in t.tensors.values()) + 4096 for t in trials]
    pools = [layouts.poisoned(max(sizes), torch.uint8, like) for like in trials[0].tensors.values()]
    for turn in ORDER:
        trial = trials[turn % len(trials)]
        _outputs(judge, _at(trial, pools, contiguous_strides), f"{trial.text} in turn with {len(trials) - 1} others")
    largest = max(trials, key=lambda t: t.size)
    for layout in [layout for layout in LAYOUTS if layout.same][: 3 if judge.probe.emulated else None]:
        trial = _at(largest, pools, lambda shape, layout=layout: _strides(layout, shape, largest))  # type: ignore[misc]
        if not judge.probe.reasons(trial):
            _outputs(judge, trial, f"{largest.text} at one address, now laid out as {layout.name}")


def _strides(layout: layouts.Layout, shape: tuple[int, ...], trial: Trial) -> layouts.Strides:
    made = layout.strides(shape, trial.dtype.itemsize)
    return contiguous_strides(shape) if made is None or made[1] else made[0]


def _at(trial: Trial, pools: Tensors, strides: Callable[[tuple[int, ...]], layouts.Strides]) -> Trial:
    """The trial with each tensor at the beginning of a pool."""
    placed = {}
    for (name, x), pool in zip(trial.tensors.items(), pools, strict=True):
        whole = pool[: pool.numel() // 16 * 16].view(x.dtype)
        placed[name] = whole.as_strided(x.shape, strides(tuple(x.shape)))
        placed[name].copy_(x)
    return trial.changed("", **placed)


# --- calls -----------------------------------------------------------------------------------------------------


def _threads(judge: Judge) -> None:
    """Calls with different inputs in several threads at once give each its own result."""
    trials, rounds = [_again(judge, turn) for turn in range(THREADS)], 2 if judge.probe.emulated else 5
    judge.call()  # compiled and planned

    def work(trial: Trial) -> Callable[[], list[Any]]:
        return lambda: [dispatch.call(trial.spec, trial.values, judge.probe.label) for _ in range(rounds)]

    with judge.probe.environment():
        found = side_by_side([work(trial) for trial in trials], judge.probe.device)
    for turn, (trial, results) in enumerate(zip(trials, found, strict=True)):
        for result in results:
            outputs = result if isinstance(result, tuple) else (result,)
            _right(judge, trial, f"thread {turn + 1} of {THREADS}, each with inputs of its own", outputs)


def _many(judge: Judge) -> None:
    """Many calls give one result and keep nothing; every input is a new tensor."""
    first = _outputs(judge, judge.trial, "the first call")
    count = _how_many(judge)
    with judge.probe.environment(), Living() as living:
        _calls(judge, first, range(count // 2))
        before = _kept(judge, living)
        _calls(judge, first, range(count // 2, count))
        after = _kept(judge, living)
        if any(late - early >= count // 4 for early, late in zip(before, after, strict=True)):
            gc.collect()
            after = _kept(judge, living)
    for what, early, late in zip(("tensors", f"blocks of {BLOCK} bytes"), before, after, strict=True):
        text = f"memory leaks: {late - early} more {what} were kept after {count - count // 2} more calls"
        judge.require(late - early < count // 4, text)


def _how_many(judge: Judge) -> int:
    """Many calls, unless kernels are emulated."""
    start = time.perf_counter()
    with emulator.recorder() as launches:
        judge.call()
    seconds = time.perf_counter() - start
    return next(times for most, times in EMULATED.items() if seconds <= most) if launches else MANY


def _calls(judge: Judge, want: Tensors, turns: range) -> None:
    """Equal calls, each with tensors of its own; their results have the same bits, or are right where bits may differ."""
    probe, trial = judge.probe, judge.trial
    for turn in turns:
        fresh = {name: laid_out(x, contiguous_strides(x.shape)) for name, x in trial.tensors.items()}
        values = [fresh.get(item.name, value) for item, value in zip(trial.spec.inputs, trial.values, strict=True)]
        result = dispatch.call(trial.spec, tuple(values), probe.label)
        outputs = result if isinstance(result, tuple) else (result,)
        if not probe.implementation.deterministic or not all(map(same_bits, outputs, want)):
            _right(judge, trial, f"call {turn + 1}, equal to the ones before", outputs)
            for output, out, first in zip(trial.spec.outputs, outputs, want, strict=True):
                if probe.implementation.deterministic:
                    judge.equal(f"{output.name} of call {turn + 1}", out, first)


def _kept(judge: Judge, living: Living) -> tuple[int, int]:
    """Tensors that calls have made and that are still there; on a GPU the memory that torch has given out."""
    device = judge.probe.device
    return living.count(), torch.cuda.memory_allocated(device) // BLOCK if device.type == "cuda" else 0


CHECK = Check(run=run, column="state", summary="calls leave nothing behind: results, inputs, threads, many calls")
