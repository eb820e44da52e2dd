"""The check `selection` catches dispatchers that do not obey, or fall back on their own; sound ones pass."""

import pytest

from kernelmux.conformance.checks import selection as check
from kernelmux.conformance.judging.probe import Enough, Probe
from kernelmux.conformance.options import Options
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence, requests, scope
from kernelmux.registry.errors import UnsupportedError


def judged(op: str = "softmax", backend: str = "torch_ref", variant: str = "exact") -> str:
    """What the check has to say against a variant, "" if nothing."""
    implementation = registered.variants(backend, op)[variant]
    probe = Probe(catalog.spec(op), "selection", backend, variant, implementation, Options(tier="smoke"))
    try:
        check.run(probe)
    except Enough:
        pass
    assert probe.records and all(r.assertions for r in probe.records)
    return "\n".join(r.text for r in probe.records if r.status == "failed")


@pytest.mark.parametrize("op", ["softmax", "copy_column", "cross_entropy"])
def test_a_sound_dispatcher_passes_and_everything_is_as_it_was(monkeypatch, op):
    monkeypatch.setenv("KERNELMUX_BACKEND", "torch_ref")
    ladder = dict(registered.variants("torch_ref", op))
    precedence.reread()
    assert judged(op, variant=[*ladder][-1]) == ""
    assert registered.variants("torch_ref", op) == ladder and scope.state() == ()
    assert precedence.requested(op, None) == precedence.Request(("torch_ref",), "KERNELMUX_BACKEND")
    monkeypatch.undo()
    precedence.reread()


def test_a_default_that_is_not_kept(monkeypatch):
    monkeypatch.setattr(precedence, "set_default", lambda op, backend: None)
    assert "set_default(): expected that set_default('softmax') spoke, got auto" in judged()


def test_an_environment_that_is_not_read(monkeypatch):
    monkeypatch.setattr(precedence, "_of_environment", lambda op: None)
    assert "KERNELMUX_BACKEND_SOFTMAX: expected that KERNELMUX_BACKEND_SOFTMAX spoke, got auto" in judged()


def test_a_file_whose_rules_are_not_asked(monkeypatch):
    monkeypatch.setattr("kernelmux.registry.choice.config_file.Config.request", lambda self, op, call: None)
    assert "a rule of a file: expected that" in judged()


def test_a_scope_that_is_not_in_force(monkeypatch):
    monkeypatch.setattr(precedence, "_of_scopes", lambda op, scopes: None)
    assert "use(): expected that use() spoke, got auto" in judged()


def test_strictness_that_is_forgotten(monkeypatch):
    monkeypatch.setattr(precedence, "_strict", lambda op, scopes: False)
    assert "expected an UnsupportedError, but the call ran" in judged()


def test_a_chain_whose_order_is_not_kept_and_one_that_does_not_go_on(monkeypatch):
    real = dispatch.decide

    def backwards(call, request, *more, **options):
        names = request.names[:1] if request.auto else request.names[::-1]
        return real(call, requests.Request(names, request.source, request.strict), *more, **options)

    def first_only(call, request, *more, **options):
        return real(call, requests.Request(request.names[:1], request.source, request.strict), *more, **options)

    monkeypatch.setattr(dispatch, "decide", first_only)
    assert "raised UnsupportedError" in judged() and "torch_ref/unable" in judged()
    monkeypatch.setattr(dispatch, "decide", backwards)
    assert "UnsupportedError, but the call ran" in judged()


@pytest.mark.parametrize("swallowed", [RuntimeError, UnsupportedError])
def test_a_dispatcher_that_falls_back_when_a_kernel_raises(monkeypatch, swallowed):
    real = dispatch.call

    def forgiving(spec, values, argument):
        try:
            return real(spec, values, argument)
        except swallowed as error:
            if "the stand-in" not in str(error):
                raise
            return real(spec, values, argument[1:] if isinstance(argument, list) else argument)

    monkeypatch.setattr(dispatch, "call", forgiving)
    text = judged()
    assert f"a kernel raised {swallowed.__name__}('the stand-in" in text and "but the caller got" in text


def test_an_exception_that_is_wrapped(monkeypatch):
    real = dispatch.call

    def wrapping(spec, values, argument):
        try:
            return real(spec, values, argument)
        except RuntimeError as error:
            if "the stand-in" not in str(error):
                raise
            raise ValueError("in a kernel") from error

    monkeypatch.setattr(dispatch, "call", wrapping)
    assert "but the caller got ValueError('in a kernel')" in judged()


def test_a_name_of_a_backend_that_means_its_first_rung(monkeypatch, mutants):
    real = dispatch.which

    def first(op, *values, backend=None):
        rungs = registered.variants("mutants_selection", op)
        return real(
            op, *values, backend=f"{backend}/{next(iter(rungs))}" if backend == "mutants_selection" else backend
        )

    assert judged("add", "mutants_selection", "sound") == ""
    monkeypatch.setattr(dispatch, "which", first)
    expected = "expected the last that can run it: mutants_selection/sound"
    assert f"means mutants_selection/asks_the_scope, {expected}" in judged("add", "mutants_selection", "sound")
