"""Launches that a card refuses, kernels that do not compile: the call goes on to the next rung, or says what is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import refusals
from kernelmux.registry.tests import made_up
from kernelmux.registry.tests.cuda_errors import (
    ERRORS,
    LATE,
    AcceleratorError,
    CompilationError,
    CompileException,
    CUDADriverError,
    LaunchRefused,
)
from kernelmux.registry.tests.made_up import told
from kernelmux.registry.util import cards

X = torch.randn(4, 6)


def inner() -> Exception:
    """An error in a function that a kernel of Triton calls."""
    error, cause = CompilationError("at 3:4:\n    helper(x)"), CompilationError("at 9:8:\n    tl.dot(a, b)")
    cause.error_message = "Input shapes should have M >= 16"  # type: ignore[assignment]
    error.__cause__ = cause
    return error


LOG = "rows.cu(7): warning #177-D: never used\nrows.cu(9): error: no instance of max.NaN\n1 error detected"
COMPILING = {
    "cupy": (CompileException(LOG), "rows.cu(9): error: no instance of max.NaN"),
    "triton": (inner(), "Input shapes should have M >= 16"),
    "passes": (RuntimeError("PassManager::run failed"), "PassManager::run failed"),
}
MORE = {
    "emulator": (LaunchRefused("argument: 120000 bytes of shared memory: a block can have 101376"), 701),
    "cluster": (CUDADriverError("CUDA_ERROR_INVALID_CLUSTER_SIZE: cluster misconfiguration"), 912),
}
REFUSED = {n: e for n, (e, code) in (ERRORS | MORE).items() if code not in LATE} | {
    n: e[0] for n, e in COMPILING.items()
}


class Rung:
    """An implementation of softmax that raises; tried: how often it was called."""

    def __init__(self, error: Exception | None, good: int = 0) -> None:
        self.error, self.good, self.tried = error, good, 0

    def __call__(self, x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
        self.tried += 1
        if self.error and self.tried > self.good:
            raise self.error
        return torch.softmax(x * scale, axis)


Backends = Callable[..., tuple[Rung, Rung]]


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Backends:
    """Installs "own", whose better rung raises, over "plain", made of torch's operators; gives own's two rungs."""

    def install(error: Exception, good: int = 0, slow: Exception | None = None) -> tuple[Rung, Rung]:
        made = Rung(slow), Rung(error, good)
        ladder = {"slow": Implementation(made[0], ""), "fast": Implementation(made[1], "")}
        own = Backend("own", "made up", 40, lambda device: None)
        ours = (own, {"softmax": ladder, "softmax_backward": {}})
        made_up.install(monkeypatch, {"own": ours, "plain": made_up.BACKENDS["plain"]})
        monkeypatch.setattr(refusals, "noted", {})
        monkeypatch.setattr(refusals, "_failed", {})
        return made

    return install


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("backend", [None, "own", "own,plain"])
def test_a_refused_rung_gives_way_to_the_next_once(backends: Backends, name: str, backend: str | None) -> None:
    slow, fast = backends(REFUSED[name])
    (text,) = told(lambda: kx.softmax(X, backend=backend))
    assert text.startswith("softmax: own/slow runs in place of own/fast: ") and "Said once" in text
    for _ in range(4):
        assert told(lambda: torch.equal(kx.softmax(X, backend=backend), torch.softmax(X, -1))) == []
    assert (slow.tried, fast.tried) == (5, 1)
    counts = {entry.variant: (entry.calls, entry.refused) for entry in kx.stats().entries}
    assert counts == {"own/slow": (5, 0), "own/fast": (1, 1)} and kx.stats().calls == 5
    assert "refused" in str(kx.stats())
    assert kx.stats(reset=True).entries and not kx.stats().entries


def test_explain_and_which_tell_it_and_another_kind_of_call_tries_again(backends: Backends) -> None:
    _, fast = backends(MORE["emulator"][0])
    told(lambda: kx.softmax(X, backend="own"))
    assert kx.which("softmax", X, backend="own") == "own/slow"
    text = str(kx.explain("softmax", X, backend="own"))
    assert "no: the launch was refused: argument: 120000 bytes" in text
    assert "yes" in str(kx.explain("softmax", X, backend="own/fast"))
    assert told(lambda: kx.softmax(X[:2], backend="own")) == [] and fast.tried == 2
    with cards.standing_for("rtx4090"):  # of another card nothing is known yet
        assert kx.which("softmax", X, backend="own") == "own/fast"


def test_a_call_that_is_compared_with_the_last_one_goes_on_too(backends: Backends) -> None:
    """The quick call, which the third of a kind is."""
    slow, fast = backends(ERRORS["shared memory"][0], good=4)
    for _ in range(4):
        kx.softmax(X, backend="own")
    assert "softmax" in dispatch._plans.quick
    (text,) = told(lambda: kx.softmax(X, backend="own"))
    assert "own/slow runs in place of own/fast" in text
    for _ in range(3):
        kx.softmax(X, backend="own")
    assert (slow.tried, fast.tried) == (4, 5)


def test_the_next_backend_runs_where_no_rung_is_left_and_one_warning_says_so(backends: Backends) -> None:
    slow, fast = backends(ERRORS["argument"][0], slow=COMPILING["cupy"][0])
    texts = told(lambda: kx.softmax(X))
    assert [text.partition(":")[2].partition(":")[0] for text in texts] == [
        " own/slow runs in place of own/fast",
        " plain/eager runs in place of own/slow",
    ]
    assert kx.which("softmax", X) == "plain/eager" and (slow.tried, fast.tried) == (1, 1)
    (entry,) = [entry for entry in kx.stats().entries if entry.variant == "plain/eager"]
    assert entry.fallback == "own: a launch that the card takes"


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("form", ["variant", "strict", "bound", "capture"])
def test_it_is_an_error_where_nothing_may_run_in_its_place(
    backends: Backends, monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    slow, _ = backends(REFUSED[name])
    expected = kx.CompileFailure if name in COMPILING else kx.KernelFailure
    bound = kx.bind("softmax", (X,), "own")
    if form == "capture":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(2):
        with pytest.raises(expected) as raised, kx.use("own", strict=form == "strict"):
            bound(X) if form == "bound" else kx.softmax(X, backend="own/fast" if form == "variant" else None)
        assert type(raised.value) is expected and raised.value.__cause__ is REFUSED[name]
    assert slow.tried == 0 and not refusals.noted


@pytest.mark.parametrize("name", COMPILING)
def test_a_compilers_error_names_the_variant_the_card_and_what_it_says(backends: Backends, name: str) -> None:
    error, said = COMPILING[name]
    backends(error)
    with pytest.raises(kx.CompileFailure) as raised:
        kx.softmax(X, backend="own/fast")
    head, call, *rest = str(raised.value).splitlines()
    assert head == f"softmax[own/fast] does not compile for the CPU: {said}" and "x fp32[4, 6]" in call
    assert rest[1:] == [f"    {line}" for line in str(error).splitlines()]


def test_the_card_and_what_a_block_may_have_are_named(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    backends(MORE["emulator"][0])
    own = Backend("own", "made up", 40, lambda device: None, emulates=True)
    found = registered.backend
    monkeypatch.setattr(registered, "backend", lambda name: own if name == "own" else found(name))
    with (
        cards.standing_for("rtx4090"),
        warnings.catch_warnings(action="ignore"),
        pytest.raises(kx.KernelFailure) as raised,
    ):
        kx.softmax(X, backend="own/fast")
    limits = "NVIDIA GeForce RTX 4090 (sm_89) may have 101376 bytes of shared memory, 1024 threads and 65536 registers"
    assert f"  card: a block on {limits}" in str(raised.value) and "context" not in str(raised.value)


@pytest.mark.parametrize("name", [n for n, (_, code) in ERRORS.items() if code in LATE])
def test_an_error_after_which_the_gpu_is_lost_falls_through_nowhere(backends: Backends, name: str) -> None:
    slow, _ = backends(ERRORS[name][0])
    with pytest.raises(kx.KernelFailure):
        kx.softmax(X)
    assert slow.tried == 0


def test_what_is_no_refusal_reaches_the_caller(backends: Backends) -> None:
    slow, _ = backends(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        kx.softmax(X)
    assert slow.tried == 0


def test_the_last_rung_of_all_says_what_is_wrong_each_time(backends: Backends) -> None:
    backends(ERRORS["argument"][0], slow=COMPILING["cupy"][0])
    with warnings.catch_warnings(action="ignore"):
        for _ in range(2):
            with pytest.raises(kx.CompileFailure, match=r"softmax\[own/slow\] does not compile"):
                kx.softmax(X, backend="own")


def test_what_torch_raises_in_its_own_backend_stays_there(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    backends(ERRORS["argument"][0])
    plain, rung = made_up.home("plain", 10, composite=True), Rung(AcceleratorError("CUDA error: invalid argument"))
    ladder = {"fine": Implementation(Rung(None), ""), "fails": Implementation(rung, "")}
    made_up.install(monkeypatch, {"plain": (plain, {"softmax": ladder})})
    with pytest.raises(kx.KernelFailure):
        kx.softmax(X, backend="plain")


def test_a_variant_that_never_compiles_is_not_tried_for_every_length(backends: Backends) -> None:
    """Each try costs the seconds of a compiler; a launch that is refused costs none."""
    _, fast = backends(COMPILING["cupy"][0])
    texts = told(lambda: [kx.softmax(torch.zeros(2, n), backend="own") for n in range(1, 21)])
    assert fast.tried == refusals.TRIES and len(texts) == 1
    told(lambda: kx.softmax(X.half(), backend="own"))
    assert fast.tried == refusals.TRIES + 1  # other dtypes are another kernel
    _, fast = backends(ERRORS["shared memory"][0])
    told(lambda: [kx.softmax(torch.zeros(2, n), backend="own") for n in range(1, 21)])
    assert fast.tried == 20


def test_where_warnings_are_errors_the_next_call_works(backends: Backends) -> None:
    backends(ERRORS["argument"][0])
    with warnings.catch_warnings(action="error"):
        with pytest.raises(kx.FallbackWarning):
            kx.softmax(X)
        assert torch.equal(kx.softmax(X), torch.softmax(X, -1))


def test_torchs_operator_its_compiler_and_autocast_go_on_too(backends: Backends) -> None:
    for run in (
        lambda: torch.ops.kernelmux.softmax(X, -1, backend="own"),
        lambda: torch.compile(lambda x: kx.softmax(x, backend="own"), backend="eager", fullgraph=True)(X),
    ):
        slow, _ = backends(ERRORS["argument"][0])
        with warnings.catch_warnings(action="ignore"):
            assert torch.equal(run(), torch.softmax(X, -1)) and slow.tried == 1
    slow, _ = backends(ERRORS["argument"][0])
    with warnings.catch_warnings(action="ignore"), torch.autocast("cpu", torch.bfloat16):
        assert kx.softmax(X, backend="own").dtype == torch.softmax(X, -1).dtype and slow.tried == 1


def test_a_backward_goes_on_too(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, each with a better rung that is refused; the thread is one of autograd."""
    backends(ERRORS["argument"][0])
    made, back = Rung(ERRORS["argument"][0]), []

    def refused(*values: Any) -> torch.Tensor:
        back.append("refused")
        raise ERRORS["shared memory"][0]

    def backward(grad: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
        back.append("ran")
        return y * (grad - (grad * y).sum(axis, keepdim=True)) * scale

    ladders = {
        "softmax": {"slow": Implementation(Rung(None), ""), "fast": Implementation(made, "")},
        "softmax_backward": {"slow": Implementation(backward, ""), "fast": Implementation(refused, "")},
    }
    own = Backend("own", "made up", 40, lambda device: None)
    made_up.install(monkeypatch, {"own": (own, ladders)})
    x = X.clone().requires_grad_()
    with warnings.catch_warnings(action="ignore"):
        for _ in range(2):
            kx.softmax(x, backend="own")[0, 0].backward()
    y = X.clone().requires_grad_()
    torch.softmax(y, -1)[0, 0].backward()
    assert x.grad is not None and y.grad is not None and torch.allclose(x.grad, 2 * y.grad)
    assert back == ["refused", "ran", "ran"] and made.tried == 1
