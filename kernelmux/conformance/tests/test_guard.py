"""Canaries around allocations, halos around and between inputs."""

from __future__ import annotations

import torch

from kernelmux.candidate.allocations import POISON, Guard, guarded_together
from kernelmux.conformance.judging.redzones import haloed


def test_a_halo_lies_between_the_elements_as_well() -> None:
    x = torch.arange(6.0).view(2, 3)
    made = haloed(x, (5, 1))
    assert torch.equal(made.view, x) and made.view.stride() == (5, 1)
    gap = made.whole[made.used[0] :].view(torch.uint8)[12:20]
    assert (gap == POISON).all()
    before = made.whole.clone()
    made.view.as_strided((1,), (1,), made.view.storage_offset() + 3).fill_(0)
    assert not torch.equal(made.whole, before) and torch.equal(made.view, x)


def test_a_halo_without_strides_is_contiguous() -> None:
    made = haloed(torch.arange(6.0).view(2, 3).t())
    assert made.view.is_contiguous() and made.damage() is None


def test_a_write_behind_an_allocation_is_damage() -> None:
    guard = Guard()
    with guard:
        x = torch.empty(5)
    x.as_strided((6,), (1,)).fill_(1)
    assert "4 bytes behind its end were overwritten" in str(guard.memory[0].damage())


def test_tensors_in_one_piece_of_memory_have_canaries_of_their_own() -> None:
    made = guarded_together(
        [torch.empty(3, dtype=torch.float64), torch.empty(2, 2).t(), torch.empty(0)], torch.empty(0)
    )
    assert len({one.view.untyped_storage().data_ptr() for one in made}) == 1
    assert [one.view.stride() for one in made] == [(1,), (1, 2), (1,)]
    for one in made:
        one.view.fill_(1)
    assert [one.damage() for one in made] == [None] * 3
    made[1].view.as_strided((1,), (1,), made[1].view.storage_offset() + 4).zero_()
    assert [bool(one.damage()) for one in made] == [False, True, False]


def test_an_allocation_that_takes_other_memory_is_looked_at_no_more() -> None:
    weights, guard = torch.arange(6.0), Guard()
    with guard:
        torch.ops.aten.empty.memory_format([0]).set_(weights.untyped_storage()).fill_(1)  # as torch does in C++
        torch.empty(2)
    assert [tuple(made.view.shape) for made in guard.memory] == [(2,)] and weights.eq(1).all()
