"""What the BUILD files of specs and backends leave to people: which operators read the source of others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kernelmux.registry.util.fingerprint import sources

TOP = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("folder", ["registry/ops", "backends/torch_ref", "backends/triton", "backends/cuda"])
def test_a_target_has_all_that_its_operator_reads(folder: str) -> None:
    home, uses = TOP / folder, used(folder)
    package = f"kernelmux.{folder.replace('/', '.')}"
    ops = [path.stem for path in (TOP / "registry/ops").glob("[a-z]*.py")]
    missing = {}
    for op in ops:
        read = {owner(path.relative_to(home), ops) for path in sources(home, package, op)}
        if lacking := sorted(read - {op, ""} - reached(op, uses)):
            missing[op] = lacking
    assert not missing, f"uses = {{...}} in {folder}/BUILD lacks {missing}"


def used(folder: str) -> dict[str, list[str]]:
    """The argument `uses` in the BUILD file of a folder."""
    found = re.search(r"\buses = (\{.*?\n    \})", (TOP / folder / "BUILD").read_text(encoding="utf-8"), re.DOTALL)
    assert found
    uses: dict[str, list[str]] = ast.literal_eval(found[1])
    return uses


def owner(path: Path, ops: list[str]) -> str:
    """The operator that a file belongs to, by the rule of bazel/ops.bzl; "" for what operators share."""
    stem = path.parts[0].partition(".")[0].lstrip("_")
    return max((op for op in ops if f"{stem}_".startswith(f"{op}_")), key=len, default="")


def reached(op: str, uses: dict[str, list[str]]) -> set[str]:
    """The operators that one uses, and those that they use."""
    return {op}.union(*(reached(other, uses) for other in uses.get(op, [])))
