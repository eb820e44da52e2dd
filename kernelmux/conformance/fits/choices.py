"""Who would run a call on a card, or what of the card refuses it: asked as of a call on a GPU that is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelmux.registry.call import dispatch
from kernelmux.registry.cases import Case
from kernelmux.registry.choice import requests
from kernelmux.registry.choice.decision import Decision
from kernelmux.registry.choice.requests import AUTO
from kernelmux.registry.spec import OpSpec
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card

ASKED = ("auto", "cuda", "triton")
REFERENCE = "h100"  # what this card refuses too is refused for the call's sake
GPU = torch.device("cuda", 0)


@dataclass(frozen=True)
class VariantChoice:
    """variant: "cuda/tiled", "" where none can run the call. why: what of the card refuses it; "" where the call does."""

    variant: str = ""
    why: str = ""


def chosen(spec: OpSpec, case: Case, dtype: torch.dtype, asked: str, card: Card) -> VariantChoice:
    """The choice of "auto" or of a backend; the emulator must stand for the card, on which conditions are judged."""
    decision = _decided(spec, case, dtype, asked, card)
    if decision.chosen:
        return VariantChoice(decision.chosen.name)
    with cards.standing_for(REFERENCE) as reference:
        able = card.capability != reference.capability and _decided(spec, case, dtype, asked, reference).chosen
    return VariantChoice(why=_why(decision)) if able else VariantChoice()


def _decided(spec: OpSpec, case: Case, dtype: torch.dtype, asked: str, card: Card) -> Decision:
    call = spec.hypothetical(case, dtype, GPU, card.capability)
    request = AUTO if asked == "auto" else requests.parse(asked, "the sweep")
    return dispatch.decide(call, request, elsewhere=True)


def _why(decision: Decision) -> str:
    """What the variant lacks that lacks the least: the last of these in the ladder."""
    nearest = min(reversed([v for v in decision.verdicts if v.asked]), key=lambda v: len(v.unmet))
    return "; ".join(nearest.reasons)
