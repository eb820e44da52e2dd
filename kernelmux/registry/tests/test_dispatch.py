"""Choosing: who speaks first, what a refusal says, what is copied, what is remembered."""

import threading

import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import validation
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence, requests
from kernelmux.registry.errors import ArgumentError, BackendUnavailable, SpecError, UnknownName, UnsupportedError
from kernelmux.registry.spec.conditions import AtMost, Dtypes, Multiple

pytestmark = pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.FallbackWarning")  # see test_fallbacks


def marked(value):
    """An implementation of transpose whose result says who made it."""

    def transpose(x):
        return torch.full((x.shape[1], x.shape[0]), float(value), dtype=x.dtype)

    return transpose


LADDER = {
    "slow": Implementation(fn=marked(1), idea="always works"),
    "fast": Implementation(
        fn=marked(2), idea="needs a multiple of 8", requires=(Multiple("N", 8),), layout={"x": "contiguous"}
    ),
}
FAKES = {
    "plain": (Backend("plain", "a fake", 50, lambda device: None), LADDER),
    "picky": (
        Backend("picky", "a fake", 60, lambda device: None),
        {"only": Implementation(fn=marked(3), idea="small", requires=(AtMost("M", 4),))},
    ),
    "broken": (Backend("broken", "a fake", 70, lambda device: "no licence"), {}),
}


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    """Three fake backends in place of the real ones."""
    monkeypatch.setattr(registered, "backends", lambda: tuple(FAKES))
    monkeypatch.setattr(registered, "_packages", lambda: dict.fromkeys(FAKES, "fake"))
    monkeypatch.setattr(registered, "backend", lambda name: FAKES[name][0])
    monkeypatch.setattr(registered, "unavailable", lambda name, device: FAKES[name][0].unavailable(device))
    monkeypatch.setattr(registered, "variants", lambda name, op: FAKES[name][1] if op == "transpose" else {})
    dispatch._plans.clear()
    requests.environment.cache_clear()
    yield
    dispatch._plans.clear()
    requests.environment.cache_clear()


def run(m=8, n=8, **kwargs):
    return dispatch.function("transpose")(torch.zeros(m, n), **kwargs)[0, 0].item()


def test_auto_takes_the_highest_priority_that_can():
    assert run(m=4) == 3
    assert run(m=5) == 2
    assert run(m=5, n=7) == 1


def test_a_single_name_is_strict_and_the_refusal_gives_every_reason():
    with pytest.raises(UnsupportedError) as caught:
        run(m=5, backend="picky")
    text = str(caught.value)
    assert (
        "M = 5, needs M <= 4" in text and "from call argument; strict" in text and 'try: backend="plain/fast"' in text
    )


def test_a_variant_can_be_named():
    assert run(backend="plain/slow") == 1
    with pytest.raises(UnsupportedError, match="N = 7, needs a multiple of 8  -> pad N to 8"):
        run(n=7, backend="plain/fast")
    with pytest.raises(UnknownName, match=r'unknown variant of plain for transpose "fst".*did you mean "fast"'):
        run(backend="plain/fst")


def test_a_chain_falls_through_on_unmet_conditions():
    assert run(m=5, backend=["picky", "plain"]) == 2
    assert run(m=4, backend="picky,plain") == 3


def test_an_unavailable_backend_says_what_is_missing():
    with pytest.raises(BackendUnavailable, match="no licence"):
        run(backend="broken")


def test_unknown_names_are_errors_with_suggestions():
    with pytest.raises(UnknownName, match=r'unknown backend "plian" in call argument; did you mean "plain"\? known: '):
        run(backend="plian")
    with pytest.raises(ArgumentError, match="expected a name or a list of names"):
        run(backend=[])
    with pytest.raises(ArgumentError, match='"auto" stands alone'):
        run(backend=["auto", "plain"])


def test_precedence(monkeypatch):
    monkeypatch.setenv("KERNELMUX_BACKEND", "plain/slow")
    assert run(m=4) == 1
    monkeypatch.setenv("KERNELMUX_BACKEND_TRANSPOSE", "plain/fast")
    requests.environment.cache_clear()
    dispatch._plans.clear()
    assert run(m=4) == 2
    precedence.set_default("transpose", "plain/slow")
    try:
        assert run(m=4) == 1
        with precedence.use("picky"):
            assert run(m=4) == 3
            assert run(m=4, backend="plain") == 2
            with precedence.use("plain/slow", ops=["softmax"]):
                assert run(m=4) == 3
        assert run(m=4) == 1
    finally:
        precedence.set_default("transpose", None)
    assert run(m=4) == 2


def test_misspelt_environment_is_an_error(monkeypatch):
    monkeypatch.setenv("KERNELMUX_BACKEND", "plainn")
    with pytest.raises(UnknownName, match='"plainn" in KERNELMUX_BACKEND'):
        run()
    monkeypatch.setenv("KERNELMUX_BACKEND_SOFTMX", "plain")
    with pytest.raises(UnknownName, match='did you mean "KERNELMUX_BACKEND_SOFTMAX"'):
        precedence.check_environment()


