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
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.registry import backend as registered
from kernelmux.registry import cards, catalog, record, strange
from kernelmux.registry.cards import Card
from kernelmux.registry.cases import spelt
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import CompileFailure, KernelFailure, KernelmuxError, cut, shown
from kernelmux.registry.refusals import Refusal
from kernelmux.registry.stats import Ran

REFUSED = {"OutOfResources", "LaunchRefused"}  # of Triton and the emulator: known before anything was launched
CLASSES = {"AcceleratorError", "CUDADriverError", "CUDARuntimeError", *REFUSED}  # of torch and CuPy
COMPILERS = {
    "CompileException",
    "NVRTCError",
    "CompileError",
    "CompilationError",
    "PTXASError",
}  # CuPy, emulator, Triton
PASSES = "PassManager::run failed"  # what Triton says where a pass of its compiler gives up
LINES = 12  # of a compiler's log
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
        912,
        r"INVALID_CLUSTER_SIZE|cluster misconfiguration|invalid cluster",
        "a cluster of more blocks than the GPU can hold together with their shared memory",
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
    if _of_compiler(error):
        raise CompileFailure("\n".join(_uncompiled(error, ran, values))) from error
    if _of_cuda(error):
        raise KernelFailure("\n".join(_lines(error, ran, values))) from error
    strange.tell(error, catalog.spec(ran.operator), values)


def refusal(error: Exception, ran: Ran, values: tuple[Any, ...]) -> Refusal | None:
    """Why the card of a call took no launch of `ran`, or its compiler no kernel; None for every other error.

    After one of these the GPU works on. Of a backend made of torch's operators none is: torch has chosen there.
    """
    if registered.composite(registered.split(ran.variant)[0]):
        return None
    if _of_compiler(error):
        return Refusal(f"it does not compile for {_told(ran, values)}: {_said(error)}", compiles=False)
    if not _of_cuda(error) or (found := cause(error)) is UNKNOWN or found.late:
        return None
    launch = f" of {entry}" if (entry := _launch(error)) else ""
    return Refusal(f"the launch{launch} was refused: {_first(error)}; {_limits(ran, values)}")


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


def _named(error: Exception, names: Collection[str]) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _of_compiler(error: Exception) -> bool:
    return _named(error, COMPILERS) or (isinstance(error, RuntimeError) and str(error).startswith(PASSES))


def _of_cuda(error: Exception) -> bool:
    if isinstance(error, KernelmuxError | torch.OutOfMemoryError):
        return False
    named = _named(error, CLASSES)
    text = str(error)
    return (named or (isinstance(error, RuntimeError) and text.startswith(TEXTS))) and not MEMORY.search(text)


def cause(error: Exception) -> Cause:
    """What the text of an error says; `UNKNOWN` if it is none of `CAUSES`."""
    text = "too many resources" if _named(error, REFUSED) else str(error)
    return next((found for found in CAUSES if re.search(found.pattern, text, re.IGNORECASE)), UNKNOWN)


def _lines(error: Exception, ran: Ran, values: tuple[Any, ...]) -> Iterator[str]:
    found = cause(error)
    code = f"CUDA error {found.code}: " if found.code else ""
    yield f"{ran.operator}[{ran.variant}] failed on the GPU: {code}{_first(error)}"
    yield f"  call: {_described(ran.operator, values)}"
    if launch := _launch(error):
        yield f"  launch: {launch}"
    if not found.late:
        yield f"  card: {_limits(ran, values)}"
    yield f"  likely cause: {found.text}"
    if found.late or found is UNKNOWN:
        yield from _lateness()
    yield "  the exact place:"
    yield from (f"    {line}" for line in _ways(ran, values))
    if found.late:
        yield "  the CUDA context of this process is lost: every further call on the GPU fails, so start it anew"


def _uncompiled(error: Exception, ran: Ran, values: tuple[Any, ...]) -> Iterator[str]:
    yield f"{ran.operator}[{ran.variant}] does not compile for {_told(ran, values)}: {_said(error)}"
    yield f"  call: {_described(ran.operator, values)}"
    yield "  its compiler says:"
    lines = str(error).strip().splitlines()
    yield from (f"    {line}" for line in lines[:LINES])
    if len(lines) > LINES:
        yield f"    ({len(lines) - LINES} more lines in the {type(error).__name__} that is the __cause__ of this error)"


def _first(error: Exception) -> str:
    """The first line of an error, without the name of who raised it."""
    text = str(getattr(error, "message", None) or error)
    return re.sub(r"^(CUDA error|Triton Error \[CUDA\]): ", "", text.strip().partition("\n")[0])


def _said(error: BaseException) -> str:
    """The line of a compiler's log that says what is wrong."""
    while isinstance(error.__cause__, Exception) and _named(error.__cause__, COMPILERS):
        error = error.__cause__  # of a function that is called by a kernel of Triton
    text = str(getattr(error, "log", None) or getattr(error, "error_message", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return cut(next((line for line in lines if re.search(r"\b(error|fatal)\b", line, re.IGNORECASE)), lines[0]))


def _card(ran: Ran, values: tuple[Any, ...]) -> Card | None:
    """The card of a call; None for one on the CPU by a backend that emulates none."""
    x = next((v for v in values if isinstance(v, torch.Tensor) and v.is_cuda), None)
    if x is not None and torch.cuda.is_available():
        return cards.of_tensor(x)
    return cards.emulated() if registered.backend(registered.split(ran.variant)[0]).emulates else None


def _told(ran: Ran, values: tuple[Any, ...]) -> str:
    """The card of a call in words."""
    card = _card(ran, values)
    return f"{card} ({card.sm})" if card else "the CPU"


def _limits(ran: Ran, values: tuple[Any, ...]) -> str:
    """The card of a call, and what a block of it may have."""
    if (card := _card(ran, values)) is None:
        return "the CPU"
    shared = f"{card.shared_per_block} bytes of shared memory"
    return f"a block on {_told(ran, values)} may have {shared}, 1024 threads and {card.registers} registers"


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
