"""Tensors that reach beyond 2^31 elements: an index kept in 32 bits wraps around.

Two kinds: views over few elements whose strides are huge, and contiguous tensors that are that large, inputs as well as
outputs. On a GPU the large ones are a small trial repeated along an axis; its last slices must be those of the small
trial. The emulator has memory that takes no room until it is used, and runs the last blocks alone.
"""

from __future__ import annotations

from functools import partial

import torch

from kernelmux.candidate import allocations
from kernelmux.candidate import implementation as candidate
from kernelmux.candidate.allocations import Strides
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import layouts
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging.exclusive_memory import memory_turn, room
from kernelmux.conformance.judging.probe import Failed, Judge, Probe
from kernelmux.conformance.variations import large_tensors, resize
from kernelmux.conformance.variations import partial_emulation as some_blocks
from kernelmux.conformance.variations.large_tensors import FAR
from kernelmux.conformance.variations.partial_emulation import Unsuitable
from kernelmux.conformance.variations.resize import AxisName
from kernelmux.registry.backend import Backend
from kernelmux.registry.cases import Case
from kernelmux.registry.errors import ArgumentError

SECONDS = 0.7  # for an emulated call: a few blocks take less
SPARE = 1.3  # of the memory that the tensors need
ENOUGH = 10  # times as much as the tensors need: one that computes in float64 has copies of four times their size
UNREAD = "its last blocks may have read what blocks of another launch, that did not run, were to write"
NO_ROOM = "the variant takes more memory on the way than the GPU has free"


def run(probe: Probe) -> None:
    if probe.spec.hosted and probe.device.type == "cuda":
        probe.skip_all("its input is pinned host memory, and gigabytes of that are not to be had everywhere")
        return
    for base in _of_small(probe):
        for name, x in base.tensors.items():
            if any(n > 1 for n in x.shape):
                with memory_turn(probe.device):
                    _far_apart(probe, base, name, x)
    if probe.spec.hosted:
        return  # copies by the driver would touch all of it
    for base in _bases(probe):
        case = resize.case_of(probe, base)
        for axis, (length, what, dimensions) in large_tensors.lengths(probe.spec, case, base.dtype).items():
            with memory_turn(probe.device):
                _large(probe, base, case, axis, length, what, dimensions)


def _of_small(probe: Probe) -> list[Trial]:
    """The smallest trial, and the smallest matrix: a vector has no pitch, and rows of higher ranks are often copied."""
    matrices = probe.sample(1 if probe.emulated else 2, where=_is_matrix)
    return list({trial.text: trial for trial in (*probe.sample(1), *matrices)}.values())


def _is_matrix(trial: Trial) -> bool:
    return any(x.dim() == 2 and len(x) > 1 for x in trial.tensors.values())


def _bases(probe: Probe) -> list[Trial]:
    """Small trials that may grow along some axis, of two bytes per element where the variant can run such."""

    def grows(trial: Trial, most: int) -> bool:
        case = resize.case_of(probe, trial)
        return trial.dtype.itemsize <= most and bool(large_tensors.lengths(probe.spec, case, trial.dtype))

    count = 1 if probe.emulated else 2
    return probe.sample(count, where=partial(grows, most=2)) or probe.sample(count, where=partial(grows, most=8))


# --- strides ---------------------------------------------------------------------------------------------------


def _far_apart(probe: Probe, base: Trial, name: str, x: torch.Tensor) -> None:
    """The first axis of one input that has steps takes them so far that its last slice lies beyond 2^31 elements."""
    strides = far_strides(tuple(x.shape))
    need = allocations.extent(x.shape, strides) * x.element_size()
    note = f"{name}: strides {strides}"
    if x.is_cuda and room(x.device) < need * _spare(probe):
        probe.skip(base.changed(note), f"needs {need / 2**30:.0f} GiB of free device memory")
        return
    far = layouts.laid_out(x, strides) if x.is_cuda else allocations.virtual(x.shape, strides, x.dtype).copy_(x)
    trial = base.changed(note, **{name: far})
    if probe.able(trial):
        with probe.judge(trial) as judge:
            free = _free(probe)
            try:
                outputs = some_blocks.call(probe, trial, 60, some=False) if probe.emulated else judge.call()
            except torch.OutOfMemoryError:
                if _enough(probe, free, need):
                    raise
                some_blocks.skipped(judge, NO_ROOM)
                return
            judge.accurate(outputs)


