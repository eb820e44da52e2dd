"""Nothing is left of one call that another one could notice.

Results stay as they are while others are made, and belong to the caller. What is remembered must not be told from its
address, its shape or a few of its elements: inputs change in place, other inputs come to the same place, and calls of
other shapes come between. All of this for small inputs, and for large ones, which are more tempting to remember.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch

from kernelmux.candidate import allocations, implementation
from kernelmux.candidate.allocations import Strides, contiguous_strides
from kernelmux.conformance.check import Check
from kernelmux.conformance.failures.stale_result import EARLIER
from kernelmux.conformance.inputs import layouts
from kernelmux.conformance.inputs.layouts import LAYOUTS, laid_out
from kernelmux.conformance.inputs.trials import SMALL, Trial, bits, computed, same_bits
from kernelmux.conformance.judging import ahead, expected_warnings, returned
from kernelmux.conformance.judging.probe import Failed, Judge, Probe
from kernelmux.conformance.variations import neighbouring_trials, resize
from kernelmux.conformance.variations.interleaving import PAUSE, side_by_side
from kernelmux.conformance.variations.soak import large_calls, many
from kernelmux.registry.call import dispatch

UNFORESEEN = 3  # seeds that are drawn anew in each run
ALIVE = 5  # results of one shape at the same time
THREADS = 4
FIRST = 3  # shapes of each dtype whose first calls come from threads; one in tier smoke
SOME = 100  # calls in a row for further shapes
ORDER = (0, 1, 0, 2, 1, 0)  # of three different calls
GRID = 1024  # steps in 1: sums of a few hundred numbers on it are exact in fp32
SHORTER = (2, 1)  # lengths that an axis shrinks to

Tensors = Sequence[torch.Tensor]


def run(probe: Probe) -> None:
    trials = probe.sample(3)
    if not trials:
        return
    if not neighbouring_trials.slow(probe):
        _judged(probe, trials[0], "values of a seed drawn just now", _unforeseen)
    _judged(probe, trials[0], "later", _finished)
    _judged(probe, trials[0], "results alive", _alive)
    _judged(probe, trials[0], "a view of a result alive", _views)
    _judged(probe, trials[0], "inputs changed in place", _content)
    for trial in (trials[0], *_empty(probe)):
        _judged(probe, trial, "results changed by the caller", _owned)
    _judged(probe, trials[0], "in threads", lambda judge: _threads(judge, trials))
    _judged(probe, trials[0], "calls in turns, at one address", lambda judge: _in_turns(judge, trials))
    most_axes = max(trials, key=lambda t: (len(neighbouring_trials.axes(probe, t)), not neighbouring_trials.special(t)))
    _judged(probe, most_axes, "one axis shorter at a time", _shorter)
    smallest = min(trials, key=lambda t: t.size)
    _judged(probe, smallest, "many calls", many)
    for trial in _large(probe):
        if trial is trials[0] and not neighbouring_trials.slow(probe):
            continue  # asked above
        _judged(probe, trial, "inputs changed in place", _all_content if neighbouring_trials.slow(probe) else _content)
    if large := next(neighbouring_trials.large(probe, trials), None):
        _judged(probe, large, "memory of large calls", large_calls)
    if not neighbouring_trials.slow(probe):
        _further(probe, trials[0], smallest)


def _further(probe: Probe, trial: Trial, smallest: Trial) -> None:
    """Shapes that may have memory of their own: large ones, and one whose axes are all of one length.

    smallest: of which many calls were made.
    """
    others = (*_large(probe), *filter(None, [neighbouring_trials.square(probe, trial)]))
    for other in (one for one in others if one is not smallest):
        _judged(probe, other, "many calls", partial(many, most=SOME))
    for turn, dtype in enumerate(probe.options.dtypes_of(probe.spec) * (1 if probe.options.tier == "smoke" else FIRST)):
        if cold := neighbouring_trials.unseen(probe, probe.make(resize.case_of(probe, trial), dtype), turn):
            _judged(probe, cold, "first calls, in threads", partial(_first_calls, pause=(1 + turn % 4) * PAUSE))


def _large(probe: Probe) -> list[Trial]:
    """Of each input the largest case; where calls are emulated one that is not too large."""
    return list(
        islice(neighbouring_trials.largest(probe, 2**14), 1)
        if neighbouring_trials.slow(probe)
        else neighbouring_trials.largest(probe)
    )


def _judged(probe: Probe, trial: Trial, note: str, ask: Callable[[Judge], None]) -> None:
    with probe.judge(trial.changed(note)) as judge:
        ask(judge)


def _outputs(judge: Judge, trial: Trial, when: str) -> tuple[torch.Tensor, ...]:
    """The outputs of a call, which are right."""
    outputs = judge.call(*trial.values)
    _right(judge, trial, when, outputs)
    return outputs


def _right(judge: Judge, trial: Trial, when: str, outputs: Tensors) -> None:
    try:
        Judge(judge.probe, trial, judge.record).accurate(outputs)
    except Failed as failure:
        raise Failed(f"{when}: {failure}") from None


def _again(judge: Judge, turn: int) -> Trial:
    """The trial with other random values."""
    return neighbouring_trials.again(judge.probe, judge.trial, turn)


def _unforeseen(judge: Judge) -> None:
    """Values of seeds that are drawn now: a call that recognises the inputs of the suite is wrong on these alone."""
    others = [_again(judge, secrets.randbits(31)) for _ in range(UNFORESEEN)]
    wrong = []
    with ahead.together(judge.probe, [judge.trial, *others]):
        _outputs(judge, judge.trial, "the first call")
        for other in others:
            try:
                _outputs(judge, other, f"values of seed {other.seed:#x}")
            except Failed as failure:
                wrong.append(str(failure))
    if len(wrong) == UNFORESEEN and not any(EARLIER in text for text in wrong):
        _outputs(judge, judge.trial, "the first call again")
        raise Failed(
            f"it recognises inputs: right on the values of seed {judge.trial.seed:#x}, wrong on others: {wrong[0]}"
        )
    if wrong:
        raise Failed(wrong[0])


# --- results ---------------------------------------------------------------------------------------------------


def _alive(judge: Judge) -> None:
    """Several results at the same time are right, of calls without a pause between them."""
    trials = [_again(judge, turn) for turn in range(ALIVE)]
    results = _at_once(judge, trials, threads=False) or [judge.call(*trial.values) for trial in trials]
    for turn, (trial, outputs) in enumerate(zip(trials, results, strict=True)):
        _right(judge, trial, f"result {turn + 1} of {ALIVE} after the last call", outputs)


def _views(judge: Judge) -> None:
    """Tensors on the memory of a result that is gone itself keep their values while others are made."""
    views = [_same_place(out) for out in judge.call()]
    _outputs(judge, _again(judge, 1), "the next call")
    _right(judge, judge.trial, "a view of the first result, which was released, after another call", views)


def _owned(judge: Judge) -> None:
    """A result that its owner overwrites comes back in no later call."""
    first = _outputs(judge, judge.trial, "the first call")
    for out in first:
        out.fill_(torch.nan if out.is_floating_point() else 77)
    second = _outputs(judge, judge.trial, "after the caller has overwritten the first result")
    for output, out, new in zip(judge.trial.spec.outputs, first, second, strict=True):
        judge.require(out is not new, f"{output.name}: two calls returned the very same tensor")


def _finished(judge: Judge) -> None:
    """When a call returns, its results are there, and nothing of it goes on. The second call: the first may import."""
    judge.call()
    if process := implementation.process_of(judge.probe.implementation.fn):
        judge.call()
        problem = process.awake(returned.LATER, _needed(judge))
        judge.require(not problem, f"the call has returned, and {problem}")
        return
    problem = returned.unfinished(judge.trial.spec, judge.call, judge.trial.values)
    judge.require(not problem, problem)


def _needed(judge: Judge) -> Iterator[Trial]:
    """Small trials that are asked next, each prepared: for the time in which the process is only looked at."""

    def trials() -> Iterator[Trial | None]:
        yield from (_again(judge, turn) for turn in range(1, ALIVE))
        for axis in neighbouring_trials.axes(judge.probe, judge.trial):
            for length in (*SHORTER, 0):
                yield neighbouring_trials.resized(judge.probe, judge.trial, {axis: length})

    for trial in trials():
        if trial and trial.size <= SMALL:
            ahead.prepare(judge.probe, trial)
            yield trial


def _empty(probe: Probe) -> Iterator[Trial]:
    """Calls that compute nothing: what they return is often made once."""
    for case in (c for c in probe.cases if any(0 in shape for shape in c.shapes.values())):
        first = (probe.make(case, dtype) for dtype in probe.options.dtypes_of(probe.spec, case)[:1])
        yield from (trial for trial in first if not probe.reasons(trial))


# --- inputs ----------------------------------------------------------------------------------------------------


def _content(judge: Judge) -> None:
    """The same tensors hold other values at each call; then other tensors are where they were."""
    buffers = {name: laid_out(x, contiguous_strides(x.shape)) for name, x in judge.trial.tensors.items()}
    placed = judge.trial.elsewhere(judge.trial.note, **buffers)
    _outputs(judge, placed, "the first call")
    for when, contents in _contents(judge):
        _fill(buffers, contents)
        _outputs(judge, judge.trial.changed("", **buffers), f"after {when} changed in place")
    for turn in (1, 2):
        fresh = {name: _same_place(x) for name, x in buffers.items()}
        _fill(fresh, _again(judge, turn).tensors)
        _outputs(judge, judge.trial.changed("", **fresh), "with other tensors at the same addresses")


def _all_content(judge: Judge) -> None:
    """As `_content`, for large inputs, of which every element changes."""
    buffers = {name: laid_out(x, contiguous_strides(x.shape)) for name, x in judge.trial.tensors.items()}
    placed = judge.trial.changed(judge.trial.note, **buffers)
    judge.call(*placed.values)
    _fill(buffers, _again(judge, 1).tensors)
    _outputs(judge, judge.trial.changed("", **buffers), "after all inputs were changed in place")


def _fill(buffers: dict[str, torch.Tensor], contents: dict[str, torch.Tensor]) -> None:
    """Writes what is different, as numpy, `.data` or another kernel would: torch counts no new version of the tensor."""
    for name, x in buffers.items():
        if not same_bits(x, contents[name]):
            x.data.copy_(contents[name])


def _contents(judge: Judge) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Lawful values of all inputs, each different from those before: by little of one, in their order, but for the ends."""
    for when, contents in _any_contents(judge):
        yield when, judge.trial.lawful(contents)


