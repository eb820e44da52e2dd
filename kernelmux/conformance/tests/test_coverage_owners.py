"""Whose code a part is: what several operators share fails in a run of all of them alone."""

from __future__ import annotations

import pytest

from kernelmux.conformance.coverage.findings import BLOCK, BRANCH, CodePart
from kernelmux.conformance.coverage.owners import owner


@pytest.mark.parametrize(
    ("op", "backend", "part", "whose"),
    [
        ("softmax", "cuda", CodePart(BRANCH, "softmax/__init__.py", 1, "`if n`"), "softmax, cuda"),
        ("softmax", "cuda", CodePart(BRANCH, "_families/rows.py", 1, "`if n`"), "cuda"),
        ("matmul", "cuda", CodePart(BRANCH, "matmul/_choice.py", 1, "`if n`"), "cuda"),  # linear reads it too
        ("linear", "cuda", CodePart(BRANCH, "matmul/_choice.py", 1, "`if n`"), "cuda"),
        (
            "softmax",
            "cuda",
            CodePart(BLOCK, "include/reduce.cuh", 1, "`}`", "softmax_rows", "softmax.cu:9"),
            "softmax, cuda",
        ),
        ("softmax", "cuda", CodePart(BLOCK, "include/reduce.cuh", 1, "`}`", "softmax_rows"), "softmax, cuda"),
        ("softmax", "cuda", CodePart(BLOCK, "", 0, "`mov`", "softmax_rows"), "softmax, cuda"),
        ("linear", "cuda", CodePart(BLOCK, "matmul/matmul.cu", 1, "`}`", "matmul"), "cuda"),
        ("linear", "cuda", CodePart(BLOCK, "matmul_wgmma.cu", 1, "`}`", "matmul_wgmma"), "cuda"),
        ("matmul", "cuda", CodePart(BLOCK, "matmul_wgmma.cu", 1, "`}`", "matmul_wgmma"), "matmul, cuda"),
        ("reduce_sum", "triton", CodePart(BLOCK, "_families/reductions.py", 1, "`x`", "reduce_kernel"), "triton"),
        ("rope", "triton", CodePart(BLOCK, "rope.py", 1, "`x`", "rope_kernel"), "rope, triton"),
        ("rope", "triton", CodePart(BLOCK, "standard.py", 1, "`x`", "rope_kernel", "rope.py:9"), "rope, triton"),
    ],
)
def test_code_is_an_operators_where_no_other_one_has_it(op: str, backend: str, part: CodePart, whose: str) -> None:
    assert owner(op, backend, part) == whose
