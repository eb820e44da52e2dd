"""Which form of a plan the rows of a call get in Triton."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from kernelmux.backends.triton._rows.row_plan import FORMS, Demand, RowAccess, access_of, long_row, row_rule
from kernelmux.backends.triton._rows.rows import walk
from kernelmux.registry.util import cards


def access(columns: int, itemsize: int, inputs: int, vectors: int, rows: int = 4096) -> RowAccess:
    w = walk(-1, (rows, columns), *[(columns, 1)] * (1 + inputs))
    return access_of(w, itemsize, True, vectors, short=True)


@pytest.mark.parametrize(
    ("form", "rows", "columns", "itemsize", "inputs", "vectors"),
    [
        ("_at_once", 100, 4096, 2, 1, 1),
        ("_but_the_end_again", 4096, 8192, 2, 1, 0),
        ("_all_of_peeled", 4096, 6677, 2, 1, 0),
        ("_all_with_vectors", 4096, 9216, 2, 1, 1),
        ("_in_part", 4096, 8192, 2, 1, 1),
        ("_by_32_warps", 8122, 27001, 4, 1, 0),
        ("_in_quarters", 8122, 13713, 2, 1, 0),
        ("_in_halves", 8122, 13713, 4, 2, 0),
        ("_all_but_one", 8122, 16000, 2, 2, 0),
        ("_all", 8122, 5122, 2, 2, 1),
        ("_walked", 8122, 131072, 2, 1, 0),
    ],
)
def test_each_form_of_long_rows_has_rows_of_its_own(
    form: str, rows: int, columns: int, itemsize: int, inputs: int, vectors: int
) -> None:
    w = walk(-1, (rows, columns), *[(columns, 1)] * (1 + inputs))
    demand = Demand(inputs, vectors, columns, 32, -1)
    with cards.standing_for(cards.table()["h200"]):
        row = long_row(w, access(columns, itemsize, inputs, vectors, rows), itemsize, demand, True)
        assert next(of for of in FORMS if of(row)).__name__ == form


@pytest.mark.parametrize(
    ("columns", "itemsize", "inputs", "vectors", "want"),
    [
        *((n, 2, 1, 0, RowAccess(n % 2 or 2, 4, True)) for n in (33, 34, 258, 1022)),
        *((n, 4, 2, 1, RowAccess(n % 2 or 2, 4, True)) for n in (33, 258, 1026, 6142)),
        *((n, itemsize, 2, 1, RowAccess(2, 2, False)) for n in (34, 254) for itemsize in (2, 4)),
        *((n, 2, 1, 2, RowAccess(4, 8, True)) for n in (260, 1020)),
        *((n, 2, 1, 2, RowAccess(4, 4, False)) for n in (36, 132, 252)),
        *((n, 2, 1, 2, RowAccess(2, 4, True)) for n in (1026, 5122, 6142)),
        *((n, 2, 2, 1, RowAccess(2, 2, False)) for n in (22, 30, 1026, 4094)),
        (5122, 2, 2, 1, RowAccess(2, 8, True)),
        (13714, 2, 1, 2, RowAccess(2, 8, True)),
        (13716, 2, 1, 1, RowAccess(4, 8, True)),
        (13716, 2, 1, 2, RowAccess(4, 4, False)),
        (13714, 4, 1, 1, RowAccess(2, 2, False)),
        *((n, 2, 1, 0, RowAccess(1, 8, True)) for n in (1025, 1026, 1028)),
        *((n, 2, 1, 0, RowAccess(n % 8 or 8, n % 8 or 8, False)) for n in (4, 8, 100, 264)),
    ],
)
def test_rows_that_are_no_multiple_of_16_bytes_are_peeled(
    columns: int, itemsize: int, inputs: int, vectors: int, want: RowAccess
) -> None:
    assert access(columns, itemsize, inputs, vectors) == want


def test_rows_of_variants_that_hold_none_and_of_another_place_than_the_output_are_not_peeled() -> None:
    rows = walk(-1, (9, 258), (258, 1), (258, 1))
    apart = walk(-1, (9, 258), (258, 1), (264, 1))
    assert access_of(rows, 2, peels=False, short=True) == access_of(apart, 2, short=True) == RowAccess(2, 2, False)


@pytest.mark.parametrize(("rows", "want"), [(1, 1), (300, 1), (1100, 2), (9000, 4)])
def test_few_peeled_rows_have_programs_of_their_own(rows: int, want: int) -> None:
    """While a multiprocessor has fewer than four programs."""
    w = walk(-1, (rows, 292), *[(292, 1)] * 3)
    with cards.standing_for(cards.table()["h200"]):
        config = row_rule(w, access(292, 2, 2, 0, rows), 2, Demand(2, 0, 292, 32, -1), True)
    assert config["ROWS"] == want
