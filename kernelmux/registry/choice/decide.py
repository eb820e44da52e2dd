"""Choosing: a verdict on each variant that was asked for, the choice, and the refusal that gives every reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NoReturn

import torch

from kernelmux.registry.backend import device_tables, timings
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.lookup import Candidate
from kernelmux.registry.choice import decision as explanation
from kernelmux.registry.choice import determinism, gradient_support, refusals
from kernelmux.registry.choice.decision import Decision, Fallback, Verdict
from kernelmux.registry.choice.requests import Request
from kernelmux.registry.errors import BackendUnavailable, UnsupportedError, unknown
from kernelmux.registry.spec.conditions import Unmet, sm, unmet
from kernelmux.registry.spec.signature import Call
from kernelmux.registry.util import cards, torch_modes
from kernelmux.registry.util.torch_modes import Surroundings

Label = tuple[str, str | None]  # backend and variant, as `registered.split` gives them


def _bytes(call: Call, key: str) -> int:
    x = call.arguments[key]
    return int(math.prod(x.shape) * x.element_size())


def _as_copied(call: Call, copies: tuple[str, ...], lacks: list[Unmet]) -> Call:
    """The call as the implementation will see it: what is copied has the strides and the alignment of a new tensor.

    lacks: gets the copies that do not fit.
    """
    if not call.hypothetical:
        for k in copies:
            if lack := torch_modes.shortage(call.device, _bytes(call, k)):
                lacks.append(Unmet(f"needs a copy of {k} that does not fit: {lack}", kind=f"room for a copy of {k}"))
    fresh = {k: torch.empty(call.arguments[k].shape, dtype=call.arguments[k].dtype, device="meta") for k in copies}
    return replace(call, arguments={**call.arguments, **fresh})


def _not_followed(call: Call, candidate: Candidate) -> list[Unmet]:
    """Which derivatives of a call kernels do not give."""
    name = candidate.home.name
    gradient = partial(gradient_support.lack, call.spec, name)
    return [Unmet(text) for text in torch_modes.reasons(name, call.tensors, gradient, _instead())]


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
    around: Surroundings | None = None,
    first: bool = False,
) -> list[Verdict]:
    """The verdict on each variant of one backend (or on one of them), in ladder order; where: who asked, for an error.

    lenient: one that is not deterministic may run, whatever torch's flag says. tried: one that the card or its compiler
    has refused for such a call cannot run. around: what surrounds the call, where that was read already. first: of the
    last that can run the call, if its backend's bare name may stand for it, and of those behind it.
    """
    ladder = registered.ladder(name, call.spec.name, call.device, elsewhere)
    if ladder.down:
        return [Verdict(name, only or "", (Unmet(ladder.down),), down=True)]
    if only and (why := registered.refused.get((name, call.spec.name, only.partition(".")[0]))):
        return [Verdict(name, only, (Unmet(why),), down=True)]
    if not ladder.candidates:
        return [Verdict(name, only or "", (Unmet(f"has no implementation of {call.spec.name}"),), missing=True)]
    wanted = [c for c in ladder.candidates if only in (None, c.variant)]
    if not wanted:
        raise unknown(f"variant of {name} for {call.spec.name}", only, [c.variant for c in ladder.candidates], where)
    around = around or torch_modes.surroundings(call.tensors.values())
    return _judged(call, wanted, around, lenient, tried and not elsewhere, first, only is not None)


def _judged(
    call: Call, candidates: list[Candidate], around: Surroundings, lenient: bool, tried: bool, first: bool, named: bool
) -> list[Verdict]:
    """What `verdicts` gives for these candidates; the best, which is the last of a ladder, is asked first. named: a variant
    was, which then runs calls too that it is not for."""
    tensors = call.tensors
    followed = around.forward or (around.grad and any([x.requires_grad for x in tensors.values()]))
    odd = [k for k, x in tensors.items() if x.is_neg() or x.is_conj()]  # only torch reads "negate when read"
    forbidden = around.deterministic != determinism.OFF and not lenient
    found: list[tuple[Candidate, list[Unmet], tuple[str, ...], bool]] = []
    for candidate in reversed(candidates):
        composite, layout = candidate.composite, candidate.implementation.layout
        lacks = _not_followed(call, candidate) if followed and not composite else []
        strided = [k for k, how in layout.items() if how != "any" and k in tensors and not tensors[k].is_contiguous()]
        unfit = [k for k in strided if not registered.fits(tensors[k], layout[k])] + ([] if composite else odd)
        copies = tuple([k for k in tensors if k in unfit]) if unfit else ()
        try:
            seen = _as_copied(call, copies, lacks) if copies else call
            if candidate.emulated and call.capability is None:
                seen = replace(seen, capability=cards.emulated().capability)
            conditions = candidate.implementation.requires + (() if named else candidate.implementation.pays)
            lacks += [lack for condition in conditions if (lack := unmet(condition, seen))]
        except Exception as error:  # a condition of a plugin: its mistake must not reach calls of others
            kind = f"a condition of {candidate.name} fails"
            lacks.append(Unmet(f"{kind}: {type(error).__name__}: {error}", kind=kind))
        if candidate.varies and forbidden:
            lacks.append(determinism.FORBIDDEN)
        refusal = refusals.of(call, candidate.name) if tried and refusals.noted else None
        lacks += [refusal.unmet] if refusal else []
        found.append((candidate, lacks, copies, refusal is not None))
        if first and not named and not lacks and not candidate.joined:
            break
    return [
        Verdict.on(candidate, lacks, copies, tuple([_bytes(call, k) for k in copies]), refused)
        for candidate, lacks, copies, refused in reversed(found)
    ]


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
    where what the backend of highest priority would run has no time: it is not passed over for want of one. A lesser
    variant of it, whose time is still there when that of the better one is of other sources, says nothing of it: on an H200
    a step of decoding 16 sequences took 1788 us by such times, and 1475 by priorities.
    """
    if preferred.name not in near.times:
        return None
    composite = {v.backend for v in judged if v.candidate and v.candidate.composite}
    ours = (v for v in judged if v.able and not (v.joined and v.backend in composite))
    runs = {v.backend if v.backend in composite else v.name: v for v in ours}
    able = {v.name: v for v in runs.values() if not v.copies}
    name = near.fastest(list(able))
    return able[name] if name else None


