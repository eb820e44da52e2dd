"""Choosing: a verdict on each variant that was asked for, the choice, and the refusal that gives every reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import torch

from kernelmux.registry import autograd, measured, tracing
from kernelmux.registry import backend as registered
from kernelmux.registry.backend import Implementation
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import BackendUnavailable, KernelmuxError, UnsupportedError, unknown
from kernelmux.registry.requests import Request
from kernelmux.registry.spec import Call

EMULATED = (9, 0)  # the compute capability that the emulator stands for


@dataclass(frozen=True)
class Verdict:
    """What became of one variant: able, or not and why.

    copies: inputs that would be copied to fit its layout, or because of their negative or conjugate bit. down: the whole
    backend, or its module for the operator, cannot be used here.
    """

    backend: str
    variant: str
    reasons: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    emulated: bool = False
    down: bool = False

    @property
    def name(self) -> str:
        return f"{self.backend}/{self.variant}" if self.variant else self.backend

    @property
    def able(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class Decision:
    """The answer of `explain`: the chosen variant or None, where the request came from, a verdict on every variant."""

    call: Call
    request: Request
    chosen: Verdict | None
    verdicts: tuple[Verdict, ...]

    def __str__(self) -> str:
        head = f"{self.call.spec.name}: {describe(self.call)}"
        strict = "; strict by use(strict=True)" if self.request.strict else "; strict" if self.request.single else ""
        asked = f"  requested: {', '.join(self.request.names)} (from {self.request.source}{strict})"
        none = "none, as no fallback is allowed" if _forbids(self) else "none, no variant supports this call"
        picked = f"  chosen: {self.chosen.name if self.chosen else none}"
        return "\n".join([head, asked, picked, *(_line(v, v == self.chosen) for v in self.verdicts)])


def _forbids(decision: Decision) -> bool:
    """Whether strictness stands between a call and a backend that could run it."""
    return decision.request.strict and not decision.request.single and decision.chosen is None


def _line(verdict: Verdict, chosen: bool) -> str:
    notes = ["emulated on the CPU"] if verdict.emulated else []
    notes += [f"copies {', '.join(verdict.copies)} to a form it can read"] if verdict.copies else []
    text = "; ".join(verdict.reasons) if verdict.reasons else "yes" + (f" ({'; '.join(notes)})" if notes else "")
    return f"  {'->' if chosen else '  '} {verdict.name:<28} {'no: ' if verdict.reasons else ''}{text}"


def describe(call: Call) -> str:
    """The call in one line: shapes, dtypes, unusual strides, device, scalars."""
    parts = []
    for name, value in call.arguments.items():
        if isinstance(value, torch.Tensor):
            strides = "" if value.is_contiguous() else f" strides {tuple(value.stride())}"
            parts.append(f"{name} {SHORT[value.dtype]}{list(value.shape)}{strides}")
        else:
            parts.append(f"{name}={value!r}")
    return f"{', '.join(parts)} on {call.device}"


def _judge(name: str, variant: str, implementation: Implementation, call: Call) -> Verdict:
    emulated = registered.emulates(name, call.device)
    if emulated and call.capability is None:
        call = replace(call, capability=EMULATED)
    gradient = partial(autograd.lack, call.spec, name)
    found = [] if registered.composite(name) else tracing.reasons(name, call.tensors, gradient, _instead())
    copies = tuple(k for k, x in call.tensors.items() if _copied(name, implementation, k, x))
    found += [f"needs a copy of {k} that does not fit: {lack}" for k in copies if (lack := _lack(call, k))]
    try:
        found += implementation.reasons(_as_copied(call, copies))
    except Exception as error:  # a condition of a plugin: its mistake must not reach calls of others
        found.append(f"a condition of {name}/{variant} fails: {type(error).__name__}: {error}")
    return Verdict(name, variant, tuple(found), copies, emulated)


def _copied(name: str, implementation: Implementation, key: str, x: torch.Tensor) -> bool:
    """Whether an input does not fit the layout, or has a bit that says "negate when read", which only torch reads."""
    if (x.is_neg() or x.is_conj()) and not registered.composite(name):
        return True
    return not registered.fits(x, implementation.layout.get(key, "any"))


def _lack(call: Call, key: str) -> str | None:
    x = call.arguments[key]
    return None if call.hypothetical else tracing.shortage(call.device, math.prod(x.shape) * x.element_size())


def _as_copied(call: Call, copies: tuple[str, ...]) -> Call:
    """The call as the implementation will see it: what is copied has the strides and the alignment of a new tensor."""
    if not copies:
        return call
    fresh = {k: torch.empty(call.arguments[k].shape, dtype=call.arguments[k].dtype, device="meta") for k in copies}
    return replace(call, arguments={**call.arguments, **fresh})


def _instead() -> str:
    """What to do where only a backend made of torch's operators can help."""
    able = [name for name in registered.backends() if registered.composite(name)]
    return f'use backend="{able[0]}"' if able else "use torch's own operators"


