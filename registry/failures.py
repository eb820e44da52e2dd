"""A call that fails on the GPU: an error that names it, the likely cause, and the ways to the exact place.

    kernelmux.KernelFailure: softmax[cuda/rows] failed on the GPU: CUDA error 700: an illegal memory access was encountered

What runs a plan catches its errors and asks `tell`; nothing here runs while calls succeed. A kernel runs after its
launch has returned, so that an error of a kernel shows at a later call: the text says so, and with an open
`kernelmux.record()` which operators ran last.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, record, strange
from kernelmux.registry.cases import spelt
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import KernelFailure, KernelmuxError, shown
from kernelmux.registry.stats import Ran

CLASSES = {"AcceleratorError", "CUDADriverError", "CUDARuntimeError", "OutOfResources"}  # of torch, CuPy and Triton
TEXTS = ("CUDA error:", "CUDA_ERROR_", "Triton Error [CUDA]")  # how an error begins that has no class of its own
MEMORY = re.compile(r"out of memory|MEMORY_ALLOCATION|OUT_OF_MEMORY")  # torch's own text says what to do


@dataclass(frozen=True)
class Cause:
    """An error of CUDA. late: of a kernel that runs, so it shows later, and the process has lost its CUDA context."""

    code: int
    pattern: str
    text: str
    late: bool = True


CAUSES = (
    Cause(
        700,
        r"illegal (memory access|address)|ILLEGAL_ADDRESS",
        "a kernel accessed memory that belongs to no allocation: an index beyond a tensor, a tensor that was freed, or one"
        " in host memory",
    ),
    Cause(
        716,
        r"misaligned address|MISALIGNED_ADDRESS",
        "an access of 8 or 16 bytes at an address that is no multiple of its size: a view that begins inside of another"
        " tensor, or an odd stride",
    ),
    Cause(
        701,
        r"too many resources|OUT_OF_RESOURCES|out of resource",
        "a block wants more registers or shared memory than a multiprocessor has: fewer threads, smaller tiles or fewer"
        " stages; `python -m kernelmux.perf` without a GPU lists what each kernel needs",
        late=False,
    ),
    Cause(
        9,
        r"invalid configuration",
        "a grid or block that no GPU takes: a size of 0, more than 1024 threads in a block, or beyond 65535 in y or z of"
        " the grid",
        late=False,
    ),
    Cause(
        1,
        r"invalid argument|INVALID_VALUE",
        "the driver refused the launch itself: more than 1024 threads in a block, more dynamic shared memory than was"
        " allowed, or a tensor map that does not fit its tensor",
        late=False,
    ),
    Cause(
        719,
        r"unspecified launch failure|LAUNCH_FAILED",
        "a kernel was stopped while it ran: mostly an access beyond shared or local memory, or a barrier that was misused",
    ),
    Cause(
        710,
        r"device-side assert|ERROR_ASSERT",
        "an assert in a kernel failed: mostly an index out of range in an operator of torch; its message is on stderr",
    ),
    Cause(715, r"illegal instruction|ILLEGAL_INSTRUCTION", "a kernel ran an instruction that this GPU has not, or a trap"),
    Cause(717, r"shared or local address|INVALID_ADDRESS_SPACE", "a pointer to one kind of memory was used for another"),
    Cause(702, r"launch timed out|LAUNCH_TIMEOUT", "a kernel ran too long on a GPU that also drives a display"),
    Cause(
        209,
        r"no kernel image|NO_BINARY_FOR_GPU",
        "the kernel was compiled for another GPU: clear the caches of CuPy and Triton",
        late=False,
    ),
)  # fmt: skip
WAYS = (
    "CUDA_LAUNCH_BLOCKING=1 python ...               each launch is waited for: the call that raises is the one",
    "compute-sanitizer --tool memcheck python ...    kernel, thread and address; racecheck and initcheck for the rest",
)
UNKNOWN = Cause(0, r"", "not one of the usual errors: CUDA's text above is all that is known")


def tell(error: Exception, ran: Ran, values: tuple[Any, ...]) -> None:
    """Raise `KernelFailure` from an error of CUDA in a call of `ran` on these arguments; return from most others.

    What torch says of the arguments' class leaves as an error of ours too (`strange`).
    """
    if _of_cuda(error):
        raise KernelFailure("\n".join(_lines(error, ran, values))) from error
    strange.tell(error, catalog.spec(ran.operator), values)


def annotate(error: Exception, last: tuple[str, ...]) -> None:
    """Note at an error of CUDA that has reached no call which operators ran last, the likely cause, and what to do next."""
    if last and _of_cuda(error):
        lines = (
            f"kernelmux: operators that ran last, the latest at the end: {'; '.join(last)}",
            f"  likely cause, if it is a kernel of one of them: {cause(error).text}",
            "  the exact place:",
            *(f"    {way}" for way in WAYS),
        )
        error.add_note("\n".join(lines))


def _of_cuda(error: Exception) -> bool:
    if isinstance(error, KernelmuxError | torch.OutOfMemoryError):
        return False
    named = any(kind.__name__ in CLASSES for kind in type(error).__mro__)
    text = str(error)
    return (named or (isinstance(error, RuntimeError) and text.startswith(TEXTS))) and not MEMORY.search(text)


def cause(error: Exception) -> Cause:
    """What the text of an error says; `UNKNOWN` if it is none of `CAUSES`."""
    text = str(error)
    return next((found for found in CAUSES if re.search(found.pattern, text, re.IGNORECASE)), UNKNOWN)


def _lines(error: Exception, ran: Ran, values: tuple[Any, ...]) -> Iterator[str]:
    found = cause(error)
    code = f"CUDA error {found.code}: " if found.code else ""
    first = re.sub(r"^(CUDA error|Triton Error \[CUDA\]): ", "", str(error).strip().partition("\n")[0])
    yield f"{ran.operator}[{ran.variant}] failed on the GPU: {code}{first}"
    yield f"  call: {_described(ran.operator, values)}"
    if launch := _launch(error):
        yield f"  launch: {launch}"
    yield f"  likely cause: {found.text}"
    if found.late or found is UNKNOWN:
        yield from _lateness()
    yield "  the exact place:"
    yield from (f"    {line}" for line in _ways(ran, values))
    if found.late:
        yield "  the CUDA context of this process is lost: every further call on the GPU fails, so start it anew"


def _described(op: str, values: tuple[Any, ...]) -> str:
    """Arguments by name: shapes, dtypes, unusual strides and offsets of tensors; values of scalars."""
    return ", ".join(_argument(i.name, v) for i, v in zip(catalog.spec(op).inputs, values, strict=True))


def _argument(name: str, value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{name}={shown(value)}"
    notes = [] if value.is_contiguous() else [f"strides {tuple(value.stride())}"]
    notes += [f"offset {value.storage_offset()}"] if value.storage_offset() else []
    return " ".join([name, f"{SHORT.get(value.dtype, value.dtype)}{list(value.shape)}", *notes, f"on {value.device}"])


def _launch(error: Exception) -> str:
    """Grid and block of the launch that raised, from the frames that it came through; "" if none of them has any."""
    found, entry, at = "", "", error.__traceback__
    while at is not None:
        names: dict[str, Any] = at.tb_frame.f_locals
        home: Any = names.get("self")
        entry = getattr(home, "entry", "") or entry
        found = _shape(names, home, entry).strip() or found
        at = at.tb_next
    return found


def _shape(names: Mapping[str, Any], home: Any, entry: str) -> str:
    """The launch that a frame with these local names makes; "" for any other frame."""
    if "grid" in names and "block" in names:
        return f"{entry} grid {names['grid']}, block {names['block']}{_shared(names.get('shared'))}"
    if hasattr(home, "grid") and hasattr(home, "kernel"):  # of a kernel of Triton
        return f"{getattr(home.kernel, '__name__', '')} grid {home.grid}{_warps(home.meta.get('num_warps'))}"
    if "configurations" in names and "frames" in names:  # a replay of a kernel of Triton
        sizes = names["configurations"].sizes
        return f"grid {sizes[:3]}, block {sizes[3:6]}{_shared(sizes[6])}"
    if "fixed" in names and "frames" in names:  # of one of CUDA: its handle, grid, block, shared memory
        grid, block, shared = names["fixed"][1:4], names["fixed"][4:7], names["fixed"][7]
        return f"grid {grid}, block {block}{_shared(shared)}"
    return ""


def _shared(size: int | None) -> str:
    return f", {size} bytes of dynamic shared memory" if size else ""


def _warps(count: int | None) -> str:
    return f", {count} warps" if count else ""


def _lateness() -> Iterator[str]:
    """Whose launch it may have been."""
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield "  CUDA_LAUNCH_BLOCKING is set, so a launch of this call failed"
        return
    yield "  kernels run after their launch returns: this call has noticed the error, and an earlier one may have made it"
    last = record.logs[-1].last if record.logs else None
    if last is None:
        yield "  (inside of `with kernelmux.record():` the operators that ran before would be listed here)"
    elif last:
        yield f"  operators that ran last, this one at the end: {'; '.join(last)}"


def _ways(ran: Ran, values: tuple[Any, ...]) -> Iterator[str]:
    yield from WAYS
    backend = registered.split(ran.variant)[0]
    if registered.backend(backend).emulates:
        text = spelt(catalog.spec(ran.operator), values)
        given = getattr(sys.modules.get(registered.guests.get(backend, "")), "GIVEN", "")  # a function from a file
        chosen = f"--impl {given}" if given else f"--backend {ran.variant}"
        yield f"kernelmux emulate {ran.operator} {chosen} --shape {text}"
        yield "    the same call without a GPU: bounds, alignment, races, by source line (small shapes are faster)"
    else:
        yield f"the emulator runs no kernels of {backend}; `kernelmux emulate` runs those of the others"
