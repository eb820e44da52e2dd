"""What a check is, and the catalogue of all: one file in `checks/` each, found by file name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from kernelmux.conformance import checks
from kernelmux.registry.backend import Backend
from kernelmux.registry.errors import SpecError, unknown

if TYPE_CHECKING:
    from kernelmux.conformance.judging.probe import Probe

SPEC = "spec"  # the backend column of checks that judge a spec and its cases


@dataclass(frozen=True)
class Check:
    """One class of questions to an implementation.

    run: asks them through a probe, which records every answer. summary: one line for `--list` and the reports.
    column: at most six letters for the matrix. about: "variant", or "spec" where no implementation is involved.
    applies: whether the check means anything for a backend on a device ("cpu", "cuda").
    """

    run: Callable[[Probe], None]
    summary: str
    column: str
    about: str = "variant"
    applies: Callable[[Backend, str], bool] = lambda backend, device: True


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """The checks in alphabetical order."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(checks.__path__) if not m.name.startswith("_")))


@cache
def check(name: str) -> Check:
    """The check of that name; UnknownName with the nearest match if there is none."""
    if name not in names():
        raise unknown("check", name, names())
    found = getattr(importlib.import_module(f"{checks.__name__}.{name}"), "CHECK", None)
    if not isinstance(found, Check) or len(found.column) > 6:
        raise SpecError(
            f"kernelmux/conformance/checks/{name}.py: expected CHECK = Check(run=..., summary=..., column=<= 6 letters)"
        )
    return found
