"""Cases as kernels with arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmux.emulator.running.launch import load
from kernelmux.emulator.validation.hardware.matrices import MatrixCase
from kernelmux.emulator.validation.hardware.model import COUNT, HEADER, THREADS, InstructionCase
from kernelmux.emulator.validation.hardware.values import KINDS

Runnable = InstructionCase | MatrixCase


@dataclass(frozen=True)
class CaseLaunch:
    """Blocks of `threads` threads; `arrays` in the order of the parameters, those numbered in `outputs` are compared."""

    blocks: int
    threads: int
    arrays: list[np.ndarray[Any, Any]]
    outputs: tuple[int, ...]


def text(cases: Sequence[Runnable]) -> str:
    """A module with the kernels case_0, case_1, ..."""
    return HEADER + "".join(case.kernel(f"case_{number}") for number, case in enumerate(cases))


def launch_of(case: Runnable) -> CaseLaunch:
    """The arguments of a case, fresh."""
    inputs = [array.copy() for array in case.inputs]
    if isinstance(case, MatrixCase):
        result = np.zeros(COUNT * case.words[2], np.uint32)
        return CaseLaunch(COUNT // THREADS, THREADS, [*inputs, result], (3,))
    count, operands = len(inputs[0]), len(case.operands)
    arrays = [*inputs[:operands], np.zeros(count, KINDS[case.result].bits), *inputs[operands:]]
    return CaseLaunch(count // THREADS, THREADS, arrays, tuple(range(operands, len(arrays))))


def emulate(case: Runnable) -> list[np.ndarray[Any, Any]]:
    """The outputs of a case on the emulator."""
    launch = launch_of(case)
    load(text([case])).kernel("case_0").launch(launch.blocks, launch.threads, launch.arrays)
    return [launch.arrays[i] for i in launch.outputs]
