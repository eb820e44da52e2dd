"""torch.use_deterministic_algorithms: variants that are not deterministic are passed over, refused, or warned of."""

import warnings
from dataclasses import replace

import pytest
import torch

import kernelmux as kx
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.call import dispatch, fast_path
from kernelmux.registry.choice import determinism
from kernelmux.registry.tests import made_up

X = torch.linspace(-2, 2, 32).reshape(4, 8)
ran: list[str] = []


def rung(name, deterministic):
    """A softmax that tells that it ran."""

    def softmax(x, axis, scale):
        ran.append(name)
        return torch.softmax(x * scale, axis)

    return Implementation(softmax, name, deterministic=deterministic)


BACKENDS = {
    "atomic": (made_up.home("atomic", 40), {"softmax": {"loose": rung("loose", False)}}),
    "mixed": (
        made_up.home("mixed", 30),
        {"softmax": {"ordered": rung("ordered", True), "unordered": rung("unordered", False)}},
    ),
    "plain": (made_up.home("plain", 10, composite=True), {"softmax": {"eager": rung("eager", False)}}),
}


@pytest.fixture(autouse=True)
def backends(monkeypatch):
    made_up.install(monkeypatch, BACKENDS)
    ran.clear()


deterministic = determinism.asked_for


def softmax(backend=None):
    """The variant that ran a call."""
    kx.softmax(X, backend=backend)
    return ran[-1]


