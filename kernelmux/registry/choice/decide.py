"""Choosing: a verdict on each variant that was asked for, the choice, and the refusal that gives every reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

import torch

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import timings
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.choice import decision as explanation
from kernelmux.registry.choice import determinism, gradient_support, refusals
from kernelmux.registry.choice.decision import Decision, Fallback, Verdict
from kernelmux.registry.choice.requests import Request
from kernelmux.registry.errors import BackendUnavailable, KernelmuxError, UnsupportedError, unknown
from kernelmux.registry.spec.conditions import Unmet, sm
from kernelmux.registry.spec.signature import Call
from kernelmux.registry.util import cards, torch_modes

Label = tuple[str, str | None]  # backend and variant, as `registered.split` gives them


def _judge(name: str, variant: str, implementation: Implementation, call: Call, lenient: bool, tried: bool) -> Verdict:
    emulated = registered.emulates(name, call.device)
    if emulated and call.capability is None:
        call = replace(call, capability=cards.emulated().capability)
    gradient = partial(gradient_support.lack, call.spec, name)
    texts = [] if registered.composite(name) else torch_modes.reasons(name, call.tensors, gradient, _instead())
    found = [Unmet(text) for text in texts]
    copies = tuple(k for k, x in call.tensors.items() if _copied(name, implementation, k, x))
    found += [
        Unmet(f"needs a copy of {k} that does not fit: {lack}", kind=f"room for a copy of {k}")
        for k in copies
        if (lack := _lack(call, k))
    ]
    try:
        found += implementation.unmet(_as_copied(call, copies))
    except Exception as error:  # a condition of a plugin: its mistake must not reach calls of others
        kind = f"a condition of {name}/{variant} fails"
        found.append(Unmet(f"{kind}: {type(error).__name__}: {error}", kind=kind))
    varies = determinism.varies(name, implementation)
    if varies and determinism.mode() != determinism.OFF and not lenient:
        found.append(determinism.FORBIDDEN)
    refusal = refusals.of(call, f"{name}/{variant}") if tried else None
    found += [refusal.unmet] if refusal else []
    copied, declared = tuple(_bytes(call, k) for k in copies), implementation.declared
    joined = registered.joined(call.spec.name, variant)
    return Verdict(
        name, variant, tuple(found), copies, copied, emulated, declared=declared, varies=varies, joined=joined,
        refused=refusal is not None,
    )  # fmt: skip


def _copied(name: str, implementation: Implementation, key: str, x: torch.Tensor) -> bool:
    """Whether an input does not fit the layout, or has a bit that says "negate when read", which only torch reads."""
    if (x.is_neg() or x.is_conj()) and not registered.composite(name):
        return True
    return not registered.fits(x, implementation.layout.get(key, "any"))


def _bytes(call: Call, key: str) -> int:
    x = call.arguments[key]
    return int(math.prod(x.shape) * x.element_size())


def _lack(call: Call, key: str) -> str | None:
    return None if call.hypothetical else torch_modes.shortage(call.device, _bytes(call, key))


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


def verdicts(
    call: Call,
    name: str,
    only: str | None = None,
    elsewhere: bool = False,
    where: str = "",
    lenient: bool = False,
    tried: bool = False,
) -> list[Verdict]:
    """The verdict on each variant of one backend (or on one of them), in ladder order; where: who asked, for an error.

    lenient: one that is not deterministic may run, whatever torch's flag says. tried: one that the card or its compiler
    has refused for such a call cannot run.
    """
    if not elsewhere and (reason := registered.unavailable(name, call.device)):
        return [Verdict(name, only or "", (Unmet(reason),), down=True)]
    try:
        ladder = registered.variants(name, call.spec.name)
    except KernelmuxError as error:
        return [Verdict(name, only or "", (Unmet(str(error).removeprefix(f"{name}: ")),), down=True)]
    if only and (why := registered.refused.get((name, call.spec.name, only.partition(".")[0]))):
        return [Verdict(name, only, (Unmet(why),), down=True)]
    if not ladder:
        return [Verdict(name, only or "", (Unmet(f"has no implementation of {call.spec.name}"),), missing=True)]
    if only is not None and only not in ladder:
        raise unknown(f"variant of {name} for {call.spec.name}", only, ladder, where)
    tried = tried and not elsewhere
    return [_judge(name, v, i, call, lenient, tried) for v, i in ladder.items() if only in (None, v)]


def by_priority(device: torch.device, elsewhere: bool = False) -> list[str]:
    """Backends by priority; never one that would be emulated, which is not even asked whether it could be."""
    names = [n for n in registered.backends() if not registered.emulates(n, device)]
    usable = [n for n in names if (registered.loads(n) if elsewhere else not registered.unavailable(n, device))]
    return sorted(usable, key=lambda n: -registered.backend(n).priority)


def _ahead(call: Call, order: list[str], ask: Callable[..., list[Verdict]]) -> dict[str, str]:
    """The backends that come first on the card of a call although others have a higher priority, each with the reason."""
    found: dict[str, str] = {}
    for name in order:
        if rules := [rule for rule in registered.backend(name).ahead if rule.concerns(call)]:
            able = [v.variant for v in ask(name) if v.able and not v.joined]
            best = f"{call.spec.name}/{able[-1]}" if able else ""
            why = next((rule.why for rule in rules if best in rule.variants), "")
            found |= {name: why} if why else {}
    return {} if list(found) == order[: len(found)] else found


def _why(call: Call, ahead: dict[str, str]) -> str:
    """Who speaks for them, as decisions tell it."""
    where = sm(call.capability) if call.capability else call.device.type
    return "auto: " + "; ".join(f"on {where} {name} first: {why}" for name, why in ahead.items())


def _timed(near: timings.Nearest, preferred: Verdict, judged: list[Verdict]) -> Verdict | None:
    """The fastest on record of those that can run the call as it is: no time on record contains a copy.

    Of a composite backend only the default counts: its other variants are baselines, which may round more often. None
    where the backend of highest priority has no time at all: it is not passed over for want of one.
    """
    if not any(registered.split(name)[0] == preferred.backend for name in near.times):
        return None
    composite = {v.backend for v in judged if registered.composite(v.backend)}
    ours = (v for v in judged if v.able and not (v.joined and v.backend in composite))
    runs = {v.backend if v.backend in composite else v.name: v for v in ours}
    able = {v.name: v for v in runs.values() if not v.copies}
    name = near.fastest(list(able))
    return able[name] if name else None


def decide(call: Call, request: Request, thorough: bool = False, elsewhere: bool = False) -> Decision:
    """Choose for a call; `thorough` also judges the backends that were not asked for.

    elsewhere: the question is about another machine, and what this one lacks does not matter. Where torch only warns of
    what is not deterministic, such a variant is chosen if no other can run the call.
    """
    decision = _decided(call, request, thorough, elsewhere)
    if decision.chosen or determinism.mode() != determinism.WARN:
        return decision
    return _decided(call, request, thorough, elsewhere, lenient=True)


def _decided(call: Call, request: Request, thorough: bool, elsewhere: bool, lenient: bool = False) -> Decision:
    ask = partial(verdicts, call, elsewhere=elsewhere, lenient=lenient, tried=request.descends)
    order = by_priority(call.device, elsewhere) if request.auto else list(request.names)
    if request.auto and (ahead := _ahead(call, order, ask)):
        order, request = [*ahead, *(n for n in order if n not in ahead)], replace(request, source=_why(call, ahead))
    named = [registered.split(label, request.source) for label in order]
    # A misspelt variant is an error in any place.
    found = {label: ask(*label, where=request.source) for label in named if label[1]}
    near = timings.nearest(call) if request.auto and not elsewhere else None
    judged: dict[Label, list[Verdict]] = {}
    chosen: Verdict | None = None
    fallbacks: list[Fallback] = []
    for label in dict.fromkeys(named):
        more = judged[label] = found.get(label) or ask(*label)
        if chosen is None and (not request.strict or label == named[0]):
            chosen = next((v for v in reversed(more) if v.able and (label[1] or not v.joined)), None)
        if chosen is None:
            fallbacks += _passed(label, more, request)
        if chosen and not thorough and near is None:
            break
    every = list(dict.fromkeys(verdict for more in judged.values() for verdict in more))
    if near and chosen and (timed := _timed(near, chosen, every)):
        chosen, request = timed, replace(request, source=near.source)
    if thorough or not chosen:
        every += _others(call, every, elsewhere, lenient)
    return Decision(call, request, chosen, tuple(every), tuple(fallbacks if chosen else ()))


def _passed(label: Label, judged: list[Verdict], request: Request) -> list[Fallback]:
    """What it says of a choice that this one was passed over; "auto" says nothing of what a call cannot change."""
    if request.auto and any(v.down or v.missing for v in judged):
        return []
    judged = [v for v in judged if label[1] or not v.joined] or judged
    nearest = min(reversed(judged), key=lambda v: len(v.unmet))  # of several the last: the best rung
    return [Fallback("/".join(filter(None, label)), nearest)]


def _others(call: Call, seen: list[Verdict], elsewhere: bool, lenient: bool) -> list[Verdict]:
    """Verdicts on the variants that were not asked for; a backend that cannot be asked is said once."""
    names, whole = {v.name for v in seen}, {v.backend for v in seen if v.down or v.missing}
    others = (name for name in registered.backends() if name not in whole)
    every = (v for name in others for v in verdicts(call, name, None, elsewhere, "", lenient, tried=True))
    return [replace(v, asked=False) for v in every if v.name not in names]


def refuse(decision: Decision) -> NoReturn:
    """Raise for a decision without a choice; the text lists all reasons and what could run instead."""
    able = [v.name for v in decision.verdicts if v.able]
    hint = f'\n  try: backend="{able[-1]}"' if able else ""
    what, asked = "no requested backend can run this call", [v for v in decision.verdicts if v.asked]
    if decision.forbidden:
        first = decision.verdicts[0].backend if decision.request.auto and asked else decision.request.names[0]
        what = f"{first} cannot run this call, and use(strict=True) forbids a fallback"
        asked = [v for v in asked if v.backend == registered.split(first)[0]]
    down = not decision.request.auto and asked and all(v.down for v in asked)
    kind = BackendUnavailable if down else UnsupportedError
    raise kind(f"{what}\n{explanation.explained(decision, width=None)}{hint}")
