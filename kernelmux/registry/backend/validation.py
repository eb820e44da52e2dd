"""What a backend and its implementations must look like; mistakes become a SpecError that says what was expected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any

from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.errors import SpecError
from kernelmux.registry.spec.conditions import AtDefault
from kernelmux.registry.spec.metamorphic import BatchInvariant
from kernelmux.registry.spec.numerics import Rounding
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import REQUIRED
from kernelmux.registry.util import keywords

LAYOUTS = ("any", "last", "matrix", "contiguous")


def check_backend(name: str, package: str, found: Any) -> Backend:
    """The BACKEND of a package that is announced by this name; SpecError if it is none."""
    if not isinstance(found, Backend):
        raise SpecError(f"{package}: expected BACKEND = Backend(...), got {found!r}")
    for field, kind, text in (
        ("name", str, "a text"),
        ("summary", str, "a text"),
        ("priority", int | float, "a number"),
    ):
        if not isinstance(value := getattr(found, field), kind):
            raise SpecError(f"{package}: BACKEND.{field}: expected {text}, got {value!r}")
    if found.name != name:
        raise SpecError(f"{package}: BACKEND.name: expected {name!r}, the name in the entry point, got {found.name!r}")
    for field in ("unavailable", "emulation", "compilers"):
        if not callable(value := getattr(found, field)):
            raise SpecError(f"{package}: BACKEND.{field}: expected a function, got {value!r}")
    return found


def check_ladder(
    backend: Backend, module: str, spec: OpSpec, found: Any, joins: bool = False
) -> dict[str, Implementation]:
    """The VARIANTS of a module, `adapted` to the spec; SpecError names the first variant that contradicts it.

    joins: they come before the ladder of the backend, so that none of them is its default.
    """
    if not isinstance(found, dict) or not found:
        raise SpecError(f"{module}: expected VARIANTS = {{name: Implementation(...)}}, got {found!r}")
    for variant, implementation in found.items():
        if not isinstance(variant, str) or not variant or "/" in variant or "," in variant:
            raise SpecError(f'{module}: VARIANTS: expected names without "/" and ",", got {variant!r}')
        check_implementation(f"{backend.name}/{variant}", spec, implementation)
        check_rounds(
            f"{backend.name}/{variant}", spec, implementation, backend.composite, not joins and variant == [*found][-1]
        )
    return {variant: adapted(spec, implementation) for variant, implementation in found.items()}


def adapted(spec: OpSpec, found: Implementation) -> Implementation:
    """An implementation whose fn takes every argument of the spec; the same one if it does so already.

    One that lacks arguments with defaults, such as those that came after it was written, runs the calls that leave them
    at their defaults: it has that for a condition, and is called without them.
    """
    taken = inspect.signature(found.fn).parameters
    lacking = tuple(AtDefault(item.name) for item in spec.inputs if item.name not in taken)
    if not lacking:
        return found
    places = [i for i, item in enumerate(spec.inputs) if item.name in taken]
    return replace(found, fn=_without(spec, found.fn, places), requires=(*found.requires, *lacking))


def _without(spec: OpSpec, fn: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """A function of all arguments that calls `fn` with those in these places."""

    @wraps(fn)
    def called(*values: Any) -> Any:
        return fn(*[values[i] for i in places])

    vars(called)["__signature__"] = spec.signature  # not that of fn: this one takes every argument
    return called


def check_implementation(label: str, spec: OpSpec, found: Any) -> None:
    """Raise SpecError for an implementation that does not fit the spec of its operator."""
    if not isinstance(found, Implementation):
        raise SpecError(f"{label} of {spec.name}: expected an Implementation, got {found!r}")
    _check_signature(label, spec, found.fn)
    _check_layout(label, spec, found.layout)
    if not isinstance(found.idea, str):
        raise SpecError(f"{label} of {spec.name}: idea: expected a text, got {found.idea!r}")
    for field in ("requires", "pays"):
        given = getattr(found, field)
        if not isinstance(given, tuple) or not all(map(_is_condition, given)):
            raise SpecError(f"{label} of {spec.name}: {field}: expected a tuple of conditions, got {given!r}")
    _check_arithmetic(label, spec, found.arithmetic)
    _check_exempt(label, spec, found.exempt)


def check_rounds(label: str, spec: OpSpec, found: Implementation, composite: bool, last: bool) -> None:
    """Roundings of its own loosen a bound: baselines of torch's operators may declare some, nothing that `auto` runs."""
    if not isinstance(found.rounds, tuple) or not all(isinstance(r, Rounding) for r in found.rounds):
        raise SpecError(f"{label} of {spec.name}: rounds: expected a tuple of Rounding(...), got {found.rounds!r}")
    outputs = [output.name for output in spec.outputs]
    if bad := next((r for r in found.rounds if not r.what or r.output not in ("", *outputs)), None):
        raise SpecError(
            f"{label} of {spec.name}: rounds: expected what is rounded, and an output among {', '.join(outputs)} or"
            f' "" for all, got {bad.what!r} of {bad.output!r}'
        )
    if found.rounds and not composite:
        raise SpecError(
            f"{label} of {spec.name}: rounds: expected none, got {found.declared}: only a composite backend, made of"
            " torch's operators, may declare roundings of its own; a kernel is held to the bound of the spec"
        )
    if found.rounds and last:
        raise SpecError(
            f"{label} of {spec.name}: rounds: expected none of the last variant of a ladder, which a plain call runs, got"
            f" {found.declared}; put a variant without them behind it"
        )


