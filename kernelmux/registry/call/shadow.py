"""Shadow mode: a share of the calls is computed by another backend too, and compared; results stay as they are.

    with kx.use("cuda", shadow="torch_ref", sample=0.01):
        model(x)
    print(kx.shadow_report())

What is compared, and with what, says `judge`. A difference is counted, warned of once per operator and variant
(`ShadowWarning`), and kept as a folder that reproduces it (`repro_bundle`). Where warnings are errors, the first one stops
the program. What fails in the shadow is counted and warned of in the same way, and never raised into the call.

Not compared: a call that names its backend itself, one that is traced, compiled or captured in a CUDA graph, and what
torch's autograd computes behind a backend made of torch's operators. The operators of a backward are, as their forward was.
"""

from __future__ import annotations

import shlex
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernelmux.registry.backend import judge
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.judge import Judgement, Result
from kernelmux.registry.call import repro_bundle
from kernelmux.registry.call.plan import CallPlan
from kernelmux.registry.choice.decision import Verdict, describe
from kernelmux.registry.choice.requests import Request, Shadow
from kernelmux.registry.errors import ArgumentError, ShadowWarning, shown
from kernelmux.registry.spec.signature import Call, Spec
from kernelmux.registry.util import torch_modes

# How a call on plain tensors runs, and on which variant: `dispatch.resolve`.
Resolve = Callable[[Spec, tuple[Any, ...], Request], tuple[CallPlan, Verdict]]


@dataclass
class ShadowRow:
    """What became of the calls of one variant. sampled = agreed + violations + errors + skipped."""

    op: str
    variant: str
    shadow: str
    calls: int = 0
    sampled: int = 0
    agreed: int = 0
    violations: int = 0
    errors: int = 0
    skipped: int = 0
    last: str = ""
    bundle: str = ""

    def __str__(self) -> str:
        counts = f"{self.agreed} agreed, {self.violations} violations, {self.errors} errors, {self.skipped} skipped"
        notes = "".join(f"\n    {text}" for text in (self.last, self.bundle and f"kept in {self.bundle}") if text)
        return f"{self.op} {self.variant} and {self.shadow}: {self.sampled} of {self.calls} calls: {counts}{notes}"


@dataclass(frozen=True)
class ShadowReport:
    """The rows by operator, variant and shadow."""

    rows: tuple[ShadowRow, ...]

    @property
    def violations(self) -> int:
        """How many sampled calls had a result that was off."""
        return sum(row.violations for row in self.rows)

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows)) or "no call was shadowed"


_lock = threading.Lock()
_rows: dict[tuple[str, str, str], ShadowRow] = {}
_told: set[tuple[str, ...]] = set()


def shadow_report(reset: bool = False) -> ShadowReport:
    """What shadows have found in this process so far. reset: count from 0 again, and warn again."""
    if not isinstance(reset, bool):
        raise ArgumentError(f"shadow_report(): reset: expected True or False, got {shown(reset)}")
    with _lock:
        found = ShadowReport(tuple(replace(row) for _, row in sorted(_rows.items())))
        if reset:
            _rows.clear()
            _told.clear()
    return found


class Shadowed:
    """What a remembered plan calls in a scope with a shadow: the plan, and now and then the shadow as well."""

    def __init__(self, spec: Spec, plan: CallPlan, chosen: Verdict, shadow: Shadow, resolve: Resolve) -> None:
        self._spec, self._plan, self._shadow, self._resolve = spec, plan, shadow, resolve
        self._name = chosen.name
        self._key = (spec.name, chosen.name, ",".join(shadow.request.names))

    def __call__(self, *values: Any) -> Any:
        result = self._plan.run(values)
        drawn = self._shadow.drawn()
        self._count("calls", *(["sampled"] if drawn else []))
        if drawn:
            self._look(values, result)
        return result

    def _count(self, *fields: str, **texts: str) -> None:
        with _lock:
            row = _rows.setdefault(self._key, ShadowRow(*self._key))
            for name in fields:
                setattr(row, name, getattr(row, name) + 1)
            for name, text in texts.items():
                setattr(row, name, text or getattr(row, name))

    def _look(self, values: tuple[Any, ...], result: Any) -> None:
        """Compute the call again, compare, count, tell; raises nothing but a warning that is an error."""
        if why := _unfit(values, self._plan.device):
            self._count("skipped", last=why)
            return
        try:
            with torch.no_grad(), torch_modes.plain(self._plan.device):
                call, ours, theirs = self._both(values, result)
                found = _judged(call, ours, theirs)
        except Exception as error:  # the shadow's: the call has its result
            label = f"{self._key[2]} cannot run along: {type(error).__name__}: {error}"
            self._count("errors", last=label)
            self._tell("errors", f"{self._spec.name}: {label}")
            return
        if not found.wrong:
            self._count("skipped" if found.open else "agreed", last=found.open)
            return
        folder, lack = repro_bundle.keep(call, ours, theirs, found)
        self._count("violations", last="; ".join(found.wrong), bundle=folder)
        self._tell("violations", _text(call, found, folder))
        if lack:
            self._tell("bundles", f"{self._spec.name}: {lack}")

    def _both(self, values: tuple[Any, ...], result: Any) -> tuple[Call, Result, Result | None]:
        """The checked call with the result that it had, and that of the shadow: None if it is the same variant."""
        plain = tuple(v.detach() if isinstance(v, torch.Tensor) else v for v in values)
        plan, chosen = self._resolve(self._spec, plain, self._shadow.request)
        ours = _result(self._spec, self._name, result)
        theirs = None if chosen.name == self._name else _result(self._spec, chosen.name, plan.run(plain))
        return self._spec.bind(*plain), ours, theirs

    def _tell(self, kind: str, text: str) -> None:
        """Warn once of its kind for operator, variant and shadow, and once at all of a folder that cannot be written."""
        key = ("", "", kind) if kind == "bundles" else (*self._key, kind)
        with _lock:
            if key in _told:
                return
            _told.add(key)
        warnings.warn(f"{text}; further ones are counted in kernelmux.shadow_report()", ShadowWarning, stacklevel=6)


def _unfit(values: tuple[Any, ...], device: torch.device) -> str | None:
    """Why nothing can be compared here: there are no values yet."""
    if torch_modes.watched(values) or torch.compiler.is_compiling():
        return "skipped where torch traces: there are no values yet"
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "skipped in the capture of a CUDA graph: there are no values yet"
    return None


def _judged(call: Call, ours: Result, theirs: Result | None) -> Judgement:
    """The judgement; a reference that fails, or has no memory, leaves it open."""
    try:
        return judge.judge(call, ours, theirs)
    except Exception as error:
        return Judgement(open=f"could not be judged: {type(error).__name__}: {error}")


def _result(spec: Spec, name: str, found: Any) -> Result:
    home, _, variant = name.partition("/")
    outputs = tuple(y.detach() for y in (found if isinstance(found, tuple) else (found,)))
    return Result(name, registered.variants(home, spec.name)[variant], outputs)


def _text(call: Call, found: Judgement, folder: str) -> str:
    kept = f"; to run it again: python -m kernelmux.registry.shadow {shlex.quote(folder)}" if folder else ""
    return f"{call.spec.name}({describe(call)}) against {found.against}: {'; '.join(found.wrong)}{kept}"
