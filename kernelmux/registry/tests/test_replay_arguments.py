"""Replays of calls that fill and copy with torch, and of calls whose arguments are one tensor."""

import pytest
import torch

from kernelmux.registry.call import launch_replay
from kernelmux.registry.call.launch_replay import Replayed
from kernelmux.registry.tests.replaying import Kernel, pairs
from kernelmux.registry.util import memory_format
from kernelmux.registry.util.memory_format import told_apart


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
    assert told_apart((a, a)) is None
    other = torch.empty_like(a)
    assert a.numel() == 0 or told_apart((a, other)) == (a, other)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "copied",
    [
        lambda x: x.view(2, 4).t().reshape(-1),
        lambda x: x.view(2, 4).t().contiguous(),
        lambda x: x.view(2, 4).t().clone(),
        lambda x: x.view(1, 2, 2, 2).contiguous(memory_format=torch.channels_last),
        lambda x: memory_format.fresh(x.view(1, 1, 4, 2), torch.channels_last),
        lambda x: memory_format.fresh(x.view(2, 2, 1, 2).permute(0, 3, 2, 1), torch.contiguous_format),
    ],
)
def test_copies_into_new_memory_are_made_anew(kernel, copied, whole):
    """Torch shows `reshape` and `contiguous` as a whole in inference mode, as below autograd, and else their parts."""

    def fn(a, b):
        out, first = torch.empty_like(a), copied(a)
        kernel(first.as_strided((8,), (1,)), b, out)
        return copied(out)

    replayed = Replayed(fn)
    for _ in range(4):
        with torch.inference_mode(whole):
            a, b = torch.rand(2, 8)
            wanted = copied(copied(a).as_strided((8,), (1,)) + b)
            found = replayed(a, b)
            assert torch.equal(found, wanted) and found.stride() == wanted.stride()
    assert not replayed.problem and kernel.launches == ["first"] * 2 + ["stream"] * 2


def _showing(kernel, seen):
    """A sum of two rows of four, shown as `seen` does."""

    def fn(a, b):
        out = torch.empty(2, 4)
        kernel(a, b, out)
        return seen(out)

    return Replayed(fn)


@pytest.mark.parametrize(
    "seen",
    [
        lambda x: x.view(4, 2).t(),
        lambda x: x.view(1, 2, 2, 2).permute(0, 3, 1, 2),
        lambda x: x.view(2, 2, 2, 1).permute(3, 1, 0, 2),
    ],
)
def test_a_result_may_have_the_axes_of_its_memory_in_another_order(kernel, seen):
    replayed = _showing(kernel, seen)
    for a, b in pairs(4):
        found, wanted = replayed(a, b), seen(a + b)
        assert torch.equal(found, wanted) and found.stride() == wanted.stride()
    assert not replayed.problem and kernel.launches == ["first"] * 2 + ["stream"] * 2


@pytest.mark.parametrize("seen", [lambda x: x[:, :3].t(), lambda x: x.flatten()[1:], lambda x: x[:1].expand(2, 4)])
def test_a_result_that_is_not_all_of_its_memory_is_not_replayed(kernel, seen):
    replayed = _showing(kernel, seen)
    for a, b in pairs(4):
        assert torch.equal(replayed(a, b), seen((a + b).view(2, 4)))
    assert replayed.problem == "it returns a part of what it allocates"