def verdicts(call: Call, name: str, only: str | None = None, elsewhere: bool = False, where: str = "") -> list[Verdict]:
    """The verdict on each variant of one backend (or on one of them), in ladder order; where: who asked, for an error."""
    if not elsewhere and (reason := registered.unavailable(name, call.device)):
        return [Verdict(name, only or "", (reason,), down=True)]
    try:
        ladder = registered.variants(name, call.spec.name)
    except KernelmuxError as error:
        return [Verdict(name, only or "", (str(error),), down=True)]
    if not ladder:
        return [Verdict(name, only or "", (f"has no implementation of {call.spec.name}",))]
    if only is not None and only not in ladder:
        raise unknown(f"variant of {name} for {call.spec.name}", only, ladder, where)
    return [_judge(name, v, i, call) for v, i in ladder.items() if only in (None, v)]


def by_priority(device: torch.device, elsewhere: bool = False) -> list[str]:
    """Backends by priority; never one that would be emulated, which is not even asked whether it could be."""
    names = [n for n in registered.backends() if not registered.emulates(n, device)]
    usable = [n for n in names if elsewhere or not registered.unavailable(n, device)]
    return sorted(usable, key=lambda n: -registered.backend(n).priority)


def _timed(near: measured.Nearest, judged: list[Verdict]) -> Verdict | None:
    """The fastest on record of those that can run the call as it is: no time on record contains a copy."""
    able = {v.name: v for v in judged if v.able and not v.copies}
    name = near.fastest(list(able))
    return able[name] if name else None


def decide(call: Call, request: Request, thorough: bool = False, elsewhere: bool = False) -> Decision:
    """Choose for a call; `thorough` also judges the backends that were not asked for.

    elsewhere: the question is about another machine, and what this one lacks does not matter.
    """
    order = by_priority(call.device, elsewhere) if request.auto else list(request.names)
    named = [registered.split(label, request.source) for label in order]
    # A misspelt variant is an error in any place.
    found = {label: verdicts(call, *label, elsewhere, request.source) for label in named if label[1]}
    near = measured.nearest(call) if request.auto and not elsewhere else None
    judged: list[Verdict] = []
    chosen: Verdict | None = None
    for label in named:
        more = found.get(label) or verdicts(call, *label, elsewhere)
        judged += more
        if not request.strict or label == named[0]:
            chosen = chosen or next((v for v in reversed(more) if v.able), None)
        if chosen and not thorough and near is None:
            break
    if near and chosen and (timed := _timed(near, judged)):
        chosen, request = timed, replace(request, source=near.source)
    if thorough or not chosen:
        seen = {v.backend for v in judged}
        for name in registered.backends():
            judged += verdicts(call, name, elsewhere=elsewhere) if name not in seen else []
    return Decision(call, request, chosen, tuple(judged))


def refuse(decision: Decision) -> NoReturn:
    """Raise for a decision without a choice; the text lists all reasons and what could run instead."""
    able = [v.name for v in decision.verdicts if v.able]
    hint = f'\n  try: backend="{able[-1]}"' if able else ""
    names, what = decision.request.names, "no requested backend can run this call"
    if _forbids(decision):
        first = decision.verdicts[0].backend if decision.request.auto and decision.verdicts else names[0]
        names = names if decision.request.auto else names[:1]
        what = f"{first} cannot run this call, and use(strict=True) forbids a fallback"
    heads = {registered.split(n)[0] for n in names if n != "auto"}
    asked = [v for v in decision.verdicts if v.backend in heads]
    kind = BackendUnavailable if asked and all(v.down for v in asked) else UnsupportedError
    raise kind(f"{what}\n{decision}{hint}")
