"""What ran, exactly: counts under threads and in backward passes, several logs, modules of a model, tables."""

import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import kernelmux as kx
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.observe import call_log, counters, module_hooks
from kernelmux.registry.tests import made_up

X = torch.zeros(4, 8)
STATS = """\
operator   ran           asked by        calls   could not run
──────────────────────────────────────────────────────────────────────────────────
softmax    swift/rows    auto                3
softmax    plain/eager   auto                2   swift: N a multiple of 8; N <= 64
                                                 steady: x aligned to 16 bytes
softmax    plain/eager   call argument       1"""
LOG = """\
operator   ran           asked by   calls   tensors              copies         could not run
────────────────────────────────────────────────────────────────────────────────────────────────────
softmax    swift/rows    auto           5   4x8:fp32 (2 calls)   1, 256 bytes
                                            8x8:fp32 (2 calls)
                                            16x8:fp32 (1 call)
softmax    plain/eager   auto           1   4x1001:fp32                         swift: N a multiple
                                                                                of 8; N <= 64
                                                                                steady: x aligned to
                                                                                16 bytes"""


@pytest.fixture
def backends(monkeypatch):
    """Made-up backends, and no warning of what they cannot run: that has tests of its own."""
    made_up.install(monkeypatch, made_up.BACKENDS)
    monkeypatch.setattr(dispatch.warn_once, "warn_fallback", lambda *_: None)


def softmax(n=8, m=4, **kwargs):
    return kx.softmax(torch.zeros(m, n), **kwargs)


def test_stats_count_each_kind_of_answer(backends):
    for n in (8, 16, 24, 1001, 1003):
        softmax(n)
    softmax(backend="plain")
    found = kx.stats()
    assert str(found) == STATS and found.calls == 6
    assert found.entries[0] == counters.Counted("softmax", "swift/rows", "auto", "", 3)


def test_stats_outlive_the_remembered_plans_and_reading_does_not_count(backends):
    softmax()
    dispatch._plans.clear()
    softmax()
    assert [kx.stats().calls for _ in range(3)] == [2, 2, 2]


def test_stats_begin_anew_on_request(backends):
    softmax()
    softmax()
    assert kx.stats(reset=True).calls == 2
    assert kx.stats().entries == () and str(kx.stats()) == "kernelmux.stats(): no calls yet"
    softmax()
    assert (kx.stats(reset=True).calls, kx.stats(reset=True).calls) == (1, 0)


def test_kinds_do_not_grow_with_the_shapes(backends):
    for n in range(1, 200):
        softmax(n)
    assert kx.stats().calls == 199 and len(kx.stats().entries) < 10


def test_a_call_counts_when_it_begins(monkeypatch):
    def fails(x, axis, scale):
        raise ZeroDivisionError

    ladder = {"softmax": {"one": Implementation(fails, "")}}
    made_up.install(monkeypatch, {"plain": (made_up.home("plain", 1), ladder)})
    with kx.record() as log, pytest.raises(ZeroDivisionError):
        softmax()
    assert kx.stats().calls == log.calls == 1


def test_counts_are_exact_under_threads(backends):
    """Calls, readers and resets at once."""
    seen, each, callers = [], 300, 8
    go = threading.Barrier(callers + 1)

    def calls(k):
        go.wait()
        for i in range(each):
            softmax(8 * (1 + i % 3), m=k + 1)

    with kx.record() as log:
        threads = [threading.Thread(target=calls, args=(k,)) for k in range(callers)]
        for thread in threads:
            thread.start()
        go.wait()
        while any(thread.is_alive() for thread in threads):
            seen.append(kx.stats(reset=True).calls)
    assert sum(seen) + kx.stats().calls == log.calls == callers * each
    assert sum(count for entry in log.entries for _, count in entry.shapes) == callers * each


def test_a_log_has_operators_shapes_copies_and_reasons(backends):
    with kx.record() as log:
        softmax(), softmax(), softmax(m=8), softmax(m=16)
        kx.softmax(torch.zeros(8, 8).t())
        softmax(1001)
    assert str(log) == LOG
    entry = log.entries[0]
    assert (entry.operator, entry.variant, entry.source, entry.calls) == ("softmax", "swift/rows", "auto", 5)
    assert entry.shapes == (("4x8:fp32", 2), ("8x8:fp32", 2), ("16x8:fp32", 1))
    assert (entry.copies, entry.copied) == (1, 256) and entry.module is None


def test_only_the_most_frequent_shapes_are_shown(backends):
    with kx.record() as log:
        for m in range(1, 8):
            softmax(m=m)
    assert "and 4 more" in str(log) and len(log.entries[0].shapes) == 7


def test_what_ran_before_and_after_is_not_in_a_log(backends):
    softmax()
    with kx.record() as log:
        softmax()
        assert repr(log) == "<kernelmux log, open: 1 call of 1 operator>"
    softmax()
    assert log.calls == 1 and repr(log) == "<kernelmux log, closed: 1 call of 1 operator>"
    assert call_log.logs == ()


