"""What is said of a call that runs all the same, once per process.

It is emulated, not run by the backend or variant that was preferred, without tensor cores, in a loop under vmap, not run by
a kernel at all in a module that `patch` swapped, not deterministic where torch's flag wants a warning of that, or chosen by
"auto" without times.
"""

from __future__ import annotations

import warnings

import torch

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import timings
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.choice import determinism
from kernelmux.registry.choice.decision import Decision, Verdict
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import DeterminismWarning, EmulationWarning, FallbackWarning, UnmeasuredWarning, depth
from kernelmux.registry.util import cards

AMPERE = (8, 0)  # the first whose tensor cores multiply bf16
HALVES = (torch.float16, torch.bfloat16)
_told: set[tuple[str, str]] = set()  # operator and reason
_emulating: set[str] = set()  # backends


def warn(decision: Decision, chosen: Verdict) -> None:
    """What there is to say of a choice: see the three functions below."""
    warn_fallback(decision, chosen)
    warn_varying(decision, chosen)
    warn_slow(decision, chosen)


def warn_fallback(decision: Decision, chosen: Verdict) -> None:
    """One FallbackWarning for an operator and what it was passed over for, at the line of the user who called.

    It counts as said even where warnings are errors: the next call must work. So does the one UnmeasuredWarning of a GPU
    of whose variants "auto" knows no time.
    """
    if decision.request.auto and (text := timings.lack(decision.call.device)):
        _once(("auto", text), text, UnmeasuredWarning)
    key = (decision.call.spec.name, " | ".join(fallback.reason for fallback in decision.fallbacks))
    news = not all(fallback.verdict.refused for fallback in decision.fallbacks)  # of those `warn_refused` has told
    if news and key not in _told:
        _once(key, _text(decision, chosen), FallbackWarning)


def warn_refused(op: str, variant: str, reason: str, chosen: Verdict) -> None:
    """One FallbackWarning for an operator and a variant that the card or its compiler refused, and what runs instead."""
    text = (
        f"{op}: {chosen.name} runs in place of {variant}: {reason}\n"
        "  Said once; kernelmux.stats() counts further calls, kernelmux.explain() tells more,"
        f' backend="{variant}" and use(..., strict=True) make it an error.'
    )
    _once((op, f"{variant} refused"), text, FallbackWarning)


def warn_slow(decision: Decision, chosen: Verdict) -> None:
    """One FallbackWarning for an operator and a card before sm_80 that multiplies 16 bits without tensor cores."""
    call = decision.call
    card, x = cards.emulated() if chosen.emulated else call.card, call.arguments[call.spec.leading.name]
    if card is None or card.capability >= AMPERE or x.dtype not in HALVES or registered.composite(chosen.backend):
        return
    ladder = registered.variants(chosen.backend, call.spec.name)
    if not any(map(_multiplies, ladder.values())):
        return
    form, key = SHORT[x.dtype], (call.spec.name, f"FMA on {card.key}")
    if not card.multiplies(form):
        _once(key, f"{call.spec.name}: {card} has no tensor cores for {form}: computed by FMA in fp32", FallbackWarning)
    elif not _multiplies(ladder[chosen.variant]) or card.capability < registered.backend(chosen.backend).cores:
        text = f"{call.spec.name}: {chosen.name} computes {form} by FMA in fp32 on {card}, without its tensor cores"
        _once(key, text, FallbackWarning)


def _multiplies(implementation: Implementation) -> bool:
    """Whether it computes on tensor cores."""
    kinds = implementation.arithmetic
    return any("mma" in kind for kind in ([kinds] if isinstance(kinds, str) else kinds.values()))


def warn_varying(decision: Decision, chosen: Verdict) -> None:
    """One DeterminismWarning for an operator and a variant that runs although torch's flag asks for equal bits."""
    if not chosen.varies or determinism.mode() == determinism.OFF:
        return
    text = (
        f"{decision.call.spec.name}: the bits of {chosen.name} may differ from call to call (deterministic=False), but"
        f" {determinism.FLAG}(True, warn_only=True) is set.\n  Said once; without warn_only it is an error."
    )
    _once((decision.call.spec.name, f"{chosen.name} varies"), text, DeterminismWarning)


def warn_looped(op: str, reason: str) -> None:
    """One FallbackWarning for an operator that vmap runs once per example, and why, at the line of the user."""
    text = f"{op}: vmap runs one call per example of the batch, because {reason}\n  Said once."
    _once((op, reason), text, FallbackWarning)


def warn_left(op: str, reason: str) -> None:
    """One FallbackWarning for an operator, and a reason why a call of a module that `patch` swapped runs as before."""
    text = (
        f"{op}: a call of a module that patch() swapped runs as before, because {reason}\n"
        "  Said once; kernelmux.stats() counts further calls."
    )
    _once((op, reason), text, FallbackWarning)


def _once(key: tuple[str, str], text: str, category: type[Warning]) -> None:
    """A warning at the line of the user, the first time that something is said; where warnings are errors, too."""
    if key in _told:
        return
    _told.add(key)
    warnings.warn(text, category, stacklevel=depth())


def warn_emulated(name: str, stacklevel: int = 5) -> None:
    """Once per backend, before anything runs; where warnings are errors it stops the first call and no other."""
    if name in _emulating:
        return
    _emulating.add(name)
    warnings.warn(
        f'backend "{name}" runs its GPU kernels on the emulator for CPU tensors: correct but slow',
        EmulationWarning,
        stacklevel=stacklevel,  # past _plan, call and the compiled public function: the line of the user
    )


def _text(decision: Decision, chosen: Verdict) -> str:
    reasons = "".join(
        f"\n  {f.label}: {'; '.join(f.verdict.reasons)}{_remedies(f.verdict)}" for f in decision.fallbacks
    )
    asked = "auto" if decision.request.auto else f"{', '.join(decision.request.names)} (from {decision.request.source})"
    return (
        f"{decision.call.spec.name}: {asked} chose {chosen.name}, because these cannot run the call:{reasons}\n"
        "  Said once; kernelmux.stats() counts further calls, kernelmux.explain() tells more,"
        " use(..., strict=True) makes it an error."
    )


def _remedies(verdict: Verdict) -> str:
    found = [unmet.remedy for unmet in verdict.unmet if unmet.remedy]
    return f"  -> {', '.join(found)}" if found else ""
