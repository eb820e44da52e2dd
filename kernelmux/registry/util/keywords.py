"""Calls whose arguments do not fit the signature: Python's TypeError, with the name that was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping

from kernelmux.registry.errors import nearest, shown

ABSENT = object()  # stands for an argument that a call leaves out and must give
_FIRST = ("x", "logits", "a", "q")
# What torch and others call an argument, and the names that it may have here; the first that the operator has is meant.
ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "dim": ("axis",),
    "dims": ("axis",),
    "axes": ("axis",),
    "keepdims": ("keepdim",),
    "input": _FIRST,
    "self": _FIRST,
    "tensor": _FIRST,
    "other": ("y", "b"),
    "mat1": ("a",),
    "mat2": ("b",),
    "mat": ("weight",),
    "vec": ("x",),
    "query": ("q",),
    "key": ("k",),
    "value": ("v",),
    "is_causal": ("causal",),
    "sm_scale": ("scale",),
    "softmax_scale": ("scale",),
    "epsilon": ("eps",),
    "gamma": ("weight",),
    "beta": ("bias",),
    "kernel_size": ("kernel",),
    "labels": ("target",),
    "act": ("activation",),
}


def near(name: str, known: Iterable[str]) -> str | None:
    """The one of the known names that was probably meant, or None."""
    names, lower = list(known), name.lower()
    return nearest(lower, names, (other for other in ELSEWHERE.get(lower, ()) if other in names))


def unexpected(op: str, given: Iterable[str], names: Iterable[str]) -> TypeError:
    """The error for keywords that an operator does not have; names: of its arguments."""
    known, name = [*names, "backend"], next(iter(given))
    meant = near(name, known)
    hint = f"did you mean {meant}? " if meant else ""
    return TypeError(f"{op}() got an unexpected keyword argument {shown(name)}: {hint}it takes {', '.join(known)}")


def missing(op: str, given: Mapping[str, object]) -> TypeError:
    """The error for a call that leaves out arguments, in Python's words; given: all that must be there, as they came."""
    names = [repr(name) for name, value in given.items() if value is ABSENT]
    listed = ", ".join(names[:-1]) + f"{',' if len(names) > 2 else ''} and {names[-1]}" if len(names) > 1 else names[0]
    return TypeError(
        f"{op}() missing {len(names)} required positional argument{'s' if len(names) > 1 else ''}: {listed}"
    )


def written(op: str, signature: inspect.Signature) -> tuple[str, list[str], list[str]]:
    """The parameters of the public function as source text, and the lines for too many and for too few arguments.

    They take every keyword, and nothing for `ABSENT`, so that the lines can say what was meant.
    """
    every = list(signature.parameters.values())
    required = [p.name for p in every if p.default is p.empty]
    given = ", ".join(f"{p.name}=_absent" if p.name in required else str(p) for p in every)
    unexpected = [
        "    if _others:",
        f"        raise _keywords.unexpected({op!r}, _others, {[p.name for p in every]!r})",
    ]
    missing = [
        f"    if {' or '.join(f'{name} is _absent' for name in required)}:",
        f"        raise _keywords.missing({op!r}, {{{', '.join(f'{name!r}: {name}' for name in required)}}})",
    ]
    return f"{given}, *, backend=None, **_others", unexpected, missing


def public(signature: inspect.Signature) -> inspect.Signature:
    """The signature that the public function shows: that of the spec, and `backend`."""
    backend = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY, default=None)
    return signature.replace(parameters=[*signature.parameters.values(), backend])
