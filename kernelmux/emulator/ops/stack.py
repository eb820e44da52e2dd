"""alloca, stacksave, stackrestore: local memory whose size is known when the kernel runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.parser import Immediate, Instruction

ALIGNMENT = 8  # bytes, where the instruction names none
MOST = 512 * 1024  # bytes of local memory of a thread


def _pointers(group: Any) -> np.ndarray:
    """The stack pointer of every lane of the chunk, in the frame of the current call: local offsets."""
    run, activation = group.run, group.run.activation
    if activation.stack is None:
        activation.stack_end = run.frame + activation.program.frame_size
        activation.stack = np.full(run.geometry.lanes, activation.stack_end, np.int64)
    pointers: np.ndarray = activation.stack
    return pointers


@operation("alloca")
def allocate(ins: Instruction) -> Action:
    """`alloca.u64 pointer, size{, alignment}`: bytes of local memory until the function returns."""
    target, size, *rest = ins.operands
    dtype = dtype_of(ins.type)
    alignment = rest[0].integer if rest and isinstance(rest[0], Immediate) else ALIGNMENT

    def run(group: Any, size: Any) -> np.ndarray:
        pointers = _pointers(group)
        begin = -(-pointers[group.index] // alignment) * alignment
        end = begin + group.full(size).astype(np.int64)
        wrong = (end > MOST) | (end < begin)
        if wrong.any():
            group.fail("call stack", f"alloca beyond the {MOST} bytes of a thread's local memory", wrong)
        pointers[group.index] = end
        _make_room(group, begin, end)
        return np.asarray(begin, dtype)

    return Action(run, ((size, dtype),), ((target, dtype),))


def _make_room(group: Any, begin: np.ndarray, end: np.ndarray) -> None:
    """Memory up to `end`; what is there now counts as not written."""
    activation, local = group.run.activation, group.run.access.local
    activation.stack_end = max(activation.stack_end, int(end.max()))
    local.reserve(activation.stack_end)
    if local.written is not None:
        place = np.arange(local.written.shape[1])
        local.written[group.index] &= (place < begin[:, None]) | (place >= end[:, None])


@operation("stacksave")
def save(ins: Instruction) -> Action:
    """`stacksave.u64 d`: the stack pointer."""
    dtype = dtype_of(ins.type)
    return Action(lambda group: _pointers(group)[group.index].astype(dtype), outputs=((ins.operands[0], dtype),))


@operation("stackrestore")
def restore(ins: Instruction) -> Action:
    """`stackrestore.u64 a`: gives back what was allocated since the stack pointer was saved."""

    def run(group: Any, saved: Any) -> None:
        pointers, wanted = _pointers(group), group.full(saved).astype(np.int64)
        frame = group.run.frame + group.run.activation.program.frame_size
        wrong = (wanted < frame) | (wanted > pointers[group.index])
        if wrong.any():
            group.fail("call stack", "stackrestore of something that no stacksave of this call has saved", wrong)
        pointers[group.index] = wanted

    return Action(run, ((ins.operands[0], dtype_of(ins.type)),))
