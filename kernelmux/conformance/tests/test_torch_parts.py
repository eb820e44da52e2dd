"""Calls that torch_ref cuts into parts, since a library refuses them whole on a GPU."""

from __future__ import annotations

import pytest
import torch

from kernelmux.backends.torch_ref import int8_matmul
from kernelmux.registry import catalog

GRID = 65535  # blocks along the second axis of a grid


def operands(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(rows)
    a = torch.randint(-128, 128, (rows, 24), dtype=torch.int8, generator=rng)
    return a, torch.randint(-128, 128, (24, 16), dtype=torch.int8, generator=rng)


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 16, 27])
@pytest.mark.parametrize("scaled", [False, True])
def test_parts_of_an_int8_product_are_its_rows_in_order(
    rows: int, scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    product = int8_matmul._product

    def watched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        lengths.append(len(a))
        return product(a, b)

    monkeypatch.setattr(int8_matmul, "MOST", 8)
    monkeypatch.setattr(int8_matmul, "_product", watched)
    a, b = operands(rows)
    scale = torch.rand(rows, 1) if scaled else None
    got = int8_matmul.exact(a, b, scale, None)
    want = catalog.spec("int8_matmul").reference(a, b, scale, None)
    assert torch.equal(got, want.to(got.dtype)) and got.dtype == (torch.bfloat16 if scaled else torch.int32)
    assert sum(lengths) == rows and max(lengths) <= 8 and all(n == 8 for n in lengths[:-1])


def test_parts_of_an_int8_product_fit_a_grid_whatever_the_tile() -> None:
    assert int8_matmul.MOST <= GRID
    a = torch.empty(44739328, 64, dtype=torch.int8, device="meta")  # c [M, 48] has 2^31 elements
    lengths = [len(part) for part in int8_matmul._parts(a)]
    assert sum(lengths) == len(a) and max(lengths) <= GRID
    assert min(lengths[:-1]) > 16  # torch._int_mm takes no fewer
