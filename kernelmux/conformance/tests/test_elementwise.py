"""What the elementwise families promise beyond right results: one compilation for all numbers, wide accesses in place."""

from __future__ import annotations

import re

import pytest
import torch

from kernelmux.conformance.tests.launches import launched, ptx
from kernelmux.registry.backend import lookup as registered

HOST = torch.device("cpu")
AVAILABLE = [b for b in ("cuda", "triton") if not registered.unavailable(b, HOST)]
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_other_coefficients_compile_nothing(name: str, layout: str) -> None:
    x = torch.zeros(40, 64)[:, : 64 if layout == "contiguous" else 32]
    one, other = (launched("polynomial", name, x, *n) for n in ((0.5, 1.0, 2.0, 3.0), (0.0, -1.7, 1e5, 1.0)))
    assert one.recipe and other.recipe and one.recipe.key == other.recipe.key


@pytest.mark.parametrize("name", AVAILABLE)
@pytest.mark.parametrize("columns", [14336, 1000, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_halves_of_a_wider_tensor_are_read_16_bytes_at_a_time(name: str, columns: int, dtype: torch.dtype) -> None:
    wide = torch.zeros(64, 2 * columns, dtype=dtype)
    text = ptx(launched("swiglu", name, wide[:, :columns], wide[:, columns:]))
    accesses = re.findall(r"\b(?:ld|st)\.global[.\w]*", text)
    assert accesses and all(re.search(r"\.v4\.[buf]32$", access) for access in accesses)


@pytest.mark.parametrize("name", AVAILABLE)
def test_an_index_is_not_divided_once_per_element(name: str) -> None:
    """A thread has 16 elements of a row: at most two of its indices are taken apart, by a quotient and a remainder."""
    wide = torch.zeros(2, 3, 64, 2 * 2048, dtype=torch.bfloat16)[:, :, ::2]
    text = ptx(launched("swiglu", name, wide[..., :2048], wide[..., 2048:]))
    assert 0 < len(re.findall(r"\b(?:div|rem)\.[su](?:32|64)", text)) <= 12
