"""Launches that a card refuses, kernels that do not compile: the call goes on to the next rung, or says what is wrong."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux.emulator import nvrtc
from kernelmux.registry import backend as registered
from kernelmux.registry import cards, catalog, dispatch, refusals
from kernelmux.registry.backend import Ahead, Backend, Implementation
from kernelmux.registry.conditions import Capability
from kernelmux.registry.tests import made_up
from kernelmux.registry.tests.test_failures import ERRORS, LATE, AcceleratorError, CUDADriverError

X = torch.randn(4, 6)


class CompileException(Exception):
    """As CuPy has it."""


class CompilationError(Exception):
    """As Triton has it: the text shows the place, `error_message` says what is wrong."""

    error_message = None


class LaunchRefused(RuntimeError):
    """As the emulator has it."""


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
        monkeypatch.setattr(refusals, "_noted", {})
        monkeypatch.setattr(refusals, "_failed", {})
        return made

    return install


def told(call: Callable[[], Any]) -> list[str]:
    """The texts of the warnings that a call gives, all at a line of this file."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    ours = [w for w in found if w.category.__module__.startswith("kernelmux")]  # Triton has some of its own
    assert all((w.category, w.filename) == (kx.FallbackWarning, __file__) for w in ours)
    return [str(w.message) for w in ours]


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
    assert slow.tried == 0 and not refusals._noted


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


# --- real kernels, on the emulator ------------------------------------------------------------------------------------

CUDA = """
extern "C" __global__ void wide(const float* x, float* y, int n) {
    extern __shared__ float buffer[];
    int i = threadIdx.x;
    if (i < n) { buffer[i] = x[i]; y[i] = buffer[i]; }
}
extern "C" __global__ void modern(const float* x, float* y, int n) {
    __shared__ float buffer[32];
    int i = threadIdx.x;
    unsigned at = __cvta_generic_to_shared(buffer + i);
    if (i < n) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(x + i));
        asm volatile("cp.async.wait_all;");
        y[i] = buffer[i];
    }
}
"""
TRITON = """
import triton
import triton.language as tl

@triton.jit
def product(x, y, K: tl.constexpr):
    i, k = tl.arange(0, 64), tl.arange(0, K)
    a = tl.load(x + i[:, None] * K + k[None, :])
    b = tl.load(x + k[:, None] * 64 + i[None, :])
    tl.store(y + i[:, None] * 64 + i[None, :], tl.dot(a, b))

@triton.jit
def odd(x, y, K: tl.constexpr):
    tl.static_assert(K == 1, "K has to be 1")
"""


def emulating(monkeypatch: pytest.MonkeyPatch, better: Callable[..., None], like: str = "cuda") -> None:
    """Makes "own" the only backend: its rung "fast" fills the result by `better(x, y)`, "slow" by torch."""
    emulation = registered.backend(like).emulation

    def fast(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        better(x, y)
        return y

    ladder = {"slow": Implementation(torch.square, ""), "fast": Implementation(fast, "")}
    own = Backend("own", "made up", 40, lambda device: None, emulates=True, emulation=emulation)
    made_up.install(monkeypatch, {"own": (own, {"square": ladder})})
    monkeypatch.setattr("kernelmux.registry.notices._emulating", {"own"})


def ran(card: str, x: torch.Tensor) -> tuple[str, list[str]]:
    """What a call of backend "own" runs on a card in the end, and what it says."""
    dispatch._plans.clear()
    with cards.standing_for(card):
        texts = told(lambda: kx.square(x, backend="own"))
        with warnings.catch_warnings(action="error"):
            kx.square(x, backend="own")
        return kx.which("square", x, backend="own"), texts


@pytest.mark.skipif(torch.cuda.is_available() or nvrtc.unavailable() is not None, reason="emulates no CUDA")
@pytest.mark.parametrize(
    ("entry", "shared", "card", "words"),
    [
        ("wide", 120 << 10, "rtx4090", ["122880 bytes of shared memory", "RTX 4090 (sm_89) may have 101376 bytes"]),
        ("modern", 0, "t4", ["does not compile for NVIDIA T4 (sm_75)", "cp.async", "sm_80"]),
    ],
)
def test_a_kernel_of_cuda_that_a_card_cannot_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str, shared: int, card: str, words: list[str]
) -> None:
    from kernelmux.backends.cuda import Source

    (tmp_path / "own.cu").write_text(CUDA)
    kernel = Source(str(tmp_path / "own.py")).kernel(entry, "x* y* n:i32")
    emulating(monkeypatch, lambda x, y: kernel(1, 32, x, y, x.numel(), shared=shared))
    x = torch.arange(8.0)
    assert ran("h200", x) == ("own/fast", [])
    name, (text,) = ran(card, x)
    assert name == "own/slow" and all(word in text for word in words)


@pytest.mark.skipif(registered.unavailable("triton", torch.device("cpu")) is not None, reason="emulates no Triton")
@pytest.mark.parametrize(
    ("name", "card", "words"),
    [
        ("product", "rtx4090", ["out of resource: shared memory", "RTX 4090 (sm_89) may have 101376 bytes"]),
        ("odd", "h200", ["does not compile for NVIDIA H200 SXM (sm_90): ", "K has to be 1"]),
    ],
)
def test_a_kernel_of_triton_that_a_card_cannot_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, card: str, words: list[str]
) -> None:
    (tmp_path / f"own_{name}.py").write_text(TRITON)
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = getattr(importlib.import_module(f"own_{name}"), name)
    emulating(monkeypatch, lambda x, y: kernel[(1,)](x, y, K=512), like="triton")
    which, (text,) = ran(card, torch.zeros(64, 512, dtype=torch.bfloat16))
    assert which == "own/slow" and all(word in text for word in words)