def _any_contents(judge: Judge) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Computed tensors are changed with those that they come from.

    Where the order is, sums are exact, so that they are equal.
    """
    base, following = judge.trial.tensors, computed(judge.trial.spec)
    own, now = [name for name in base if name not in following], dict(base)
    rng = torch.Generator().manual_seed(judge.trial.seed)
    for name in own:
        for place in torch.randint(
            base[name].numel(), (1 if neighbouring_trials.slow(judge.probe) else 3,), generator=rng
        ).tolist():
            changed = now[name].clone().flatten()
            one = changed[place : place + 1]
            one.copy_(-one.float() - 2 if one.is_floating_point() else one + 1)
            now[name] = changed.view(base[name].shape)
            yield f"element {place} of {name} was", now
    now = {name: _on_grid(x) for name, x in base.items()}
    yield "every element was rounded, and", now
    for name in own:
        now[name] = bits(now[name]).flatten().flip(0).view(base[name].dtype).view(base[name].shape)
        yield f"the order of the elements of {name} was", now
    yield "every element was", base
    other = {name: x.clone() for name, x in _again(judge, 3).tensors.items()}
    for name, x in other.items():
        for end in (0, -1) if x.numel() else ():
            x[(end,) * x.dim()] = base[name][(end,) * x.dim()]
    yield "everything but the first and the last elements was", other


def _on_grid(x: torch.Tensor) -> torch.Tensor:
    """Floating values rounded to a grid on which not many are equal; integers as they are."""
    return ((x.float() * GRID).round() / GRID).to(x.dtype) if x.is_floating_point() else x


def _same_place(x: torch.Tensor) -> torch.Tensor:
    """Another tensor on the same memory, as new for torch as one that was just allocated there."""
    with torch.no_grad():
        return torch.empty(0, dtype=x.dtype, device=x.device).set_(
            x.untyped_storage(), x.storage_offset(), x.shape, x.stride()
        )


def _in_turns(judge: Judge, trials: Sequence[Trial]) -> None:
    """Calls of different shapes and dtypes in turns, then one shape with other strides, all at one address."""
    largest, same = max(trials, key=lambda t: t.size), [layout for layout in LAYOUTS if layout.same]
    needs = [_reach(x, contiguous_strides(tuple(x.shape))) for t in trials for x in t.tensors.values()]
    needs += [_reach(x, _strides(layout, tuple(x.shape), largest)) for layout in same for x in largest.tensors.values()]
    every = {name: x for trial in trials for name, x in trial.tensors.items()}
    pools = {name: allocations.poisoned(max(needs) + 4096, torch.uint8, like) for name, like in every.items()}
    for turn in ORDER:
        trial = trials[turn % len(trials)]
        _outputs(judge, _at(trial, pools, contiguous_strides), f"{trial.text} in turn with {len(trials) - 1} others")
    for layout in same[: 3 if neighbouring_trials.slow(judge.probe) else None]:
        trial = _at(largest, pools, lambda shape, layout=layout: _strides(layout, shape, largest))  # type: ignore[misc]
        if not judge.probe.reasons(trial):
            _outputs(judge, trial, f"{largest.text} at one address, now laid out as {layout.name}")


def _reach(x: torch.Tensor, strides: Strides) -> int:
    """Bytes from the first to the last element, with such strides."""
    return (1 + sum((n - 1) * step for n, step in zip(x.shape, strides, strict=True))) * x.element_size()


def _strides(layout: layouts.LayoutRule, shape: tuple[int, ...], trial: Trial) -> Strides:
    made = layout.strides(shape, trial.dtype.itemsize)
    return contiguous_strides(shape) if made is None or made[1] else made[0]


def _at(trial: Trial, pools: dict[str, torch.Tensor], strides: Callable[[tuple[int, ...]], Strides]) -> Trial:
    """The trial with each tensor at the beginning of its pool."""
    placed = {}
    for name, x in trial.tensors.items():
        whole = pools[name][: pools[name].numel() // 16 * 16].view(x.dtype)
        placed[name] = whole.as_strided(x.shape, strides(tuple(x.shape)))
        placed[name].copy_(x)
    return trial.elsewhere("", **placed)


def _shorter(judge: Judge) -> None:
    """Of what a call has left in memory that is kept, a call with a shorter axis, or an empty one, uses nothing."""
    asked = [(judge.trial, "the first call")]
    for turn, axis in enumerate(neighbouring_trials.axes(judge.probe, judge.trial)):
        lengths = SHORTER[:: 1 if turn % 2 else -1]
        made = [neighbouring_trials.resized(judge.probe, judge.trial, {axis: n}) for n in (*lengths, 0)]
        shorter = [trial for trial in (made[:1] if judge.probe.brief else made[:-1]) + made[-1:] if trial]
        if shorter and turn:
            asked.append((judge.trial, "a call in turn with shorter ones"))
        asked += [(trial, f"{trial.text}, after a call with a longer {axis}") for trial in shorter]
    with ahead.together(judge.probe, [trial for trial, _ in asked]):
        for trial, when in asked:
            _outputs(judge, trial, when)


# --- threads ---------------------------------------------------------------------------------------------------


def _threads(judge: Judge, trials: Sequence[Trial]) -> None:
    """Calls in several threads at once give each its own result, whatever the others call and on which tensors."""
    rounds = 1 if neighbouring_trials.slow(judge.probe) else 8
    own = [_again(judge, turn) for turn in range(THREADS)]
    mixed = [neighbouring_trials.otherwise(judge.probe, judge.trial), *trials]
    for trial in mixed:
        judge.call(*trial.values)  # compiled and planned
    _together(judge, own, rounds, "each with inputs of its own")
    _together(judge, mixed, rounds, "each with a call of its own")
    if not neighbouring_trials.slow(judge.probe):
        _together(judge, [judge.trial] * THREADS, rounds, "all with the same tensors")


def _first_calls(judge: Judge, pause: float) -> None:
    """The first calls of a shape come from several threads, one shortly after another."""
    _together(judge, [judge.trial] * THREADS, 1, "all with the first call of this shape", pause)


def _together(judge: Judge, trials: Sequence[Trial], rounds: int, how: str, pause: float = 0.0) -> None:
    """Calls in as many threads as there are trials, each of which begins a pause after the one before."""

    def work(turn: int, trial: Trial) -> Callable[[], list[Any]]:
        def calls() -> list[Any]:
            time.sleep(turn * pause)
            return [dispatch.call(trial.spec, trial.values, judge.probe.label) for _ in range(rounds)]

        return calls

    if at_once := _at_once(judge, trials, threads=True):
        found: list[Any] = [[outputs] for outputs in at_once]
    else:
        with expected_warnings.noted(judge.remark), judge.probe.environment():
            found = side_by_side([work(turn, trial) for turn, trial in enumerate(trials)], judge.probe.device)
    for turn, (trial, results) in enumerate(zip(trials, found, strict=True)):
        for result in results:
            outputs = result if isinstance(result, tuple) else (result,)
            _right(judge, trial, f"thread {turn + 1} of {len(trials)}, {how}", outputs)


def _at_once(judge: Judge, trials: Sequence[Trial], threads: bool) -> list[tuple[torch.Tensor, ...]]:
    """The results of calls that a candidate's process is given in one message: in a row, or all at once in threads of it.

    [] for a function of this process.
    """
    process = implementation.process_of(judge.probe.implementation.fn)
    if not process:
        return []
    with expected_warnings.noted(judge.remark), judge.probe.environment():
        each = ahead.arguments(judge.probe, process, [trial.values for trial in trials])
        results = process.calls(each, threads)
    return [result if isinstance(result, tuple) else (result,) for result in results]


CHECK = Check(run=run, column="state", summary="calls leave nothing behind: results, inputs, threads, many calls")
