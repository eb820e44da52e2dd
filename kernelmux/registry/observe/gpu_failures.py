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
from typing import Any

import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.choice.refusals import Refusal
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import CompileFailure, KernelFailure, cut, shown
from kernelmux.registry.interop import torch_errors
from kernelmux.registry.observe import call_log
from kernelmux.registry.observe.counters import Ran
from kernelmux.registry.observe.cuda_errors import COMPILERS, UNKNOWN, WAYS, cause, named, of_compiler, of_cuda
from kernelmux.registry.spec.cases import arguments_text
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card

LINES = 12  # of a compiler's log


def tell(error: Exception, ran: Ran, values: tuple[Any, ...]) -> None:
    """Raise `KernelFailure` from an error of CUDA in a call of `ran` on these arguments; return from most others.

    What torch says of the arguments' class leaves as an error of ours too (`torch_errors`).
    """
    if of_compiler(error):
        raise CompileFailure("\n".join(_uncompiled(error, ran, values))) from error
    if of_cuda(error):
        raise KernelFailure("\n".join(_lines(error, ran, values))) from error
    torch_errors.tell(error, catalog.spec(ran.operator), values)


def refusal(error: Exception, ran: Ran, values: tuple[Any, ...]) -> Refusal | None:
    """Why the card of a call took no launch of `ran`, or its compiler no kernel; None for every other error.

    After one of these the GPU works on. Of a backend made of torch's operators none is: torch has chosen there.
    """
    if registered.composite(registered.split(ran.variant)[0]):
        return None
    if of_compiler(error):
        return Refusal(f"it does not compile for {_card_text(ran, values)}: {_said(error)}", compiles=False)
    if not of_cuda(error) or (found := cause(error)) is UNKNOWN or found.late:
        return None
    launch = f" of {entry}" if (entry := _launch(error)) else ""
    return Refusal(f"the launch{launch} was refused: {_first(error)}; {_limits(ran, values)}")


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
    yield f"{ran.operator}[{ran.variant}] does not compile for {_card_text(ran, values)}: {_said(error)}"
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
    while isinstance(error.__cause__, Exception) and named(error.__cause__, COMPILERS):
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


def _card_text(ran: Ran, values: tuple[Any, ...]) -> str:
    """The card of a call in words."""
    card = _card(ran, values)
    return f"{card} ({card.sm})" if card else "the CPU"


def _limits(ran: Ran, values: tuple[Any, ...]) -> str:
    """The card of a call, and what a block of it may have."""
    if (card := _card(ran, values)) is None:
        return "the CPU"
    shared = f"{card.shared_per_block} bytes of shared memory"
    return f"a block on {_card_text(ran, values)} may have {shared}, 1024 threads and {card.registers} registers"


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
    last = call_log.logs[-1].last if call_log.logs else None
    if last is None:
        yield "  (inside of `with kernelmux.record():` the operators that ran before would be listed here)"
    elif last:
        yield f"  operators that ran last, this one at the end: {'; '.join(last)}"


def _ways(ran: Ran, values: tuple[Any, ...]) -> Iterator[str]:
    yield from WAYS
    backend = registered.split(ran.variant)[0]
    if registered.backend(backend).emulates:
        text = arguments_text(catalog.spec(ran.operator), values)
        given = getattr(sys.modules.get(registered.guests.get(backend, "")), "GIVEN", "")  # a function from a file
        chosen = f"--impl {given}" if given else f"--backend {ran.variant}"
        yield f"kernelmux emulate {ran.operator} {chosen} --shape {text}"
        yield "    the same call without a GPU: bounds, alignment, races, by source line (small shapes are faster)"
    else:
        yield f"the emulator runs no kernels of {backend}; `kernelmux emulate` runs those of the others"
