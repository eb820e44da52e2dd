"""All defects, found by the modules in `families`."""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec

from kernelmux.emulator.validation.defects import families
from kernelmux.emulator.validation.defects.model import Defect

TRITON = "triton_"  # modules of this prefix need Triton


@lru_cache(maxsize=1)
def defects() -> tuple[Defect, ...]:
    """Every defect that can run here, by family."""
    names = sorted(module.name for module in pkgutil.iter_modules(families.__path__))
    usable = [name for name in names if not name.startswith(TRITON) or has_triton()]
    modules = [import_module(f"{families.__name__}.{name}") for name in usable]
    return tuple(replace(defect, family=module.FAMILY) for module in modules for defect in module.DEFECTS)


def has_triton() -> bool:
    """Whether the families of Triton kernels can run here."""
    return find_spec("triton") is not None


def blind_spots() -> tuple[Defect, ...]:
    """The defects that full mode is known not to notice."""
    return tuple(defect for defect in defects() if defect.blind)
