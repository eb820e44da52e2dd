"""What the commands print with --json: one document each, of the keys that docs/choosing_a_backend.md lists."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import timings
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.choice.decision import Decision, Verdict, remedies
from kernelmux.registry.cli import doctor
from kernelmux.registry.cli.doctor import PROBLEM, Section
from kernelmux.registry.cli.support_matrix import SupportMatrix
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import described
from kernelmux.registry.spec import docstrings
from kernelmux.registry.spec.cases import Case
from kernelmux.registry.spec.conditions import sm
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import Call

Document = dict[str, Any]


def text(document: Mapping[str, Any]) -> str:
    """A document as strict JSON: a number that JSON does not have is null."""
    return json.dumps(_strict(document), indent=2, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- list and show --------------------------------------------------------------------------------------------


def listed() -> Document:
    """Operators, and the variants of each backend in ladder order; what of packages elsewhere cannot be used."""
    operators = [_operator(op) for op in catalog.usable()]
    return {"backends": registered.backend_names(), "operators": operators, "problems": list(doctor.unusable())}


def _operator(op: str) -> Document:
    ladders, unavailable = _ladders(op)
    return {"name": op, "variants": {name: list(found) for name, found in ladders.items()}, "unavailable": unavailable}


def _ladders(op: str) -> tuple[dict[str, dict[str, Implementation]], dict[str, str]]:
    """By backend its implementations of an operator, or why they cannot be loaded."""
    ladders, unavailable = {}, {}
    for name in registered.backend_names():
        try:
            ladders[name] = registered.variants(name, op)
        except (
            Exception
        ) as error:  # of a package elsewhere: it may raise anything, and the others are listed all the same
            unavailable[name] = described(error)
    return ladders, unavailable


def operator(spec: OpSpec) -> Document:
    """Formula, arguments, cases, implementations and their conditions."""
    ladders, unavailable = _ladders(spec.name)
    found = [_implementation(name, v, i) for name, ladder in ladders.items() for v, i in ladder.items()]
    return {
        "name": spec.name,
        "signature": f"{spec.name}{spec.signature}",
        "version": spec.version,
        "hash": spec.hash,
        "summary": spec.summary,
        "math": spec.math,
        "arguments": [{"name": i.name, "kind": docstrings.kind(i), "doc": i.doc} for i in spec.inputs],
        "outputs": [{"name": o.name, "form": docstrings.form(o), "saved": o.saved, "doc": o.doc} for o in spec.outputs],
        "sources": spec.sources,
        "cases": [_case(case) for case in spec.cases],
        "workloads": [case.text for case in spec.workloads],
        "implementations": found,
        "unavailable": unavailable,
    }


def _case(case: Case) -> Document:
    return {"text": case.text, "inputs": case.inputs, "tier": case.tier}


def _implementation(backend: str, variant: str, found: Implementation) -> Document:
    arithmetic = found.arithmetic
    return {
        "backend": backend,
        "variant": variant,
        "idea": found.idea,
        "conditions": list(found.wording),
        "layout": dict(found.layout),
        "arithmetic": arithmetic if isinstance(arithmetic, str) else dict(arithmetic),
        "also_rounds": found.declared or None,
    }


# --- explain --------------------------------------------------------------------------------------------------


def decision(found: Decision) -> Document:
    """Who runs a call, and what keeps each other variant from it."""
    request = found.request
    near = timings.nearest(found.call) if request.source.startswith("auto: ") else None
    return {
        "operator": found.call.spec.name,
        "call": _call(found.call),
        "requested": {"names": request.names, "source": request.source, "strict": request.strict or request.single},
        "chosen": found.chosen.name if found.chosen else None,
        "fallbacks": [{"name": f.label, "unmet": f.verdict.reasons} for f in found.fallbacks],
        "measured": asdict(near) if near and near.source == request.source else None,
        "candidates": [_candidate(verdict) for verdict in found.verdicts],
    }


def _call(call: Call) -> Document:
    return {
        "arguments": {name: _argument(value) for name, value in call.arguments.items()},
        "device": str(call.device),
        "capability": sm(call.capability) if call.capability else None,
    }


def _argument(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return {"dtype": SHORT[value.dtype], "shape": value.shape, "strides": value.stride()}


def _candidate(verdict: Verdict) -> Document:
    return {
        "name": verdict.name,
        "backend": verdict.backend,
        "variant": verdict.variant or None,
        "able": verdict.able,
        "asked": verdict.asked,
        "unmet": [{"reason": str(u), "remedy": remedy or None} for u, remedy in remedies(verdict)],
        "emulated": verdict.emulated,
        "copies": dict(zip(verdict.copies, verdict.copied, strict=True)),
        "also_rounds": verdict.declared or None,
        "varies": verdict.varies,
    }


# --- support and doctor ---------------------------------------------------------------------------------------


def support(matrix: SupportMatrix) -> Document:
    """What can run on a device, and why the rest cannot."""
    entries = [
        asdict(e)
        | {"variant": e.variant or None, "able": e.able, "layout": dict(e.layout), "problem": e.problem or None}
        for e in matrix.entries
    ]
    return {"device": matrix.device, "backends": matrix.backends, "entries": entries}


def machine(sections: Sequence[Section]) -> Document:
    """The report of doctor: facts and problems by section."""
    return {
        "problems": sum(section.problems for section in sections),
        "sections": [
            {
                "title": section.title,
                "facts": [{"name": f.name, "device": f.device, "value": f.value} for f in section.facts],
                "problems": [line.removeprefix(PROBLEM) for line in section.lines if line.startswith(PROBLEM)],
            }
            for section in sections
        ],
    }
