"""What a candidate says of itself, as JSON: its parameters, what an `Implementation` declares, and what a package does.

The process of the candidate tells it and the suite reads it: a claim narrows what is asked, or says which of the error
bounds of a spec it is held to, and the report shows it. It never makes a wrong result right.
"""

from __future__ import annotations

import dataclasses
import inspect
from types import ModuleType
from typing import Any

import torch

from kernelmux.registry.backend.description import Backend, Implementation, kernels_of
from kernelmux.registry.backend.package_versions import NotInstalled
from kernelmux.registry.spec import conditions

CLASSES = {
    name: found
    for name, found in vars(conditions).items()
    if isinstance(found, type) and dataclasses.is_dataclass(found) and hasattr(found, "check")
}


class Untellable(Exception):
    """A declaration that cannot travel."""


def of(source: ModuleType, name: str) -> tuple[dict[str, Any], Any]:
    """What lies under a name of a module, and that: a function or an `Implementation`."""
    known = [n for n, v in vars(source).items() if callable(v) and getattr(v, "__module__", "") == source.__name__]
    if not hasattr(source, name):
        return {"missing": sorted(known)}, None
    return of_value(source, found := getattr(source, name)), found


def of_variant(source: ModuleType, name: str) -> tuple[dict[str, Any], Any]:
    """What the module of a backend declares of a variant, and the variant."""
    return of_value(source, found := vars(source)["VARIANTS"][name]), found


def of_value(source: ModuleType, found: Any) -> dict[str, Any]:
    """What a function, or an `Implementation`, of a module says of itself."""
    claims: dict[str, Any] = {"kernels": kernels_of(source)[:1]}
    if isinstance(found, Implementation):
        declared = {"idea": found.idea, "deterministic": found.deterministic, "arithmetic": found.arithmetic}
        declared |= {"layout": dict(found.layout), "exempt": {k: encoded(why) for k, why in found.exempt.items()}}
        if found.rounds:
            raise Untellable("an Implementation that rounds more than its operator allows")
        claims["declared"] = {**declared, "requires": [_condition(i, c) for i, c in enumerate(found.requires)]}
        found = found.fn
    elif not callable(found):
        return {"not_callable": repr(found)[:200]}
    claims["doc"] = next(iter((inspect.getdoc(found) or "").strip().splitlines()), "")
    claims["parameters"] = [
        {"name": p.name, "kind": p.kind.name, "default": p.default is not inspect.Parameter.empty}
        for p in inspect.signature(found).parameters.values()
    ]
    return claims


def of_module(source: ModuleType) -> dict[str, Any]:
    """What the module of a backend for an operator declares: its variants, or why these cannot be told."""
    found = getattr(source, "VARIANTS", None)
    if not isinstance(found, dict) or not all(isinstance(v, Implementation) for v in found.values()):
        return {"wrong": repr(found)[:200]}
    try:
        return {"variants": [[str(name), of_value(source, value)] for name, value in found.items()]}
    except Untellable as error:
        return {"untellable": str(error)}


def of_backend(source: ModuleType, device: str) -> dict[str, Any]:
    """What the package of a backend declares, and why it cannot work on "cpu" or "cuda"; or that it declares none."""
    found = getattr(source, "BACKEND", None)
    if not isinstance(found, Backend):
        return {"wrong": repr(found)[:200]}
    told = {name: getattr(found, name) for name in ("name", "summary", "priority", "emulates", "composite", "cores")}
    reason = found.unavailable(torch.device(device))
    return {**told, "unavailable": reason, "install": isinstance(reason, NotInstalled)}


def _condition(index: int, condition: Any) -> Any:
    """A condition as JSON; of one that is no data its place among the others, by which its process is asked."""
    try:
        return encoded(condition)
    except Untellable:
        return {"asked": index, "text": str(condition.text)}


def encoded(value: Any) -> Any:
    """A condition, or a field of one, as JSON; Untellable for what is none of the registry's."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, tuple | list):
        return {"tuple": [encoded(v) for v in value]}
    if CLASSES.get(type(value).__name__) is type(value):
        fields = {f.name: encoded(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"condition": type(value).__name__, "fields": fields}
    raise Untellable(f"a condition with a {type(value).__qualname__} in it: expected those of kernelmux.registry")


def decoded(value: Any) -> Any:
    """What `encoded` made JSON of; KeyError or TypeError for anything else."""
    if not isinstance(value, dict):
        return value
    if "dtype" in value:
        found = getattr(torch, value["dtype"])
        if not isinstance(found, torch.dtype):
            raise TypeError(f"no dtype: {value['dtype']}")
        return found
    if "tuple" in value:
        return tuple(decoded(v) for v in value["tuple"])
    made = object.__new__(CLASSES[value["condition"]])
    names = {f.name for f in dataclasses.fields(made)}
    if names != value["fields"].keys():
        raise TypeError(f"{value['condition']}: expected the fields {sorted(names)}")
    for name, field in value["fields"].items():
        object.__setattr__(made, name, decoded(field))
    return made


def signature(parameters: list[dict[str, Any]]) -> inspect.Signature:
    """The signature that a candidate told; the values of its defaults stay with it."""
    kinds = {kind.name: kind for kind in inspect._ParameterKind}
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [inspect.Parameter(p["name"], kinds[p["kind"]], default=None if p["default"] else empty) for p in parameters]
    )
