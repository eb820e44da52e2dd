"""bazel/uses.bzl, from specs and sources: whose files an operator reads, and which operators its gradient is made of."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.interop import autograd
from kernelmux.registry.spec.gradient import Composed
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.util.fingerprint import sources

FOLDERS = (
    "kernelmux/registry/ops",
    "kernelmux/backends/torch_ref",
    "kernelmux/backends/triton",
    "kernelmux/backends/cuda",
)
HEAD = """# Written by `nox -s docs` from the specs and the sources.

# By folder: the operators whose files those of an operator read.
USES = {uses}

# Operators that the gradients of others are composed of.
GRADIENTS = {gradients}
"""


def text(top: Path) -> str:
    """The whole file, for the checkout at `top`."""
    uses = {folder: read(top, folder) for folder in FOLDERS}
    return HEAD.format(uses=_shown(uses), gradients=_shown(gradients()))


def read(top: Path, folder: str) -> dict[str, list[str]]:
    """The operators whose files each operator of a folder reads, but for what these read themselves."""
    home, package, ops = top / folder, folder.replace("/", "."), elsewhere.own()
    every: dict[str, set[str]] = {}
    for op in ops:
        owners = {
            owner(path.relative_to(home), ops) for path in sources(home, package, op) if path.is_relative_to(home)
        }
        every[op] = owners - {op, ""}
    direct = {op: sorted(found - set[str]().union(*(every[o] for o in found))) for op, found in every.items()}
    return {op: found for op, found in direct.items() if found}


def owner(path: Path, ops: Collection[str]) -> str:
    """The operator that a file belongs to, by the rule of bazel/ops.bzl; "" for what operators share."""
    stem = path.parts[path.parts[0] == "include"].partition(".")[0].lstrip("_")
    return max((op for op in ops if f"{stem}_".startswith(f"{op}_")), key=len, default="")


def gradients() -> dict[str, list[str]]:
    """The operators that composed gradients call, in any of the cases."""
    found = {op: sorted({*_called(catalog.spec(op))} - {op}) for op in elsewhere.own()}
    return {op: others for op, others in found.items() if others}


def _called(spec: OpSpec) -> Iterator[str]:
    if isinstance(spec.gradient, Composed):
        for case in (case for case in spec.cases if case.tier in ("smoke", "ci")):
            yield from autograd.lacking(autograd.sample(spec, case), "no backend")


def _shown(value: Mapping[str, object]) -> str:
    return json.dumps(value, indent=4, sort_keys=True)
