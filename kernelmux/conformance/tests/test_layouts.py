"""Layouts keep what they promise: shape, values, strides, overlap, poison in the gaps."""

from __future__ import annotations

import pytest
import torch

from kernelmux.candidate import allocations
from kernelmux.conformance.checks import offsets
from kernelmux.conformance.inputs import layouts
from kernelmux.conformance.judging import redzones

X = torch.arange(3 * 5 * 8, dtype=torch.float16).reshape(3, 5, 8)


@pytest.mark.parametrize("layout", layouts.LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 8), (3, 5, 8), (1, 1), (2, 1, 3)], ids=str)
def test_a_layout_keeps_shape_and_values(layout: layouts.LayoutRule, shape: tuple[int, ...]) -> None:
    x = torch.arange(max(torch.Size(shape).numel(), 1), dtype=torch.float16).reshape(shape)
    made = layout.of(x)
    if made is not None:
        assert made.shape == x.shape
        assert not made.isnan().any()
        assert torch.equal(made, x) or not layout.same


def test_every_layout_applies_to_a_matrix_or_a_block_or_to_images() -> None:
    images = X[:, None].expand(3, 2, 5, 8)
    assert all(layout.of(X) is not None or layout.of(images) is not None for layout in layouts.LAYOUTS)


def test_images_lie_with_their_channels_last() -> None:
    made = next(layout for layout in layouts.LAYOUTS if layout.name == "channels last").of(X[None])
    assert made is not None and made.stride() == (120, 1, 24, 3) and torch.equal(made, X[None])


def test_the_gaps_hold_nan() -> None:
    made = layouts.laid_out(X, (80, 16, 2))
    whole = made.as_strided((made.untyped_storage().nbytes() // 2,), (1,), 0)
    assert int(whole.isnan().sum()) == whole.numel() - X.numel()


@pytest.mark.parametrize("modulo", [2, 4, 8])
def test_addresses_are_misaligned_as_named(modulo: int) -> None:
    layout = next(one for one in layouts.LAYOUTS if one.name == f"address {modulo} modulo 16")
    made = layout.of(X)
    assert made is not None and made.data_ptr() % 16 == modulo


def test_windows_overlap() -> None:
    made = next(one for one in layouts.LAYOUTS if one.name == "sliding windows").of(X)
    assert made is not None and made.stride()[-2:] == (1, 1)
    assert torch.equal(made[0, 1, :-1], made[0, 0, 1:])


def test_the_guard_places_allocations_between_canaries() -> None:
    with allocations.Guard() as watch:
        out = torch.empty(3, 5, dtype=torch.float16)
        zeros = torch.zeros(4)
        copy = X.transpose(0, 2).contiguous()
    assert [m.view.shape for m in watch.memory] == [out.shape, zeros.shape, copy.shape]
    assert redzones.poison_left(out).all() and not zeros.any() and torch.equal(copy, X.transpose(0, 2))
    assert all(m.damage() is None for m in watch.memory)
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()
    assert "behind its end" in str(watch.memory[0].damage())
    zeros.as_strided((1,), (1,), zeros.storage_offset() - 1).zero_()
    assert "4 bytes before it" in str(watch.memory[1].damage())


def test_a_haloed_input_is_surrounded_by_nan() -> None:
    made = redzones.haloed(X)
    assert torch.equal(made.view, X) and made.owns(made.view)
    first, end = made.used
    assert (made.whole[:first] == 255).all() and (made.whole[end:] == 255).all()


@pytest.mark.parametrize("shape", [(2,), (5, 8), (3, 1, 7)])
def test_far_strides_reach_beyond_31_bits(shape: tuple[int, ...]) -> None:
    strides = offsets.far_strides(shape)
    assert allocations.extent(shape, strides) > 2**31 and strides[1:] == allocations.contiguous_strides(shape[1:])


def test_a_negative_bit_changes_the_memory_and_not_the_values() -> None:
    made = next(one for one in layouts.LAYOUTS if one.name == "negative bit").of(X)
    assert made is not None and made.is_neg() and torch.equal(made, X)
    raw = torch.empty(0, dtype=X.dtype).set_(made.untyped_storage(), 0, X.shape, X.stride())
    assert torch.equal(raw, -X)


def test_each_pitch_is_of_its_own() -> None:
    made = next(one for one in layouts.LAYOUTS if one.name.startswith("rows and matrices")).of(X)
    assert made is not None
    matrix, row, column = made.stride()
    assert column == 1 and row > X.shape[2] and matrix > row * X.shape[1]


@pytest.mark.parametrize("name", ["first axis expanded", "last axis expanded", "sliding windows"])
def test_sums_of_repeated_values_are_exact_in_any_order(name: str) -> None:
    """Equal terms have roundings that add up: a sequential sum of arbitrary values would leave its bound."""
    x = torch.randn(130, 65, generator=torch.Generator().manual_seed(1))
    made = next(one for one in layouts.LAYOUTS if one.name == name).of(x)
    assert made is not None and len(made.unique()) > 20
    for terms in (made, made * made):
        total = torch.zeros(65)
        for row in terms:
            total = total + row
        assert torch.equal(total.double(), terms.double().sum(0))
