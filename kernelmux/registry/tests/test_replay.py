"""Replays: what is written after a call was watched gives the results of the call, and what must not be replayed is not."""

import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch, launch_replay
from kernelmux.registry.call.bound_call import BoundCall
from kernelmux.registry.call.launch_replay import Replayed, TensorArgument
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.tests.replaying import Kernel, check, pairs


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launch_replay, "_device", lambda: -1)
    monkeypatch.setattr(launch_replay, "_raw_stream", lambda index: "stream")
    return Kernel()


def test_from_the_third_call_on_only_launches_are_made(kernel):
    python = []

    def fn(a, b):
        python.append(1)
        out = torch.empty_like(a)
        kernel(a, b, out, 2.0)
        return out

    replayed = check(fn, lambda a, b: a + 2 * b, count=5)
    assert len(python) == 2 and not replayed.problem
    assert kernel.launches == ["first", "first", "stream", "stream", "stream"]


def test_results_are_new_tensors(kernel):
    def fn(a, b):
        out = torch.empty_like(a)
        kernel(a, b, out)
        return out

    replayed = check(fn, torch.add)
    (a, b), (c, d) = pairs(2)
    one = replayed(a, b)
    two = replayed(c, d)
    assert one.data_ptr() != two.data_ptr()
    torch.testing.assert_close(one, a + b)