def test_several_logs_may_overlap(backends):
    first, second = kx.record(), kx.record()
    one = first.__enter__()
    softmax()
    two = second.__enter__()
    softmax()
    first.__exit__(None, None, None)
    softmax()
    second.__exit__(None, None, None)
    assert (one.calls, two.calls) == (2, 2)


def test_an_exception_closes_the_log(backends):
    with pytest.raises(KeyError), kx.record() as log:
        raise KeyError
    assert call_log.logs == () and str(log) == "kernelmux.record(): no calls"


def test_nothing_of_a_log_enters_a_trace():
    with kx.record() as log:
        traced = torch.fx.experimental.proxy_tensor.make_fx(lambda x: kx.softmax(x), tracing_mode="symbolic")(X)
        torch.func.vmap(kx.softmax)(X)
    assert log.calls == 2 and torch.equal(traced(X + 1), torch.softmax(X, -1))


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        if x.shape[0] == 0:
            raise ZeroDivisionError
        return kx.rms_norm(x, self.weight, backend="torch_ref")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Norm()
        self.rest = torch.nn.Sequential(Norm(), Norm())

    def forward(self, x):
        return kx.softmax(self.rest(self.first(x)), backend="torch_ref")


MODULES = """\
module                   operator   ran               asked by        calls   tensors
───────────────────────────────────────────────────────────────────────────────────────────────
(the model)              softmax    torch_ref/exact   call argument       1   4x8:fp32
first                    rms_norm   torch_ref/plain   call argument       2   4x8:fp32 8:fp32
rest.0                   rms_norm   torch_ref/plain   call argument       1   4x8:fp32 8:fp32
rest.1                   rms_norm   torch_ref/plain   call argument       1   4x8:fp32 8:fp32
(outside of the model)   add        torch_ref/plain   call argument       1   4x8:fp32 4x8:fp32"""


def has_hooks(model):
    return any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_calls_belong_to_the_module_in_whose_forward_they_run():
    model = Model()
    with kx.record(model) as log:
        model(X)
        model.first(X)
        kx.add(X, X, backend="torch_ref")
        assert has_hooks(model)
    assert not has_hooks(model)
    assert log.table(by="module") == MODULES
    assert {(e.module, e.operator): e.calls for e in log.entries if e.operator != "rms_norm"} == {
        ("", "softmax"): 1,
        (module_hooks.OUTSIDE, "add"): 1,
    }
    assert log.table().count("rms_norm") == 1 and "      4   4x8:fp32 8:fp32" in log.table()


def test_a_module_that_raises_is_left():
    model = Model()
    with kx.record(model) as log:
        with pytest.raises(ZeroDivisionError):
            model(torch.zeros(0, 8))
        kx.add(X, X, backend="torch_ref")
    assert [entry.module for entry in log.entries] == [module_hooks.OUTSIDE]


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return kx.add(grad, grad, backend="torch_ref")


def test_calls_of_the_backward_pass_are_seen_and_named():
    model = Model()
    with kx.record(model) as log:
        InBackward.apply(model(X.clone().requires_grad_())).sum().backward()
    found = {entry.module: entry for entry in log.entries if entry.operator == "add"}
    assert list(found) == [module_hooks.BACKWARD] and found[module_hooks.BACKWARD].calls == 1


def test_a_forward_that_is_computed_again_in_the_backward_pass_belongs_to_its_module():
    model = Model()
    with kx.record(model) as log:
        checkpoint(model.first, X.clone().requires_grad_(), use_reentrant=False).sum().backward()
    assert [(entry.module, entry.calls) for entry in log.entries] == [("first", 2)]


def test_threads_have_modules_of_their_own():
    model, go = Model(), threading.Barrier(4)

    def run(k):
        go.wait()
        for _ in range(20):
            (model if k % 2 else model.rest)(X)

    with kx.record(model) as log:
        threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {e.module: e.calls for e in log.entries} == {"": 40, "first": 40, "rest.0": 80, "rest.1": 80}


@pytest.mark.parametrize("model", [5, "model", torch.nn.Linear, X])
def test_only_modules_can_be_recorded(model):
    with pytest.raises(kx.ArgumentError, match=r"record\(\): model: expected a torch.nn.Module or nothing, got"):
        kx.record(model).__enter__()
    assert call_log.logs == ()


def test_a_table_by_something_else_is_refused():
    with kx.record() as log:
        pass
    with pytest.raises(kx.ArgumentError, match=r'table\(\): by: expected "operator" or "module", got \'shape\''):
        log.table(by="shape")
    with pytest.raises(kx.ArgumentError, match=r"the log knows no model: open it with kernelmux.record\(model\)"):
        log.table(by="module")
