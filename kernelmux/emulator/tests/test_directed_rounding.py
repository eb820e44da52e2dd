"""Rounding towards zero, down and up, against exact arithmetic: all of the range, results of both signs of zero."""

import pytest
from hypothesis import given, settings

from kernelmux.emulator.tests.exact import add, check, divide, fma, multiply, root, rows_of

MODES = ["rz", "rm", "rp"]
FORMS = [(kind, mode) for kind in ("f32", "f64") for mode in MODES]
EDGES = (0, 1, 0xFFFFFFFFFFFFF, 0x10000000000000, 0x3FF0000000000001, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000)
Rows = list[tuple[int, ...]]


@pytest.mark.parametrize(("kind", "mode"), FORMS)
@settings(max_examples=12, deadline=None)
@given(rows=rows_of("f64", 3))
def test_operations(kind: str, mode: str, rows: Rows) -> None:
    rows = rows if kind == "f64" else [tuple(x >> 32 for x in row) for row in rows]
    _check_all(kind, mode, rows)


@pytest.mark.parametrize("mode", MODES)
def test_edges_of_float64(mode: str) -> None:
    """Underflow, overflow, infinities, cancellation, exact and inexact: every pair and many triples."""
    numbers = [x | sign for x in EDGES for sign in (0, 1 << 63)]
    triples: Rows = [(a, b, c) for a in numbers for b in numbers for c in numbers]
    _check_all("f64", mode, triples[::3])


def _check_all(kind: str, mode: str, rows: Rows) -> None:
    for start in range(0, len(rows), 1024):
        part = rows[start : start + 1024]
        pairs, ones = [row[:2] for row in part], [row[:1] for row in part]
        check(f"add.{mode}.{kind} %d0, %a0, %a1;", kind, pairs, lambda a, b: add(a, b, kind, mode))
        check(f"sub.{mode}.{kind} %d0, %a0, %a1;", kind, pairs, lambda a, b: add(a, -b, kind, mode))
        check(f"mul.{mode}.{kind} %d0, %a0, %a1;", kind, pairs, lambda a, b: multiply(a, b, kind, mode))
        check(f"div.{mode}.{kind} %d0, %a0, %a1;", kind, pairs, lambda a, b: divide(a, b, kind, mode))
        check(f"fma.{mode}.{kind} %d0, %a0, %a1, %a2;", kind, part, lambda a, b, c: fma(a, b, c, kind, mode))
        check(f"rcp.{mode}.{kind} %d0, %a0;", kind, ones, lambda a: divide(1.0, a, kind, mode))
        check(f"sqrt.{mode}.{kind} %d0, %a0;", kind, ones, lambda a: root(a, kind, mode))