class Allocations(TorchDispatchMode):
    """Counts new tensors, as a mode that guards or measures memory would."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in launch_replay.ALLOCATING
        return func(*args, **(kwargs or {}))


def test_a_replay_allocates_as_torch_does(kernel):
    def fn(a, b):
        out = torch.empty_like(a)
        kernel(a, b, out)
        return out.view(2, 4)

    replayed, (a, b) = check(fn, lambda a, b: (a + b).view(2, 4)), pairs(1)[0]
    with Allocations() as seen:
        found = replayed(a, b)
    assert seen.count == 1 and torch.equal(found, (a + b).view(2, 4))
    with torch.inference_mode():
        assert replayed(a, b).is_inference()
    assert not replayed(a, b).is_inference() and "stream" in kernel.launches
    assert (found.dtype, found.device, found.stride()) == (a.dtype, a.device, (4, 1))


def test_temporaries_views_and_several_outputs(kernel):
    def fn(a, b):
        room = a.new_empty((2, 8))
        _, last = room
        kernel(a, b, last)
        first, second = torch.empty(2, 4), torch.empty_like(b)
        kernel(room[1], b, first.view(8))
        kernel(b.view(2, 4)[1:], a[4:], second[:4])
        kernel(b.view(2, 4)[:1], a[:4], second.view(2, 4)[1])
        return first.view(4, 2), second

    def expected(a, b):
        return (a + 2 * b).view(4, 2), torch.cat((b[4:] + a[4:], b[:4] + a[:4]))

    assert not check(fn, expected).problem


def test_what_a_launch_wants_of_an_address_or_of_a_tensor(kernel):
    looked = []

    def described(address):
        looked.append("address")
        return address

    def held(x):
        looked.append("tensor")
        return x.data_ptr()

    def fn(a, b):
        out = torch.empty_like(a)
        described_a = object()
        launch_replay.stands_for(described_a, a, described)
        kernel(a, b, out, args=(described_a, TensorArgument(b, held, whole=True), out))
        return out

    assert not check(fn, torch.add, count=3).problem
    assert looked == ["address", "tensor"]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda out, a, kept: out.add_(0), "it calls aten.add_"),
        (lambda out, a, kept: float(a[0]), "it calls aten._local_scalar_dense"),
        (lambda out, a, kept: a.new_ones(3), "it calls aten.new_ones"),
        (lambda out, a, kept: a.new_empty(8).copy_(a, non_blocking=True), "it calls aten.copy_"),
        (
            lambda out, a, kept: a.new_empty(16, dtype=torch.int16).copy_(a.view(torch.int16)),
            "an operator of torch takes",
        ),
        (lambda out, a, kept: torch.empty(3, device="meta"), "it allocates on meta"),
    ],
)
def test_what_does_more_than_launch_is_never_replayed(kernel, wrong, problem):
    def fn(a, b):
        out = torch.empty_like(a)
        kernel(a, b, out)
        wrong(out, a, None)
        return out

    replayed = check(fn, torch.add)
    assert replayed.problem.startswith(problem) and "stream" not in kernel.launches


def test_memory_that_outlives_a_call_is_not_replayed(kernel):
    kept = torch.zeros(8)

    def fn(a, b):
        out = torch.empty_like(a)
        kernel(a, kept, out)
        kernel(out, b, out)
        return out

    assert "neither an argument nor allocated" in check(fn, torch.add).problem


def test_what_returns_an_argument_a_part_or_nothing_launched_is_not_replayed(kernel):
    def part(a, b):
        room = a.new_empty((2, 8))
        kernel(a, b, room[1])
        return room[1]

    def argument(a, b):
        kernel(a, b, a)
        return a

    assert "a part of what it allocates" in check(part, torch.add).problem
    replayed = Replayed(argument)
    for a, b in pairs(3):
        torch.testing.assert_close(replayed(a.clone(), b), a + b)
    assert "returns an argument" in replayed.problem
    replayed = Replayed(lambda a, b: a.new_empty(0))
    for a, b in pairs(3):
        assert replayed(a, b).numel() == 0
    assert "launches nothing" in replayed.problem


def test_another_device_or_a_hook_runs_the_implementation(kernel, monkeypatch):
    python, hooks = [], SimpleNamespace(calls=[])

    def fn(a, b):
        python.append(1)
        out = torch.empty_like(a)
        kernel(a, b, out, hooks=hooks)
        return out

    current = [-1]
    monkeypatch.setattr(launch_replay, "_device", lambda: current[0])
    replayed = check(fn, torch.add)
    (a, b), count = pairs(1)[0], len(python)
    hooks.calls = ["profiler"]
    replayed(a, b)
    hooks.calls, current[0] = [], 3
    replayed(a, b)
    assert len(python) == count + 2


def test_an_optional_tensor_and_numbers_are_constants_of_a_kind(kernel):
    def fn(a, weight, scale):
        assert weight is None
        out = torch.empty_like(a)
        kernel(a, a, out, scale)
        return out

    replayed = Replayed(fn)
    for a, _ in pairs(4):
        torch.testing.assert_close(replayed(a, None, 3.0), 4 * a)
    assert not replayed.problem


def bound(op, fn, *values, check=True):
    """An operator bound to an implementation that is replayed."""
    spec = catalog.spec(op)
    whole = spec.given(*values)
    plan, _ = dispatch.resolve(spec, whole, "torch_ref")
    return BoundCall(spec, whole, replace(plan, fn=Replayed(fn)), "torch_ref/exact", check)


def test_a_bound_call_holds_its_replay(kernel):
    python = []

    def fn(a, b):
        python.append(1)
        out = torch.empty_like(a)
        kernel(a, b, out)
        return out

    add = bound("add", fn, *pairs(1)[0])
    for a, b in pairs(5):
        torch.testing.assert_close(add(a, b), a + b)
    assert len(python) == 2 and kernel.launches[2:] == ["stream"] * 3
    assert "_launch0" in type(add).__call__.__code__.co_names
    with pytest.raises(ArgumentError, match="add, bound: y: expected"):
        add(a, b[:4])
    torch.testing.assert_close(add(y=b, x=a), a + b)
    assert len(python) == 2


def test_an_unchecked_call_is_its_replay_and_nothing_else(kernel):
    def fn(a, b):
        out = torch.empty_like(a)
        kernel(a, b, out)
        return out

    add = bound("add", fn, *pairs(1)[0], check=False)
    for a, b in pairs(5):
        torch.testing.assert_close(add(a, b), a + b)
    assert kernel.launches[2:] == ["stream"] * 3
    assert not {"_check", "is_nested", "_modes", "_rest"} & set(type(add).__call__.__code__.co_names)


def test_a_bound_call_with_a_normalised_scalar_holds_its_replay(kernel):
    given = []

    def fn(x, axis, scale):
        given.append((axis, scale))
        out = torch.empty_like(x)
        kernel(x, x, out, scale)
        return out

    softmax = bound("softmax", fn, torch.empty(8), -1, 3)
    for a, _ in pairs(4):
        torch.testing.assert_close(softmax(a), 4 * a)
    assert given == [(0, 3.0)] * 2 and "_launch0" in type(softmax).__call__.__code__.co_names


def test_a_bound_call_with_outputs_that_are_saved_returns_the_others(kernel, monkeypatch):
    """Also on another device, where its implementation runs."""

    def fn(x, weight, bias, activation, precision):
        out, saved = torch.empty_like(x), torch.empty_like(weight)
        kernel(x, weight, out)
        kernel(weight, x, saved)
        return out, saved

    current = [-1]
    monkeypatch.setattr(launch_replay, "_device", lambda: current[0])
    x, weight = (t.view(2, 4) for t in pairs(1)[0])
    linear = bound("linear", fn, x, weight)
    for index in (-1, -1, -1, 5, -1):
        current[0] = index
        torch.testing.assert_close(linear(x, weight), x + weight)
    assert kernel.launches == ["first"] * 4 + ["stream"] * 2 + ["first"] * 2 + ["stream"] * 2


def test_a_launch_of_a_bound_call_that_fails_for_lack_of_a_context_is_made_again(kernel, monkeypatch):
    failing, woken = [False], list[int]()

    def fn(a, b):
        out = torch.empty_like(a)
        kernel(a, b, out)
        return out

    def launched(launcher, *rest):
        def fails(*args):
            if failing.pop():
                raise RuntimeError("CUDA_ERROR_INVALID_CONTEXT")
            failing.append(False)
            launcher(*args)

        noted(fails, *rest)

    noted = launch_replay.launched
    monkeypatch.setattr(launch_replay, "launched", launched)
    monkeypatch.setattr(torch.cuda, "mem_get_info", woken.append)
    add = bound("add", fn, *pairs(1)[0])
    for a, b in pairs(3):
        torch.testing.assert_close(add(a, b), a + b)
    failing[:] = [True]
    torch.testing.assert_close(add(a, b), a + b)
    assert woken == [-1]


def test_watching_a_call_does_not_import_the_compiler_of_torch():
    code = """