def test_use_is_local_to_the_thread():
    seen = []
    with precedence.use("picky"):
        thread = threading.Thread(target=lambda: seen.append(run(m=5)))
        thread.start()
        thread.join()
    assert seen == [2]


def test_use_is_undone_after_an_exception():
    with pytest.raises(RuntimeError, match="inside"), precedence.use("picky"):
        raise RuntimeError("inside")
    assert run(m=5) == 2


def test_what_does_not_fit_the_layout_is_copied():
    seen = {}

    def transpose(x):
        seen["contiguous"] = x.is_contiguous()
        return x.t().contiguous()

    ladder = {"only": Implementation(fn=transpose, idea="", layout={"x": "contiguous"})}
    x = torch.arange(12.0).reshape(3, 4).t()
    FAKES["plain"][1]["only"] = ladder["only"]
    try:
        decision = dispatch.explain("transpose", x, backend="plain/only")
        assert decision.chosen.copies == ("x",) and "copies x" in str(decision)
        assert torch.equal(dispatch.function("transpose")(x, backend="plain/only"), x.t())
        assert seen["contiguous"]
    finally:
        del FAKES["plain"][1]["only"]


def test_explain_judges_everybody_and_runs_nothing():
    text = str(dispatch.explain("transpose", torch.zeros(5, 7)))
    assert "chosen: plain/slow" in text and "picky/only" in text and "no: M = 5" in text and "no licence" in text


def test_which_names_the_variant_or_raises():
    assert dispatch.which("transpose", torch.zeros(4, 8)) == "picky/only"
    with pytest.raises(UnsupportedError):
        dispatch.which("transpose", torch.zeros(5, 8), backend="picky")


def test_a_remembered_choice_is_reused_for_equal_calls_only():
    run(m=4)
    assert len(dispatch._plans) == 1
    run(m=4)
    assert len(dispatch._plans) == 1
    run(m=5)
    assert len(dispatch._plans) == 2


def test_unhashable_arguments_get_the_error_of_the_binding():
    with pytest.raises(ArgumentError, match="softmax: axis: expected an int, got"):
        dispatch.function("softmax")(torch.zeros(3), axis=[0])


def test_the_public_function_has_the_signature_of_the_spec():
    with pytest.raises(TypeError, match="unexpected keyword argument 'dim'"):
        dispatch.function("softmax")(torch.zeros(3), dim=0)
    assert "Softmax along one axis." in dispatch.function("softmax").__doc__


def test_an_implementation_must_take_the_arguments_of_the_spec():
    wrong = Implementation(fn=lambda x, dim, scale: x, idea="")
    with pytest.raises(
        SpecError,
        match=r"registered softmax\(x, dim, scale\) but the spec is \(x, axis, scale\): .* no dim; did you mean axis?",
    ):
        validation.check_implementation("fake/wrong", catalog.spec("softmax"), wrong)


@pytest.mark.parametrize(
    ("op", "fn", "hint"),
    [
        ("silu", torch.nn.functional.silu, "; to adapt it: fn=lambda x: torch.nn.functional.silu(x)"),
        ("silu", torch.relu, "; to adapt it: fn=lambda x: torch.relu(x)"),  # of which Python knows no parameters
        ("softmax", torch.softmax, "; to adapt it: fn=lambda x, axis, scale: torch.softmax(x, axis, scale)"),
        ("softmax", torch.nn.functional.silu, "the spec has no input; did you mean x?"),  # takes no three arguments
        ("silu", lambda y: y, "the spec has no y"),
    ],
)
def test_a_function_of_other_code_is_refused_with_how_to_adapt_it(op, fn, hint):
    with pytest.raises(SpecError) as raised:
        validation.check_implementation("fake/wrong", catalog.spec(op), Implementation(fn=fn, idea=""))
    assert str(raised.value).endswith(hint)


@pytest.mark.parametrize(
    ("x", "layout", "fits"),
    [
        (torch.zeros(4, 6), "contiguous", True),
        (torch.zeros(4, 6)[:, ::2], "last", False),
        (torch.zeros(4, 6)[:, :5], "last", True),
        (torch.zeros(4, 6)[:, :5], "contiguous", False),
        (torch.zeros(4, 6).t(), "matrix", True),
        (torch.zeros(1, 6).expand(4, 6), "matrix", False),
        (torch.zeros(4, 12)[:, ::2], "matrix", False),
        (torch.zeros(0, 6).t(), "contiguous", True),
    ],
)
def test_layouts(x, layout, fits):
    assert registered.fits(x, layout) is fits


def test_dtype_conditions_read_well():
    condition = Dtypes("x", torch.float16, torch.bfloat16)
    assert condition.text == "x in fp16/bf16"
