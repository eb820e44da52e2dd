"""All cases, read from the modules of `families`."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from kernelmux.emulator.validation.hardware import families
from kernelmux.emulator.validation.hardware.launching import Runnable

ORDER = ("movement", "integers", "floats", "functions", "halves", "conversions", "warps", "atomics", "products")


@cache
def cases() -> tuple[Runnable, ...]:
    """Every case, family by family."""
    names = sorted((module.name for module in pkgutil.iter_modules(families.__path__)), key=ORDER.index)
    return tuple(case for name in names for case in import_module(f"{families.__name__}.{name}").CASES)
