"""Kernels that hang, trap, or compute what has no value."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.validation.arrays import aligned, empty, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "endings and traps"
SOURCE = Path(__file__).with_suffix(".cu")
LIMIT = 1.0  # seconds, for the kernels that hang; on a busy machine 0.3 end before their loops begin
INT = np.int32


def _zeros(count: int, dtype: type[np.generic] = INT) -> np.ndarray:
    return aligned(np.zeros(count, dtype))


def halvings() -> CudaLaunch:
    x, y = ramp(32, dtype=INT), empty(32, dtype=INT)
    expected = [max(int(n).bit_length() - 1, 0) for n in x]
    return CudaLaunch(SOURCE, "halvings", 1, 32, {"x": x, "y": y}, {"y": np.array(expected)})


def wait_for_block() -> CudaLaunch:
    x, flag, base, y = ramp(32, dtype=INT), _zeros(1), _zeros(1), empty(2, 32, dtype=INT)
    arguments = {"x": x, "flag": flag, "base": base, "y": y}
    return CudaLaunch(SOURCE, "wait_for_block", 2, 32, arguments, {"y": x, "flag": INT(1), "base": x[0]})


def locked_sum() -> CudaLaunch:
    x, lock, y = ramp(4), _zeros(1), _zeros(1, np.float32)
    arguments = {"x": x, "lock": lock, "y": y}
    return CudaLaunch(SOURCE, "locked_sum", 1, 128, arguments, {"y": x.sum(), "lock": INT(0)})


def sums_to() -> CudaLaunch:
    x, y = ramp(32, dtype=INT), empty(32, dtype=INT)
    return CudaLaunch(SOURCE, "sums_to", 1, 32, {"x": x, "y": y}, {"y": (x % 8) * (x % 8 + 1) // 2})


def look_up() -> CudaLaunch:
    x, y, table = aligned(ramp(32, dtype=INT) % 8), empty(32, dtype=INT), aligned(ramp(8, dtype=INT) ** 2)
    return CudaLaunch(SOURCE, "look_up", 1, 32, {"x": x, "y": y, "table": table}, {"y": table[x]})


def divide() -> CudaLaunch:
    x, y, parts = aligned(ramp(32, dtype=INT) + 100), empty(32, dtype=INT), aligned(ramp(32, dtype=INT)[::-1])
    expected = np.append(x[:-1] // parts[:-1], 0)
    return CudaLaunch(SOURCE, "divide", 1, 32, {"x": x, "parts": parts, "y": y}, {"y": expected})


HANGS = "The kernel does not end."

DEFECTS = (
    Defect(
        "loop_without_progress",
        "A loop reaches a value that it never leaves.",
        HANGS,
        halvings,
        ("time limit",),
        limit=LIMIT,
    ),
    Defect(
        "flag_never_set",
        "A block waits for a flag that is never set.",
        HANGS,
        wait_for_block,
        ("time limit",),
        limit=LIMIT,
    ),
    Defect("lock_never_freed", "A lock is taken and not given back.", HANGS, locked_sum, ("time limit",), limit=LIMIT),
    Defect(
        "recursion_without_end",
        "A device function calls itself without end.",
        "The stack overflows.",
        sums_to,
        ("call stack",),
    ),
    Defect(
        "assertion_fails", "A device-side assert does not hold.", "The launch ends with an error.", look_up, ("trap",)
    ),
    Defect("trap_reached", "A thread executes a trap.", "The launch ends with an error.", look_up, ("trap",)),
    Defect(
        "division_by_zero",
        "One thread divides an integer by zero.",
        "No trap: the result is any number.",
        divide,
    ),
)
