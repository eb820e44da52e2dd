"""Replays of calls that fill and copy with torch, and of calls whose arguments are one tensor."""

import pytest
import torch

from kernelmux.registry.call import launch_replay
from kernelmux.registry.call.launch_replay import Replayed
from kernelmux.registry.tests.replaying import Kernel, pairs


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launch_replay, "_device", lambda: -1)
    monkeypatch.setattr(launch_replay, "_raw_stream", lambda index: "stream")
    return Kernel()


def test_zeros_and_copies_are_made_anew(kernel):
    def fn(a, b):
        total, out, whole = a.new_zeros(8), torch.empty_like(a), torch.empty_like(a)
        kernel(total, b, total)
        kernel(total, b, out)
        whole.copy_(a)
        kernel(whole, out, out)
        return out

    replayed, room = Replayed(fn), torch.randn(40)
    for first in (0, 4, 8, 12, 20):
        a, b = room[first : first + 8], torch.randn(8)
        torch.testing.assert_close(replayed(a, b), 2 * b + a)
    assert not replayed.problem and kernel.launches == ["first"] * 6 + ["stream"] * 9


@pytest.mark.parametrize("fill", [torch.zeros_like, lambda a: torch.zeros(8), lambda a: a.new_zeros((8,))])
def test_copies_of_views_are_made_anew(kernel, fill):
    """Of arguments that start anywhere in their memory."""

    def fn(a, b):
        out, laid = fill(a), a.new_empty((2, 6))[:, :4]
        laid.copy_(b.view(4, 2).mT)
        room = fill(a)
        room.view(2, 4).copy_(laid)
        kernel(a, room, out)
        return out

    replayed, memory = Replayed(fn), torch.randn(40)
    for first in (0, 4, 8, 12, 20):
        a, b = torch.randn(8), memory[first : first + 8]
        torch.testing.assert_close(replayed(a, b), a + b.view(4, 2).mT.flatten())
    assert not replayed.problem and "stream" in kernel.launches


def test_arguments_that_are_one_tensor_are_told_apart_by_copies(kernel):
    def fn(a, b):
        out = torch.empty_like(a)
        kernel(a, b, out, 2.0)
        return out

    replayed, a = Replayed(fn), torch.randn(8)
    for _ in range(4):
        torch.testing.assert_close(replayed(a, a), 3 * a)
    assert kernel.launches == ["first", "first", "stream", "stream"]
    for a, b in pairs(2):
        torch.testing.assert_close(replayed(a, b), a + 2 * b)
        torch.testing.assert_close(replayed(a, a[:]), 3 * a)
    assert kernel.launches[2:] == ["stream"] * 6


@pytest.mark.parametrize("a", [torch.empty(2**22 + 1), torch.empty(2, 8)[:, :3], torch.empty(9)[1:], torch.empty(0)])
def test_arguments_whose_copy_would_be_large_or_of_another_kind_are_not_watched(a):
    assert launch_replay.told_apart((a, a)) is None
    other = torch.empty_like(a)
    assert a.numel() == 0 or launch_replay.told_apart((a, other)) == (a, other)


def test_a_reshape_that_copies_is_not_replayed(kernel):
    """In inference mode, as below autograd, torch shows it as a whole, and calls it a view."""

    def fn(a, b):
        out = torch.empty_like(a)
        kernel(a, b, out)
        return out.view(2, 4).t().reshape(-1)

    replayed = launch_replay.Replayed(fn)
    for _ in range(4):
        with torch.inference_mode():
            a, b = torch.rand(2, 8)
            assert torch.equal(replayed(a, b), (a + b).view(2, 4).t().reshape(-1))
    assert replayed.problem.startswith("it calls aten.reshape")