# --- the order of backends, and notices, by card ---------------------------------------------------------------------


def decided(op: str, card: str, dtype: torch.dtype, case: str, times: bool = False) -> tuple[str, str]:
    """The variant that auto takes on a card without recorded times, and who says so."""
    spec = catalog.spec(op)
    call = spec.hypothetical(spec.case(case), dtype, torch.device("cuda"), cards.named(card).capability)
    from kernelmux.registry.requests import AUTO

    found = dispatch.decide(call, AUTO, elsewhere=True)
    return found.chosen.name if found.chosen else "none", found.request.source


FIRST = [
    ("matmul", torch.bfloat16, "a=4096x4096 b=4096x4096"),
    ("linear", torch.float16, "x=4096x4096 weight=4096x4096"),
    ("fp8_matmul", torch.float8_e4m3fn, "a=2048x2048 b=2048x2048.mT scale_a=scalar scale_b=scalar"),
    ("attention", torch.bfloat16, "q=1x8x1024x64 k=1x8x1024x64 v=1x8x1024x64"),
]


@pytest.mark.parametrize(("op", "dtype", "case"), FIRST, ids=[op for op, *_ in FIRST])
def test_on_blackwell_triton_is_first_where_it_has_the_new_tensor_cores(op: str, dtype: torch.dtype, case: str) -> None:
    pytest.importorskip("triton")
    for card in ("b200", "b300"):
        name, source = decided(op, card, dtype, case)
        sm = cards.named(card).sm
        assert name.startswith("triton/") and source == f"auto: on {sm} triton first: tcgen05"
    for card in ("a100", "rtx4090", "h200", "rtx5090"):
        assert (decided(op, card, dtype, case)[1] == "auto" and "triton" not in decided(op, card, dtype, case)[0]) or (
            op == "fp8_matmul" and card == "a100"
        )


def test_elsewhere_and_for_rungs_without_them_the_order_is_as_ever() -> None:
    pytest.importorskip("triton")
    assert decided("matmul", "b200", torch.float32, "a=512x512 b=512x512")[0].startswith("cuda/")
    assert decided("matmul", "b200", torch.bfloat16, "a=4x4096 b=4096x4096")[0].startswith("cuda/")
    assert decided("softmax", "b200", torch.bfloat16, "x=512x512")[0].startswith("cuda/")
    int8 = "a=2048x2048 b=2048x2048"
    assert decided("int8_matmul", "b200", torch.int8, int8)[0].startswith("triton/")
    assert decided("int8_matmul", "b300", torch.int8, int8)[0].startswith("cuda/")


def test_every_variant_that_comes_first_somewhere_exists() -> None:
    for name in registered.backends():
        for rule in registered.backend(name).ahead if registered.loads(name) else ():
            for op, _, variant in (label.partition("/") for label in rule.variants):
                assert variant in registered.variants(name, op), f"{name}: {op}/{variant}"


def test_a_backend_that_is_first_anyway_is_not_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Ahead(frozenset({"softmax/rows"}), frozenset({torch.float32}), Capability((10, 0)), "new units")
    ladder = {"softmax": {"rows": Implementation(made_up.softmax, "")}}

    def install(priority: int) -> None:
        new = Backend("new", "made up", priority, lambda device: None, ahead=(rule,))
        made_up.install(monkeypatch, {"new": (new, ladder), "old": (made_up.home("old", 20), ladder)})

    install(10)
    assert decided("softmax", "b200", torch.float32, "x=4x6") == ("new/rows", "auto: on sm_100 new first: new units")
    assert decided("softmax", "h200", torch.float32, "x=4x6") == ("old/rows", "auto")
    assert decided("softmax", "b200", torch.float16, "x=4x6") == ("old/rows", "auto")
    install(30)
    assert decided("softmax", "b200", torch.float32, "x=4x6") == ("new/rows", "auto")


def test_products_without_tensor_cores_are_told_once_for_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
        return a @ b

    new = Implementation(product, "", (Capability((8, 0)),), arithmetic="mma")
    ladder = {"matmul": {"fma": Implementation(product, ""), "cores": new}}
    own = Backend("own", "made up", 40, lambda device: None, emulates=True)
    made_up.install(monkeypatch, {"own": (own, ladder)})
    a, half = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4, dtype=torch.float16)

    def texts(card: str, *tensors: torch.Tensor) -> list[str]:
        dispatch._plans.clear()
        with cards.standing_for(card):
            found = told(lambda: [kx.matmul(x, x, backend="own") for x in tensors])
        return [text for text in found if "emulator" not in text]

    with warnings.catch_warnings():
        monkeypatch.setattr("kernelmux.registry.notices._emulating", {"own"})
        assert texts("h200", a, half) == texts("a100", a, half) == texts("t4", a.float()) == []
        assert texts("t4", a, half, a) == ["matmul: NVIDIA T4 has no tensor cores for bf16: computed by FMA in fp32"]
        monkeypatch.setattr("kernelmux.registry.notices._told", set())
        assert texts("t4", half) == [
            "matmul: own/fma computes fp16 by FMA in fp32 on NVIDIA T4, without its tensor cores"
        ]


@pytest.mark.parametrize("scales", ["scale_a=scalar scale_b=scalar", "scale_a=64x1 scale_b=1x64"])
def test_no_backend_multiplies_fp8_below_sm_89(scales: str) -> None:
    case = f"a=64x64 b=64x64.mT {scales}"
    for card in ("t4", "a100", "rtx3090"):
        assert decided("fp8_matmul", card, torch.float8_e4m3fn, case)[0] == "none"
    assert decided("fp8_matmul", "rtx4090", torch.float8_e4m3fn, case)[0] != "none"
