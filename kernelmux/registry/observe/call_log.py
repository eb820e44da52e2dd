"""What ran between two points of a program: `with kernelmux.record() as log: model(x)`, then `print(log)`.

`dispatch.call` asks for every call whether a log is open; nothing else of this module runs while none is.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernelmux.registry.choice.decision import amount
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError, shown
from kernelmux.registry.observe import cuda_errors, recorded_calls
from kernelmux.registry.observe.counters import Ran
from kernelmux.registry.observe.module_hooks import Modules
from kernelmux.registry.observe.recorded_calls import RecordedCall
from kernelmux.registry.util import text_tables, torch_modes

logs: tuple[CallLog, ...] = ()  # that are open in this process
_lock = threading.Lock()  # of `logs`
Signature = tuple[tuple[tuple[int | str, ...], torch.dtype], ...]
LAST = 12  # calls that a log names where one fails
SHAPES = 3  # of the most frequent signatures, in a table


@dataclass(frozen=True)
class LoggedCall(Ran):
    """Calls of one kind in a log.

    module: the qualified name of the module in whose forward they ran, "" for the model itself; `module_hooks.OUTSIDE` or
    `module_hooks.BACKWARD` where there is none; None in a log without a model. shapes: shapes and dtypes of the tensors,
    such as "4x8:fp32 8:fp32", with how many calls had them, the most frequent first. copies: tensors that were copied for
    the layout of a kernel; copied: their bytes.
    """

    module: str | None = None
    calls: int = 0
    shapes: tuple[tuple[str, int], ...] = ()
    copies: int = 0
    copied: int = 0


@dataclass
class _Tally:
    calls: int = 0
    copies: int = 0
    copied: int = 0
    shapes: Counter[Signature] = field(default_factory=Counter)

    def add(self, other: _Tally) -> None:
        self.calls += other.calls
        self.copies += other.copies
        self.copied += other.copied
        self.shapes += other.shapes


class CallLog:
    """The calls that began while a `record()` was open, in any thread; it may be read while it is still open."""

    def __init__(self, modules: Modules | None = None) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._tallies: dict[tuple[str | None, Ran], _Tally] = {}
        self._last: deque[tuple[Ran, Signature]] = deque(maxlen=LAST)
        self._recorded: dict[RecordedCall, None] = {}  # in their order

    @property
    def entries(self) -> tuple[LoggedCall, ...]:
        """One per kind of answer and module, the most frequent first."""
        with self._lock:
            found = [_entry(ran, tally, module) for (module, ran), tally in self._tallies.items()]
        return tuple(sorted(found, key=lambda e: -e.calls))

    @property
    def calls(self) -> int:
        """How many calls of operators began."""
        with self._lock:
            return sum(tally.calls for tally in self._tallies.values())

    @property
    def last(self) -> tuple[str, ...]:
        """The calls that began last, at most `LAST` of them, the latest at the end: "softmax[cuda/rows] 4x8:fp32"."""
        with self._lock:
            return tuple(f"{ran.operator}[{ran.variant}] {_signature(found)}" for ran, found in self._last)

    def table(self, by: str = "operator", width: int = text_tables.WIDTH) -> str:
        """What ran as a text: operator, variant, who asked, calls, shapes, copies and fallbacks.

        by="module" has a line per module of the model, in its order, as well. ArgumentError for another value, or for
        "module" in a log of no model.
        """
        if by not in ("operator", "module"):
            raise ArgumentError(f'table(): by: expected "operator" or "module", got {shown(by)}')
        if by == "module" and self._modules is None:
            raise ArgumentError('table(by="module"): the log knows no model: open it with kernelmux.record(model)')
        entries = self._ordered() if by == "module" else self._merged()
        if not entries:
            return "kernelmux.record(): no calls"
        columns = ["operator", "ran", "asked by", "calls", "tensors", "copies", "could not run"]
        columns = ["module", *columns] if by == "module" else columns
        rows = [_row(entry, by) for entry in entries]
        return text_tables.text(columns, rows, {"calls"}, {"copies", "could not run"}, width)

    def save(self, path: str | Path) -> None:
        """Write what was called into a file, each kind of call once, from which `kernelmux warm` compiles the kernels.

        The file holds shapes, strides, dtypes, scalars and variants, and no values. OSError where it cannot be written.
        """
        with self._lock:
            found = [*self._recorded]
        recorded_calls.write(Path(path), found)

    def note(self, ran: Ran, copies: Sequence[int], values: tuple[Any, ...]) -> None:
        """One more call; copies: positions of the arguments that it copies."""
        tensors = [x for x in values if isinstance(x, torch.Tensor)]
        signature = tuple((_shape(x), x.dtype) for x in tensors)
        size = sum(values[i].numel() * values[i].element_size() for i in copies) if copies else 0
        key = (self._modules.current() if self._modules else None, ran)
        recorded = RecordedCall.of(ran.operator, values, ran.variant)
        with self._lock:
            tally = self._tallies.get(key)
            if tally is None:
                tally = self._tallies[key] = _Tally()
            tally.calls += 1
            tally.copies += len(copies)
            tally.copied += size
            tally.shapes[signature] += 1
            self._last.append((ran, signature))
            if recorded:
                self._recorded[recorded] = None

    def _merged(self) -> list[LoggedCall]:
        """The entries without their modules."""
        sums: dict[Ran, _Tally] = {}
        with self._lock:
            for (_, ran), tally in self._tallies.items():
                sums.setdefault(ran, _Tally()).add(tally)
        return sorted((_entry(ran, tally) for ran, tally in sums.items()), key=lambda e: -e.calls)

    def _ordered(self) -> list[LoggedCall]:
        """The entries in the order of the modules of the model."""
        order = self._modules.order if self._modules else {}
        return sorted(self.entries, key=lambda e: order.get(e.module or "", len(order)))

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        with self._lock:
            operators = {ran.operator for _, ran in self._tallies}
        model = " of a model" if self._modules else ""
        state = "open" if self in logs else "closed"
        found = f"{text_tables.counted(self.calls, 'call')} of {text_tables.counted(len(operators), 'operator')}"
        return f"<kernelmux log{model}, {state}: {found}>"


@contextmanager
def record(model: torch.nn.Module | None = None) -> Iterator[CallLog]:
    """Write down every call of an operator while the `with` is open.

        with kernelmux.record() as log:
            model(x).sum().backward()
        print(log)                        # or log.table(), log.entries

    It sees the calls of the whole process, since autograd makes those of a backward pass on threads of its own. Several
    logs may be open at once; each has every call. A call counts when it begins, also one that then raises.

    model: attributes each call to the module in whose forward it ran, for log.table(by="module"), by hooks that are removed
    at the end. Calls of the backward pass have no module, but for those of a recomputed forward (checkpointing). What
    torch.compile made of a model runs without its modules, so calls in it count as outside. ArgumentError for what is no
    torch.nn.Module.

    An error of CUDA that shows in a function of torch, such as torch.cuda.synchronize(), gets a note of what ran last.
    """
    if model is not None and not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"record(): model: expected a torch.nn.Module or nothing, got {shown(model)}")
    modules = Modules(model) if model is not None else None
    log = CallLog(modules)
    _change(lambda found: (*found, log))
    try:
        yield log
    except Exception as error:
        cuda_errors.annotate(error, log.last)
        raise
    finally:
        _change(lambda found: tuple(other for other in found if other is not log))
        if modules:
            modules.close()


def _change(how: Any) -> None:
    global logs
    with _lock:
        logs = how(logs)


def note(ran: Ran, copies: Sequence[int], values: tuple[Any, ...]) -> None:
    """One more call, for every log that is open."""
    with torch_modes.untraced():  # shapes are numbers
        for log in logs:
            log.note(ran, copies, values)


def _entry(ran: Ran, tally: _Tally, module: str | None = None) -> LoggedCall:
    shapes = tuple((_signature(found), count) for found, count in tally.shapes.most_common())
    return LoggedCall(
        **vars(ran), module=module, calls=tally.calls, shapes=shapes, copies=tally.copies, copied=tally.copied
    )


def _shape(x: torch.Tensor) -> tuple[int | str, ...]:
    """The lengths of a tensor; by name where they are symbols, which have no hash."""
    shape = tuple(x.shape)
    return shape if all(type(length) is int for length in shape) else tuple(map(str, shape))


def _signature(found: Signature) -> str:
    """Shapes and dtypes as the command line takes them."""
    return " ".join(f"{'x'.join(map(str, shape)) or 'scalar'}:{SHORT.get(dtype, dtype)}" for shape, dtype in found)


def _row(entry: LoggedCall, by: str) -> list[str]:
    module = [] if by == "operator" else ["" if entry.module is None else entry.module or "(the model)"]
    copies = f"{entry.copies}, {amount(entry.copied)}" if entry.copies else ""
    head = [*module, entry.operator, entry.variant, entry.source, str(entry.calls), _shapes(entry)]
    return [*head, copies, entry.fallback.replace(" | ", "\n")]


def _shapes(entry: LoggedCall) -> str:
    """The most frequent signatures, a line each, and how many more there are."""
    several = len(entry.shapes) > 1
    lines = [
        text + (f" ({text_tables.counted(count, 'call')})" if several else "") for text, count in entry.shapes[:SHAPES]
    ]
    further = len(entry.shapes) - SHAPES
    return "\n".join([*lines, *([f"and {further} more"] if further > 0 else [])])