def far_strides(shape: tuple[int, ...]) -> Strides:
    """Contiguous but for the first axis longer than 1."""
    axis = next(i for i, n in enumerate(shape) if n > 1)
    strides = list(allocations.contiguous_strides(shape))
    strides[: axis + 1] = [FAR // (shape[axis] - 1) + 1] * (axis + 1)
    return tuple(strides)


# --- sizes -----------------------------------------------------------------------------------------------------


def _large(
    probe: Probe, base: Trial, case: Case, axis: AxisName, length: int, what: str, dimensions: dict[int, int]
) -> None:
    """One axis is so long that the tensor `what` has 2^31 elements."""
    note = f"{what} of 2^31 elements, {axis} = {length}"
    if reason := _no_room(probe, base, length, dimensions):
        probe.skip(base.changed(note), reason)
        return
    placed = base.changed(note, **large_tensors.grown(probe.spec, case, axis, length, base.tensors))
    try:
        able = probe.able(placed)
    except ArgumentError as problem:  # the spec allows the call, but the machine has no room for its outputs
        probe.skip(base.changed(note), str(problem))
        return
    if not able:
        return
    with probe.judge(base.changed(note)) as judge:
        _last_slices(judge, placed, base, dimensions)


def _spare(probe: Probe) -> float:
    """How many times the memory of the tensors has to be free; a candidate's process has them as well."""
    return SPARE * (2 if candidate.process_of(probe.implementation.fn) else 1)


def _free(probe: Probe) -> int:
    return room(probe.device) if probe.device.type == "cuda" else 0


def _enough(probe: Probe, free: int, need: int) -> bool:
    """Whether a candidate that found no memory had as much as could be asked for, so that this is no excuse."""
    return bool(candidate.process_of(probe.implementation.fn)) and free > ENOUGH * need


def _no_room(probe: Probe, base: Trial, length: int, dimensions: dict[int, int]) -> str | None:
    if probe.device.type != "cuda":
        return None
    number, dimension = next(iter(dimensions.items()))
    times = length / base.references[number].shape[dimension]
    need = times * base.size * base.dtype.itemsize
    if room(probe.device) < need * _spare(probe):
        return f"needs {need / 2**30:.0f} GiB of free device memory"
    return None


def _last_slices(judge: Judge, placed: Trial, base: Trial, dimensions: dict[int, int]) -> None:
    """The last slices of the outputs (on a GPU the first as well) are those of the small trial."""
    probe, bounds = judge.probe, base.bounds(judge.probe.arithmetics(base))
    free = _free(probe)
    try:
        outputs = some_blocks.call(probe, placed, SECONDS) if probe.emulated else probe.call(placed.values)
    except Unsuitable as reason:
        some_blocks.set_aside(judge, str(reason))
        return
    except torch.OutOfMemoryError:
        if _enough(probe, free, sum(x.nbytes for x in placed.tensors.values())):
            raise
        some_blocks.skipped(judge, NO_ROOM)
        return
    for number, dimension in dimensions.items():
        ref = base.references[number]
        own, got = ref.shape[dimension], outputs[number]
        last = got.narrow(dimension, got.shape[dimension] - own, own)
        if probe.emulated and bool(some_blocks.unwritten(last, ref).all()):
            some_blocks.set_aside(judge, "its last blocks do not write the last slices")
            continue
        try:
            some_blocks.judged(judge, base, number, last, ref, bounds[number])
        except Failed:
            if not probe.emulated or len(some_blocks.blocks(probe, placed)) < 2:
                raise
            judge.record.assertions, judge.record.budget = 0, 0.0
            some_blocks.set_aside(judge, UNREAD)
            return
        if not probe.emulated:
            some_blocks.judged(judge, base, number, got.narrow(dimension, 0, own), ref, bounds[number])


def _applies(backend: Backend, device: str) -> bool:
    return device == "cuda" or backend.emulates


CHECK = Check(run=run, column="64-bit", applies=_applies, summary="strides and sizes beyond 2^31 elements")