import sys, torch
from kernelmux.registry.call import launch_replay
with launch_replay.LaunchRecorder((torch.ones(2),)) as watch:
    torch.empty(3)
assert len(watch.made) == 1 and "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_are_watched_apart(kernel):
    def fn(a, b):
        out = torch.empty_like(a)
        kernel(a, b, out)
        return out

    replayed, wrong = Replayed(fn), []

    def work():
        for a, b in pairs(50):
            if not torch.equal(replayed(a, b), a + b):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and not replayed.problem


def test_a_thread_without_a_context_gets_one(kernel, monkeypatch):
    asleep, woken = [True], []

    def launched(a, b, out):
        if asleep[0]:
            raise RuntimeError("CUDA_ERROR_INVALID_CONTEXT: invalid device context")
        kernel(a, b, out)

    def wake(index):
        woken.append(index)
        asleep[0] = False

    def fn(a, b):
        out = torch.empty_like(a)
        launched(a, b, out)
        return out

    monkeypatch.setattr(torch.cuda, "mem_get_info", wake)
    replayed = check(fn, torch.add, count=2)
    assert woken == [-1] and not replayed.problem
    asleep[0] = True

    def stream(index):
        if asleep[0]:
            raise RuntimeError("CUDA_ERROR_INVALID_CONTEXT: invalid device context")
        return "stream"

    monkeypatch.setitem(replayed.replay.__globals__, "_raw_stream", stream)
    (a, b) = pairs(1)[0]
    assert torch.equal(replayed(a, b), a + b) and woken == [-1, -1]
    assert torch.equal(replayed(a, b), a + b) and kernel.launches[-1] == "stream"


def test_other_errors_of_a_launch_are_the_callers(kernel):
    def fn(a, b):
        raise ValueError("a grid too large")

    with pytest.raises(ValueError, match="a grid too large"):
        Replayed(fn)(*pairs(1)[0])