def decide(
    call: Call,
    request: Request,
    thorough: bool = False,
    elsewhere: bool = False,
    around: Surroundings | None = None,
) -> Decision:
    """Choose for a call; `thorough` also judges the backends that were not asked for, and all variants of the others.

    elsewhere: the question is about another machine, and what this one lacks does not matter; the times of a GPU elsewhere
    count within `device_tables.of_emulated`. Where torch only warns of what is not deterministic, such a variant is chosen
    if no other can run the call. around: what surrounds the call, where that was read already.
    """
    around = around or torch_modes.surroundings(call.tensors.values())
    if request.auto:
        named: list[Label] = [(name, None) for name in registered.by_priority(call.device, elsewhere)]
        near = None if elsewhere and not device_tables.emulating() else timings.nearest(call)
    else:
        named, near = [registered.split(label, request.source) for label in request.names], None
    decision = _decided(call, request, named, near, thorough, elsewhere, around)
    if decision.chosen or around.deterministic != determinism.WARN:
        return decision
    return _decided(call, request, named, near, thorough, elsewhere, around, lenient=True)


def _decided(
    call: Call,
    request: Request,
    named: list[Label],
    near: timings.Nearest | None,
    thorough: bool,
    elsewhere: bool,
    around: Surroundings,
    lenient: bool = False,
) -> Decision:
    """named: whom the request asks, in order. near: the times that "auto" knows of calls like this one."""
    ask = partial(verdicts, call, elsewhere=elsewhere, lenient=lenient, tried=request.descends, around=around)
    if request.auto and (ahead := _ahead(call, [name for name, _ in named], ask)):
        named = [*((name, None) for name in ahead), *(label for label in named if label[0] not in ahead)]
        request = replace(request, source=_why(call, ahead))
    # A misspelt variant is an error in any place.
    found = {label: ask(*label, where=request.source) for label in named if label[1]}
    judged: dict[Label, list[Verdict]] = {}
    chosen: Verdict | None = None
    fallbacks: list[Fallback] = []
    for label in dict.fromkeys(named):
        eligible = chosen is None and (not request.strict or label == named[0])
        enough = eligible and not thorough and near is None
        more = judged[label] = found.get(label) or ask(*label, first=enough)
        if eligible:
            chosen = next((v for v in reversed(more) if not v.unmet and (label[1] or not v.joined)), None)
        if chosen is None:
            fallbacks += _passed(label, more, request)
        elif enough:
            break
    every = [verdict for more in judged.values() for verdict in more]
    if len(judged) > 1:
        every = list(dict.fromkeys(every))
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
    raise kind(f"{what}\n{explanation.decision_text(decision, width=None)}{hint}")