def told(*asked):
    """What calls say, each with what it asks for."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for backend in asked:
            softmax(backend)
    return [(w.category, str(w.message).splitlines()[0], w.filename == __file__) for w in found]


@pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.FallbackWarning")
@pytest.mark.parametrize(
    ("asked", "usual", "kept"),
    [
        (None, "loose", "ordered"),
        ("mixed", "unordered", "ordered"),
        ("atomic,mixed", "loose", "ordered"),
        ("mixed/ordered", "ordered", "ordered"),
        ("plain", "eager", "eager"),  # torch's own operators: its flag is its own affair
    ],
)
def test_the_choice_keeps_to_what_is_deterministic_while_the_flag_is_on(asked, usual, kept):
    for _ in range(2):  # the choice of before is remembered, and that of now is made anew
        assert [softmax(asked) for _ in range(3)] == [usual] * 3
        with deterministic():
            assert [softmax(asked) for _ in range(3)] == [kept] * 3
        with deterministic(warn_only=True):
            assert [softmax(asked) for _ in range(3)] == [kept] * 3


@pytest.mark.parametrize("asked", ["atomic", "atomic/loose", "mixed/unordered", "atomic,mixed/unordered"])
def test_asked_for_by_name_it_is_refused_and_the_text_names_the_flag(asked):
    for _ in range(3):
        softmax(asked)  # a remembered choice is no way around
    with deterministic(), pytest.raises(kx.UnsupportedError) as error:
        softmax(asked)
    assert "(deterministic=False), which torch.use_deterministic_algorithms(True) forbids" in str(error.value)
    assert 'try: backend="plain/eager"' in str(error.value)


def test_the_decision_gives_the_reason_and_auto_tells_of_the_backend_that_it_passed_over():
    with deterministic():
        decision = kx.explain("softmax", X)
        ((category, text, _),) = told(None)
    assert decision.chosen.name == "mixed/ordered"
    assert [v.name for v in decision.verdicts if not v.able] == ["atomic/loose", "mixed/unordered"]
    reason = "no: bits may differ from call to call (deterministic=False)"
    assert str(decision).count(reason) == 2
    assert category is kx.FallbackWarning and text.startswith("softmax: auto chose mixed/ordered")
    assert "bits may differ from call to call" in str(kx.explain("softmax", X, backend="atomic"))


def test_where_torch_only_warns_it_runs_if_nothing_else_can_and_that_is_said_once():
    with deterministic(warn_only=True):
        assert kx.which("softmax", X, backend="atomic") == "atomic/loose"
        (found,) = told("atomic", "atomic/loose", "atomic")
    assert ran == ["loose"] * 3
    what = "softmax: the bits of atomic/loose may differ from call to call (deterministic=False), but"
    assert found == (
        kx.DeterminismWarning,
        f"{what} torch.use_deterministic_algorithms(True, warn_only=True) is set.",
        True,
    )
    assert told("atomic") == []


@pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.FallbackWarning")
def test_a_strict_scope_and_the_flag_leave_nothing():
    with deterministic(), kx.use("auto", strict=True), pytest.raises(kx.UnsupportedError, match="atomic cannot run"):
        kx.softmax(X)


def test_only_choices_that_depend_on_the_flag_look_at_it(monkeypatch):
    """The comparison that public calls make first, and the plan, hold for both where all variants are deterministic."""
    same = {"softmax": {"ordered": rung("ordered", True)}}
    made_up.install(monkeypatch, {**BACKENDS, "atomic": (made_up.home("atomic", 40), same)})
    for asked in ("atomic", None):
        for _ in range(3):  # the first result is looked at, the second call's plan is kept, the third takes it
            assert softmax(asked) == "ordered"
        quick = dispatch._plans.quick["softmax"]
        assert "_mode" not in quick.__globals__
        with deterministic():
            assert quick(X, -1, 1.0, asked) is not fast_path.MISSED
    for _ in range(3):
        assert softmax("mixed") == "unordered"
    quick = dispatch._plans.quick["softmax"]
    with deterministic():
        assert quick(X, -1, 1.0, "mixed") is fast_path.MISSED
    assert quick(X, -1, 1.0, "mixed") is not fast_path.MISSED


def test_a_bound_call_keeps_its_variant_and_is_refused_if_that_is_not_deterministic():
    loose, ordered = kx.bind("softmax", X, "mixed"), kx.bind("softmax", X, "mixed/ordered")
    assert (loose.name, ordered.name) == ("mixed/unordered", "mixed/ordered")
    with deterministic():
        ordered(X)
        with pytest.raises(kx.UnsupportedError, match="may differ from call to call"):
            loose(X)
        chosen = kx.bind("softmax", X, "mixed")
        assert chosen.name == "mixed/ordered"
    assert ["_mode" in type(b).__call__.__globals__ for b in (loose, ordered, chosen)] == [True, False, False]
    with deterministic(warn_only=True), pytest.warns(kx.DeterminismWarning):
        loose(X)
    assert ran == ["ordered", "unordered"]


def test_a_condition_that_is_not_met_is_told_beside_the_flag():
    found = replace(rung("loose", False), requires=made_up.LONG.requires)
    spec = {"softmax": {"loose": found}}
    with pytest.MonkeyPatch.context() as patch, deterministic():
        made_up.install(patch, {"atomic": (made_up.home("atomic", 40), spec)})
        with pytest.raises(
            kx.UnsupportedError, match=r"(?s)needs.*x.*torch.use_deterministic_algorithms\(True\) forbids"
        ):
            kx.softmax(X, backend="atomic")


def test_of_the_kernels_of_attention_backward_the_one_with_atomics_is_refused(monkeypatch):
    monkeypatch.undo()  # the backends that there are
    call = torch.zeros(1, 1, 64, 64, dtype=torch.float16)
    arguments = (call, call, call, call, call, torch.zeros(1, 1, 64))
    asked = {"backend": "cuda/fused_atomic"}
    assert kx.explain("attention_backward", *arguments, **asked).chosen.name == "cuda/fused_atomic"
    with deterministic():
        decision = kx.explain("attention_backward", *arguments, **asked)
        assert decision.chosen is None and "torch.use_deterministic_algorithms(True) forbids" in str(decision)
        assert kx.which("attention_backward", *arguments, backend="cuda") == "cuda/fused"
