"""What a compiled kernel may cost: `resource_budgets.toml` of the suite, and of any package with kernels for its own."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelmux.emulator import amdgcn
from kernelmux.registry import elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import package_versions
from kernelmux.registry.errors import SpecError

NAME = "resource_budgets.toml"
FILE = Path(__file__).parents[1] / NAME
LIMITS = ("registers", "spills")
AMD_LIMITS = ("vgprs", "scratch", "lds", "threads")


@dataclass(frozen=True)
class ResourceBudget:
    """Registers per thread, and bytes of spills per thread, stores and loads together; reason: of an own budget."""

    registers: int
    spills: int
    reason: str = ""


@dataclass(frozen=True)
class AmdBudget:
    """On an AMD GPU: vector registers and bytes of scratch memory per lane, bytes of LDS and threads per workgroup.

    More LDS or threads than the GPU has is what a kernel needs that does not run there, for the reason.
    """

    vgprs: int
    scratch: int
    lds: int
    threads: int
    reason: str = ""


def archs() -> list[str]:
    """The GPUs that every kernel is compiled for: sm_80 and so on."""
    return list(_table(FILE)["archs"])


def amd_archs(backend: str) -> list[str]:
    """The AMD GPUs that every Triton kernel of a backend is compiled for: gfx942 and so on."""
    sections = (_table(path).get("amd", {}) for path in _files(backend))
    return list(next(section["archs"] for section in sections if "archs" in section))


def budget(op: str, backend: str, label: str, arch: str) -> ResourceBudget:
    """The budget of the variant `label` of the operator on `arch`, else that of the GPU, else the general one."""
    return ResourceBudget(
        **_limits([_table(path) for path in _files(backend, op, label)], f"{op}/{label}", arch, LIMITS)
    )


def amd_budget(op: str, backend: str, label: str, arch: str) -> AmdBudget:
    """The same on an AMD GPU, from the sections [amd]; what no file limits is limited by the GPU."""
    unit = amdgcn.GPUS[arch]
    sections = [_table(path).get("amd", {}) for path in _files(backend, op, label)]
    found = _limits(sections, f"{op}/{label}", arch, AMD_LIMITS)
    return AmdBudget(**{"lds": unit.lds, "threads": unit.threads, **found})


def _files(backend: str, op: str = "", label: str = "") -> list[Path]:
    """Those of the package that a variant comes from, of the backend's package, and the suite's, where there are such."""
    package = elsewhere.whose(op, label.partition("/")[2])
    folders = (package.folder if package else None, registered.folder(backend))
    return [*(folder / NAME for folder in folders if folder is not None and (folder / NAME).is_file()), FILE]


def _limits(tables: list[dict[str, Any]], name: str, arch: str, limits: tuple[str, ...]) -> dict[str, Any]:
    """The limits and the reason of the first entry for a variant; what it leaves out, from those of the GPU and of all."""
    general: dict[str, Any] = {}
    for table in reversed(tables):  # what a package says counts before what the suite says
        general |= table.get("budget", {})
        general |= next((e for e in table.get("gpu", []) if e["arch"] == arch), {})
    listed = (entry for table in tables for entry in table.get("variant", []) if entry["name"] == name)
    own: dict[str, Any] = next((e for e in listed if e.get("arch", arch) == arch and _counts(e)), {})
    return {k: v for k, v in {**general, **own}.items() if k in (*limits, "reason")}


def _counts(entry: dict[str, Any]) -> bool:
    """Whether the Triton that is installed is as old as the entry says, which is for that version and those before."""
    installed = re.match(r"\d+\.\d+", package_versions.version("triton"))
    return "triton" not in entry or (installed is not None and _numbers(installed[0]) <= _numbers(entry["triton"]))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@lru_cache(maxsize=64)
def _table(path: Path) -> dict[str, Any]:
    """The contents of a file; SpecError names the entry that is not well formed."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: expected a TOML file of budgets; {error}") from error
    for section, limits in ((found, LIMITS), (found.get("amd", {}), AMD_LIMITS)):
        for entry in section.get("variant", []):
            if not entry.get("name") or not str(entry.get("reason", "")).strip():
                may = ", ".join(("arch", "triton", *limits))
                raise SpecError(f"{path}: a variant needs name and reason (may have {may}), got {entry}")
            if not re.fullmatch(r"\d+\.\d+", triton := str(entry.get("triton", "0.0"))):
                raise SpecError(f'{path}: triton of {entry["name"]}: expected two numbers, as "3.7", got {triton!r}')
        for entry in section.get("gpu", []):
            if not entry.get("arch") or not str(entry.get("reason", "")).strip():
                raise SpecError(f"{path}: a gpu needs arch and reason (may have {', '.join(limits)}), got {entry}")
        if odd := set(section.get("budget", {})) - set(limits):
            raise SpecError(f"{path}: a budget is for {' and '.join(limits)}, got {', '.join(sorted(odd))}")
    return found
