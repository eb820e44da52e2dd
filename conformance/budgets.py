"""What a compiled kernel may cost: `resource_budgets.toml` of the suite, and of the package of any backend for its own."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelmux.registry import backend as registered
from kernelmux.registry.errors import SpecError

NAME = "resource_budgets.toml"
FILE = Path(__file__).with_name(NAME)
LIMITS = ("registers", "spills")


@dataclass(frozen=True)
class Budget:
    """Registers per thread, and bytes of spills per thread, stores and loads together; reason: of an own budget."""

    registers: int
    spills: int
    reason: str = ""


def archs() -> list[str]:
    """The GPUs that every kernel is compiled for: sm_80 and so on."""
    return list(_table(FILE)["archs"])


def budget(op: str, backend: str, label: str, arch: str) -> Budget:
    """The general budget, or that of the variant `label` of the operator on `arch`, from either file."""
    folder = registered.folder(backend)
    own = _table(folder / NAME) if folder is not None and (folder / NAME).is_file() else {}
    general = {**_table(FILE)["budget"], **own.get("budget", {})}
    listed = [*own.get("variant", []), *_table(FILE).get("variant", [])]
    found = (e for e in listed if e["name"] == f"{op}/{label}" and e.get("arch", arch) == arch)
    fields = {k: v for k, v in next(found, {}).items() if k in (*LIMITS, "reason")}
    return Budget(**{**general, **fields})


@lru_cache(maxsize=64)
def _table(path: Path) -> dict[str, Any]:
    """The contents of a file; SpecError names the entry that is not well formed."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: expected a TOML file of budgets; {error}") from error
    for entry in found.get("variant", []):
        if not entry.get("name") or not str(entry.get("reason", "")).strip():
            raise SpecError(f"{path}: a variant needs name and reason (may have arch, registers, spills), got {entry}")
    if odd := set(found.get("budget", {})) - set(LIMITS):
        raise SpecError(f"{path}: a budget is for {' and '.join(LIMITS)}, got {', '.join(sorted(odd))}")
    return found
