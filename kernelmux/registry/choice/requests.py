"""What can be asked for: a backend, a variant, a chain of them; from whom, and whether such names exist."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError, VariableWarning, cut, depth, hint, shown, unknown

VARIABLE = "KERNELMUX_BACKEND"
PREFIX = "KERNELMUX_"
# Every variable that a part of kernelmux reads, beside those of one operator each. The last is that of the build.
VARIABLES = (
    "KERNELMUX_BACKEND",
    "KERNELMUX_CONFIG",
    "KERNELMUX_HOME",
    "KERNELMUX_CACHE_DIR",
    "KERNELMUX_SHADOW_DIR",
    "KERNELMUX_NVTX",
    "KERNELMUX_CHECK",
    "KERNELMUX_EMULATED_GPU",
    "KERNELMUX_GPU_AS",
    "KERNELMUX_PYTHON",
)
Names = str | Sequence[str]


@dataclass(frozen=True)
class Request:
    """Backends in the order to try ("auto" alone: by the times of this GPU, else by priority), and who asked.

    strict: `use(..., strict=True)` is in force: the first of the names (of "auto" the usable backend of highest priority)
    runs the call, or the call raises. shadow: which others compute along (`shadow_sampling`). single: one backend or
    variant is named, so that there is nothing to fall back to. descends: a call goes on to the next rung where a launch
    is refused: not strictly, nor if one variant is named.
    """

    names: tuple[str, ...]
    source: str
    strict: bool = False
    shadow: Shadow | None = None
    auto: bool = field(init=False, repr=False, compare=False)
    single: bool = field(init=False, repr=False, compare=False)
    descends: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        auto = self.names == ("auto",)
        single = len(self.names) == 1 and not auto
        found = {"auto": auto, "single": single, "descends": not (self.strict or (single and "/" in self.names[0]))}
        for name, value in found.items():
            object.__setattr__(self, name, value)


class Shadow:
    """The backends that compute along, as a request of their own, and the draws of one scope.

    Two scopes of a program draw other calls, or a scope that is made in every step would only ever see the same ones; the
    n-th scope of a run draws those that it drew in the run before. torch's generators are not touched.
    """

    def __init__(self, request: Request, sample: float, seed: int) -> None:
        self.request = request
        self.sample = sample
        self._random = random.Random(seed)

    def drawn(self) -> bool:
        """Whether the next call is computed twice."""
        return self._random.random() < self.sample

    @cached_property
    def following(self) -> Shadow:
        """The same for the operators of a backward: the backends without their variants, and the same draws."""
        names = dict.fromkeys(n if n == "auto" else registered.split(n)[0] for n in self.request.names)
        made = Shadow(replace(self.request, names=tuple(names)), self.sample, 0)
        made._random = self._random
        return made


AUTO = Request(("auto",), "auto")


def parse(names: Names, source: str) -> Request:
    """A request from "cuda", "cuda/tiled", "cuda,triton" or a list of names; unknown names are errors."""
    listed = _listed(names)
    if not listed or not all([isinstance(n, str) and n for n in listed]):
        raise ArgumentError(f"backend: expected a name or a list of names, got {shown(names)} from {source}")
    found = Request(tuple(listed), source)
    for name in listed:
        if name != "auto":
            registered.split(name, source)
    if "auto" in listed and len(listed) > 1:
        raise ArgumentError(f'backend: "auto" stands alone, got {shown(names)} from {source}')
    return found


def _listed(names: object) -> list[str]:
    if isinstance(names, str):  # the name of a plugin may hold a comma or a space by mistake, and its error says so
        if "," not in names and names == names.strip():
            return [names]
        return [names] if names in registered.backends() else [n.strip() for n in names.split(",")]
    return list(names) if isinstance(names, Sequence) and not isinstance(names, bytes | bytearray) else []


def flag(variable: str) -> bool:
    """Whether a variable of the environment that is 0 or 1 is 1; ArgumentError for another value."""
    text = os.environ.get(variable, "")
    if text not in ("", "0", "1"):
        raise ArgumentError(f"{variable}: expected 0 or 1, got {shown(text)}")
    return text == "1"


def check_operator(op: object) -> None:
    """Raise UnknownName for what is not the name of an operator."""
    if not isinstance(op, str) or op not in catalog.names():
        raise unknown("operator", op, catalog.names())


def operators(ops: object, where: str) -> list[str]:
    """The operators that one name or several stand for, each of them known."""
    if not isinstance(ops, str | Iterable):
        raise ArgumentError(f"{where}: expected an operator or several, got {shown(ops)}")
    listed = [ops] if isinstance(ops, str) else list(ops)
    if not listed:
        raise ArgumentError(f"{where}: expected an operator or several, got none")
    for op in listed:
        check_operator(op)
    return listed


@lru_cache(maxsize=1)
def environment() -> Mapping[str, Request]:
    """The requests of the environment by operator, read once for all of them; unknown names are errors.

    Under "" stands the one for all operators. What has our prefix and is no variable of ours is a warning, once each.
    """
    known = _of_operators()
    ours = {v: text for v, text in os.environ.items() if v.startswith(VARIABLE)}
    for variable in ours:
        if variable not in (VARIABLE, *known):
            raise unknown("environment variable", variable, [VARIABLE, *sorted(known)])
    _warn_of(strangers())
    return {known.get(variable, ""): parse(value, variable) for variable, value in ours.items() if value}


def _of_operators() -> dict[str, str]:
    """The operators by the variable of each."""
    return {f"{VARIABLE}_{op.upper()}": op for op in catalog.names()}


def strangers() -> list[str]:
    """What to say of each variable with our prefix that nothing reads; an empty one says nothing."""
    given = [name for name, value in sorted(os.environ.items()) if value and name.startswith(PREFIX)]
    odd = [name for name in given if name not in VARIABLES and not name.startswith(VARIABLE)]
    every = [*VARIABLES, *_of_operators()]
    known = ", ".join([*VARIABLES, f"{VARIABLE}_<OP>"])
    return [f'unknown environment variable "{cut(name)}"; {hint(name, every)}known: {known}' for name in odd]


_told: set[str] = set()


def _warn_of(texts: list[str]) -> None:
    """A VariableWarning for each text, once per process, at the line of the user; said even where it is an error."""
    fresh = [text for text in texts if text not in _told]
    if not fresh:
        return
    _told.update(fresh)
    for text in fresh:
        warnings.warn(f"{text}; nothing reads it", VariableWarning, stacklevel=depth())