def _is_condition(given: Any) -> bool:
    return hasattr(given, "check") and hasattr(given, "text")


def _check_exempt(label: str, spec: OpSpec, given: Any) -> None:
    """Properties that the spec declares, each with a reason; BatchInvariant also with a condition."""
    known = [type(declared).__name__ for declared in spec.properties]
    fits = isinstance(given, Mapping) and all(
        name in known and ((isinstance(why, str) and why) or (name == BatchInvariant.__name__ and _is_condition(why)))
        for name, why in given.items()
    )
    if not fits:
        raise SpecError(
            f"{label} of {spec.name}: exempt: expected reasons by property ({', '.join(known) or 'none'}), got {given!r}"
        )


def _check_arithmetic(label: str, spec: OpSpec, given: Any) -> None:
    """One name, or one for each output by its name."""
    outputs = [output.name for output in spec.outputs]
    if isinstance(given, Mapping) and sorted(given) != sorted(outputs):
        raise SpecError(
            f"{label} of {spec.name}: arithmetic: expected one for each of {', '.join(outputs)}, got {given!r}"
        )
    for name in given.values() if isinstance(given, Mapping) else [given]:
        if name not in spec.arithmetics:
            allowed = ", ".join(spec.arithmetics)
            raise SpecError(
                f"{label} of {spec.name}: expected an arithmetic that the spec allows ({allowed}), got {name!r}"
            )


def _check_signature(label: str, spec: OpSpec, fn: Any) -> None:
    """Parameters of the spec in its order, and all of them that have no default."""
    want = [i.name for i in spec.inputs]
    try:
        got = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{label} of {spec.name}: fn: expected a function of ({', '.join(want)}): {error}{_adapter(fn, want)}"
        ) from error
    if problem := _misfit(spec, got, want):
        raise SpecError(
            f"{label} registered {spec.name}({', '.join(got)}) but the spec is ({', '.join(want)}):"
            f" {problem}{'' if set(got) <= set(want) else _adapter(fn, want)}"
        )


def _misfit(spec: OpSpec, got: list[str], want: list[str]) -> str:
    """What is wrong with the parameters of a function, or "": it may do without those that have a default."""
    if unknown := [name for name in got if name not in want]:
        meant = keywords.near(unknown[0], want)
        return f"the spec has no {unknown[0]}" + (f"; did you mean {meant}?" if meant else "")
    if needed := [i.name for i in spec.inputs if i.default is REQUIRED and i.name not in got]:
        return f"{needed[0]} has no default, so that fn must take it"
    order = [name for name in want if name in got]
    wrong = next(((w, g) for w, g in zip(order, got, strict=True) if w != g), None)
    return f"expected {wrong[0]} before {wrong[1]}" if wrong else ""


def _adapter(fn: Any, want: list[str]) -> str:
    """How to register a function that takes the spec's arguments by position, under other names or with more behind."""
    name = getattr(fn, "__name__", "")
    with suppress(ValueError):  # a builtin of which nothing is known
        try:
            inspect.signature(fn).bind(*want)
        except TypeError:
            return ""
    module = f"{fn.__module__}." if getattr(fn, "__module__", None) else ""
    return (
        f"; to adapt it: fn=lambda {', '.join(want)}: {module}{name}({', '.join(want)})" if name.isidentifier() else ""
    )


def _check_layout(label: str, spec: OpSpec, layout: Any) -> None:
    if not isinstance(layout, Mapping):
        raise SpecError(f"{label} of {spec.name}: layout: expected names of tensors with a layout each, got {layout!r}")
    if bad := [str(v) for v in layout.values() if v not in LAYOUTS]:
        raise SpecError(f"{label} of {spec.name}: expected layouts among {', '.join(LAYOUTS)}, got {', '.join(bad)}")
    names = [t.name for t in spec.tensors]
    if bad := [str(k) for k in layout if k not in names]:
        raise SpecError(
            f"{label} of {spec.name}: layout: expected tensors among {', '.join(names)}, got {', '.join(bad)}"
        )
