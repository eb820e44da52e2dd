"""Other libraries as contestants."""

from __future__ import annotations

import io
import math
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from kernelmux.perf import peers
from kernelmux.perf.cli import main
from kernelmux.perf.peers._attention import rows_first, window_sizes
from kernelmux.perf.peers._libraries import columns_first
from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.report import beside, tables
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.row_result import NotTimed
from kernelmux.perf.session.harness import Harness
from kernelmux.perf.tests.synthetic import row
from kernelmux.perf.timing import inputs
from kernelmux.perf.timing.clock import VirtualClock
from kernelmux.perf.timing.verify import Oracle, WrongOutput
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.ops import attention, attention_backward, paged_attention
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor

OPS = [m.name for m in pkgutil.iter_modules([str(Path(peers.__file__).parent)]) if not m.name.startswith("_")]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.usefixtures("joined")
def test_every_peer_has_the_signature_of_its_operator(op: str) -> None:
    assert op in catalog.names()
    assert {"torch_compile", "flash_4", "scaled_mm"} & set(registered.variants(peers.NAME, op))


@pytest.mark.usefixtures("joined")
def test_what_is_not_installed_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(registered, "unavailable", lambda name, device: None)
    rows = plan.rows(PerfOptions(ops=("softmax",), workloads=("large",), device="cuda", peers=True))
    found = {r.variant: r.problem for r in rows if r.backend == peers.NAME and r.dtype == "bf16"}
    assert found["torch_compile"] == ""
    assert found["quack"] == "quack is not installed"


def bound(m: int, n: int, **scalars: Any) -> Call:
    q, k = (torch.empty(1, 2, length, 64, dtype=torch.bfloat16) for length in (m, n))
    return catalog.spec("attention").bind(q, k, k, **scalars)


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(
    ("call", "cudnn", "flash"),
    [
        (bound(4, 4, causal=True), [], []),
        (bound(4, 6), [], []),
        (bound(4, 6, causal=True), ["causal with M = 4 and N = 6, needs M = N"], []),
        (
            bound(6, 4, causal=True),
            ["causal with M = 6 and N = 4, needs M = N"],
            ["causal with M = 6 and N = 4, needs M <= N"],
        ),
        (bound(4, 4, window=3), ["window = 3, needs window in {None}", "ahead = 0, needs ahead in {None}"], []),
        (bound(4, 4, scale=-0.5), ["scale = -0.5, needs scale > 0"], ["scale = -0.5, needs scale > 0"]),
    ],
)
def test_attention_elsewhere_says_which_calls_it_takes(call: Call, cudnn: list[str], flash: list[str]) -> None:
    found = registered.variants(peers.NAME, "attention")
    assert [found[name].reasons(call) for name in ("cudnn", "flash_2")] == [cudnn, flash]
    assert found["flash_4"].reasons(call)[0] == "flash_attn.cute is not installed"


MASKS = [(True, None, None), (False, None, None), (True, 3, None), (False, 3, 2)]


def test_a_window_of_flash_attention_does_not_count_the_place_itself() -> None:
    assert window_sizes(True, 8, None) == (7, 0) and window_sizes(False, 8, 5) == (7, 5)
    assert window_sizes(True, None, None) == (None, 0) and window_sizes(False, None, None) == (None, None)


def turned(*tensors: T) -> list[T]:
    return [x.transpose(1, 2) for x in tensors]


def window_of(left: int | None) -> int | None:
    return None if left is None else left + 1


def module_of(implementation: Implementation) -> ModuleType:
    return sys.modules[implementation.fn.__module__]


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(
    ("causal", "window", "ahead"), [(True, None, None), (False, None, None), (True, 3, None), (False, 3, 2)]
)
def test_what_flash_attention_gets_and_gives(
    monkeypatch: pytest.MonkeyPatch, causal: bool, window: Limit, ahead: Limit
) -> None:
    """Functions that compute the same on [B M H D], with the arguments of the libraries, stand for these."""

    def flash_2(q: T, k: T, v: T, *args: Any, scale: float, window_size_left: int | None, **others: Any) -> Any:
        assert args == (None, None, q.shape[1], k.shape[1], 0.0, causal, False)
        q, k, v = turned(q, k, v)
        y, lse = attention.reference(q, k, v, causal, scale, window_of(window_size_left), "ieee", ahead)
        return y.transpose(1, 2), lse, None, None, None

    def flash_4(q: T, k: T, v: T, *, softmax_scale: float, causal: bool, window_size: Any, return_lse: bool) -> Any:
        assert return_lse and window_size[1] == (0 if causal else ahead)
        q, k, v = turned(q, k, v)
        y, lse = attention.reference(q, k, v, causal, softmax_scale, window_of(window_size[0]), "ieee", ahead)
        return y.transpose(1, 2), lse

    found = registered.variants(peers.NAME, "attention")
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_2)
    monkeypatch.setattr(module_of(found["flash_4"]), "_flash_4", flash_4)
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 9, 8)
    wanted = attention.reference(q, k, k, causal, 0.3, window, "ieee", ahead)
    for name in ("flash_2", "flash_4"):
        got = found[name].fn(q, k, k, causal, 0.3, window, "ieee", ahead)
        assert all(torch.equal(g, w) for g, w in zip(got, wanted, strict=True))


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(
    ("causal", "window", "ahead"), [(True, None, None), (False, None, None), (True, 3, None), (False, 3, 2)]
)
def test_what_gradients_of_flash_attention_get_and_give(
    monkeypatch: pytest.MonkeyPatch, causal: bool, window: Limit, ahead: Limit
) -> None:
    def gradients(g: T, q: T, k: T, v: T, y: T, lse: T, scale: float, left: int | None) -> list[T]:
        g, q, k, v, y = turned(g, q, k, v, y)
        return turned(*attention_backward.reference(g, q, k, v, y, lse, causal, scale, window_of(left), "ieee", ahead))

    def flash_2(
        g: T, q: T, k: T, v: T, y: T, lse: T, *args: Any, scale: float, window_size_left: Any, **others: Any
    ) -> list[T]:
        assert args[:6] == (None, None, q.shape[1], k.shape[1], 0.0, causal)
        return gradients(g, q, k, v, y, lse, scale, window_size_left)

    def flash_4(
        q: T,
        k: T,
        v: T,
        out: T,
        dout: T,
        lse: T,
        softmax_scale: float,
        causal: bool,
        window_size_left: Any,
        **others: Any,
    ) -> list[T]:
        return gradients(dout, q, k, v, out, lse, softmax_scale, window_size_left)

    found = registered.variants(peers.NAME, "attention_backward")
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", flash_2)
    monkeypatch.setattr(module_of(found["flash_4"]), "_flash_4", flash_4)
    g, q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 4, 6, 8), torch.randn(1, 2, 9, 8)
    y, lse = attention.reference(q, k, k, causal, 0.3, window, "ieee", ahead)
    arguments = (g, q, k, k, y, lse, causal, 0.3, window, "ieee", ahead)
    for name in ("flash_2", "flash_4"):
        wanted = attention_backward.reference(*arguments)
        assert all(torch.equal(g, w) for g, w in zip(found[name].fn(*arguments), wanted, strict=True))


@pytest.mark.usefixtures("joined")
def test_what_flash_attention_over_pages_gets_and_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    def flash_4(q: T, k: T, v: T, *, seqused_k: T, page_table: T, max_seqlen_k: int, softmax_scale: float) -> Any:
        k, v = turned(k, v)
        assert max_seqlen_k == page_table.shape[1] * k.shape[2]
        return paged_attention.reference(q[:, 0], k, v, page_table, seqused_k, softmax_scale)[:, None], None

    implementation = registered.variants(peers.NAME, "paged_attention")["flash_4"]
    monkeypatch.setattr(module_of(implementation), "_flash_4", flash_4)
    q, k, v = torch.randn(2, 4, 8), torch.randn(5, 2, 3, 8), torch.randn(5, 2, 3, 8)
    arguments = (q, k, v, torch.tensor([[4, 0], [1, 3]]), torch.tensor([6, 2]), 0.3)
    assert torch.equal(implementation.fn(*arguments), paged_attention.reference(*arguments))


def test_a_copy_with_rows_first_is_made_once() -> None:
    x = torch.randn(2, 3, 4, 5)
    made = rows_first(x)
    assert made.is_contiguous() and torch.equal(made, x.transpose(1, 2)) and rows_first(x) is made
    turned = made.transpose(1, 2)
    assert rows_first(turned).data_ptr() == made.data_ptr()


def test_a_run_without_them_does_not_know_them() -> None:
    assert peers.NAME not in registered.backend_names()


def test_their_times_are_not_recorded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main.main(["--record", "--peers"]) == 2
    assert "other libraries are not recorded" in capsys.readouterr().err


@pytest.mark.usefixtures("joined")
def test_a_line_compares_the_best_variants_with_the_fastest_of_the_others() -> None:
    times = {
        ("cuda", "naive"): 40.0,
        ("cuda", "fast"): 10.0,
        ("triton", "one"): 20.0,
        ("torch_ref", "plain"): 50.0,
        ("peers", "quack"): 15.0,
        ("peers", "liger"): 30.0,
    }
    ((name, cuda, triton, torch_us, other, *ahead),) = beside.lines(
        row(backend=backend, variant=variant, median_us=us) for (backend, variant), us in times.items()
    )
    assert name.startswith("softmax x=")
    assert (cuda.split(), triton.split()) == (["10.0", "fast"], ["20.0", "one"])
    assert (torch_us.split()[0], other.split()) == ("50.0", ["15.0", "quack"])
    assert ahead == ["1.50x", "0.75x"]


@pytest.mark.usefixtures("joined")
def test_where_torch_is_faster_than_the_other_libraries_it_is_the_measure() -> None:
    rows = [row(backend="cuda", median_us=10.0), row(backend="torch_ref", variant="plain", median_us=9.0)]
    (line,) = beside.lines([*rows, row(backend="peers", variant="quack", median_us=12.0)])
    assert line[4].split() == ["9.00", "torch"]


def test_without_other_libraries_there_is_nothing_to_compare() -> None:
    assert beside.lines([row(backend="cuda"), row(backend="torch_ref", variant="plain")]) == []


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(
    ("fn", "kind", "status", "error"),
    [
        (lambda x, y: x + y * 1.001, WrongOutput, "wrong", r"WrongOutput: z: wrong at \[\d+\]: got"),
        (lambda x, y: x.view(3, 5), RuntimeError, "skipped", "RuntimeError: shape"),
    ],
)
def test_a_wrong_library_is_called_wrong_before_it_is_timed_and_a_refusal_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, fn: Any, kind: type[Exception], status: str, error: str
) -> None:
    row = Row("add", "x=64 y=64", "fp32", peers.NAME, "theirs")
    harness = Harness(PerfOptions(peers=True), (), VirtualClock())
    with monkeypatch.context() as patched, pytest.raises(kind):  # there is no benchmark that could time it
        patched.setattr(registered, "variants", lambda name, op: {"theirs": Implementation(fn=fn, idea="")})
        harness.run(row, SimpleNamespace(extra_info={}))
    assert harness.result and (harness.result.id, harness.result.status) == (row.id, status)
    assert re.match(error, harness.result.error)


@pytest.mark.usefixtures("joined")
def test_wrong_libraries_are_named_and_absent_ones_take_one_line() -> None:
    wrong = NotTimed(**row(backend="peers", variant="liger").identity, status="wrong", error="WrongOutput: y: wrong")
    absent = [
        NotTimed(**row(backend="peers", variant=v).identity, status="skipped", error=f"{v} {peers.ABSENT}")
        for v in ("quack", "flag_gems")
    ]
    out = io.StringIO()
    rows = [row(backend="cuda"), wrong, *absent]
    tables.show(Console(file=out, width=160), rows, on_gpu=True)
    tables.summary(Console(file=out, width=160), rows, (), "")
    told = out.getvalue()
    assert "WRONG softmax peers/liger: WrongOutput: y: wrong" in told
    assert "\nnot installed: flag_gems, quack\n" in told and "not run" not in told
    assert "1 rows timed and right, 0 failed, 1 wrong in other libraries, 2 not applicable" in told


def test_other_libraries_are_timed_in_turns_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Row] = []

    def run(console: Console, rows: list[Row], *others: Any) -> int:
        asked.extend(rows)
        return 0

    monkeypatch.setattr(main.command, "run", run)
    monkeypatch.setattr(main.plan, "rows", lambda options: [Row("add", "x=8 y=8", "fp32", b, "v") for b in "abc"])
    assert main.main(["--op", "add", "--peers"]) == 0
    assert [(r.backend, r.again) for r in asked] == [*((b, False) for b in "abc"), *((b, True) for b in "cba")]


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(
    ("op", "text", "dtype", "variant", "reason"),
    [
        ("int8_matmul", "a=64x64 b=64x64 scale_a=64x1 scale_b=1x64", torch.int8, "cublas", []),
        ("int8_matmul", "a=16x64 b=64x64", torch.int8, "cublas", ["M = 16, needs M >= 17"]),
        ("fp8_matmul", "a=64x128 b=128x64 scale_a=scalar scale_b=scalar", torch.float8_e4m3fn, "scaled_mm", []),
        ("fp8_matmul", "a=64x128 b=128x64 scale_a=64x1 scale_b=1x64", torch.float8_e4m3fn, "scaled_mm", []),
        (
            "fp8_matmul",
            "a=64x128 b=128x64 scale_a=64x1 scale_b=1x64 out_dtype=fp32",
            torch.float8_e4m3fn,
            "scaled_mm",
            [
                "scales [(64, 1), (1, 64)] and a result in fp32, needs one scale, scales of lines and a result in bf16,"
                " or scales of blocks and K a multiple of 512"
            ],
        ),
        (
            "fp8_matmul",
            "a=64x128:e5m2 b=128x64:e5m2 scale_a=scalar scale_b=scalar",
            torch.float8_e5m2,
            "scaled_mm",
            ["a and b in e5m2, needs no two factors in e5m2"],
        ),
        (
            "attention",
            "q=1x4x8x64 k=1x2x8x64 v=1x2x8x64",
            torch.bfloat16,
            "efficient",
            ["G = 2 and H = 4, needs G = H"],
        ),
        ("attention", "q=1x2x8x64 k=1x2x8x64 v=1x2x8x64 causal=True", torch.bfloat16, "efficient", []),
    ],
)
def test_libraries_that_come_with_torch_say_which_calls_they_take(
    op: str, text: str, dtype: torch.dtype, variant: str, reason: list[str]
) -> None:
    spec = catalog.spec(op)
    call = spec.hypothetical(spec.case(text), dtype)
    assert registered.variants(peers.NAME, op)[variant].reasons(call) == reason


@pytest.mark.usefixtures("joined")
def test_what_comes_with_torch_computes_what_the_specs_say() -> None:
    """On the CPU, where torch has these operators too."""
    found = {op: registered.variants(peers.NAME, op) for op in ("int8_matmul", "conv2d", "matmul", "linear")}
    a, b = torch.randint(-9, 9, (20, 16), dtype=torch.int8), torch.randint(-9, 9, (16, 24), dtype=torch.int8)
    one, other = torch.rand(20, 1), torch.rand(1, 24)
    exact = catalog.spec("int8_matmul").reference(a, b, one.double(), other.double())
    assert torch.allclose(found["int8_matmul"]["cublas"].fn(a, b, one, other).double(), exact, rtol=0.01)
    assert torch.equal(found["int8_matmul"]["cublas"].fn(a, b, None, None), (a.int() @ b.int()))
    x, w = torch.randn(2, 3, 9, 8), torch.randn(5, 3, 3, 3)
    got = found["conv2d"]["cudnn"].fn(x, w, None, (2, 1), (1, 0), (1, 2))
    assert torch.allclose(got, catalog.spec("conv2d").reference(x, w, None, (2, 1), (1, 0), (1, 2)), atol=1e-4)
    x, w, bias = torch.randn(4, 8), torch.randn(6, 8), torch.randn(6)
    assert torch.allclose(found["matmul"]["cublas"].fn(x, w.t(), "ieee"), x @ w.t())
    y, z = found["linear"]["cublas"].fn(x, w, bias, "relu", "ieee")
    assert torch.allclose(z, x @ w.t() + bias, atol=1e-5) and torch.equal(y, z.relu())


@pytest.mark.usefixtures("joined")
def test_what_memory_efficient_attention_gets_and_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's kernels hold the lse of a multiple of 32 queries."""

    def kernel(q: T, k: T, v: T, bias: Any, wanted: bool, dropout: float, causal: bool, scale: float) -> Any:
        assert (bias, wanted, dropout) == (None, True, 0.0)
        y, lse = attention.reference(q, k, v, causal, scale, None, "ieee", None)
        return y, torch.nn.functional.pad(lse, (0, -lse.shape[2] % 32)), None, None

    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", kernel)
    q = torch.randn(1, 4, 6, 8)
    got = registered.variants(peers.NAME, "attention")["efficient"].fn(q, q, q, True, 0.3, None, "ieee", None)
    wanted = attention.reference(q, q, q, True, 0.3, None, "ieee", None)
    assert all(torch.equal(g, w) for g, w in zip(got, wanted, strict=True))


def test_a_weight_stays_and_other_matrices_are_turned() -> None:
    b = torch.randn(4, 6)
    turned = columns_first(b)
    assert turned.stride() == (1, 4) and torch.equal(turned, b)
    assert columns_first(turned) is turned


@pytest.mark.parametrize("op", [op for op in OPS if op not in ("int8_matmul", "max_pool2d_backward")])
@pytest.mark.usefixtures("joined")
def test_what_is_given_to_torch_compile_computes_what_the_spec_says(op: str) -> None:
    """For every set of scalars and every number of axes: one that divides a sum by its rows would be no contestant.

    Gradients of pooling are summed in the dtype of the input by torch, and 8-bit products are packed before.
    """
    spec, asked = catalog.spec(op), set()
    made = registered.variants(peers.NAME, op).get("torch_compile")
    if not made:
        return
    for case in spec.cases:
        form = (*map(str, case.scalars.items()), *map(len, case.shapes.values()))
        small = sum(map(math.prod, case.shapes.values())) < 1 << 16
        if case.tier not in ("smoke", "ci") or case.inputs != "normal" or not small or form in asked:
            continue
        asked.add(form)
        dtype = dtypes.SHORT[(case.dtypes or spec.dtypes)[0]]
        call = inputs.one(Row(op, case.text, dtype, peers.NAME, "torch_compile"), "cpu")
        if not any(condition.check(call) for condition in made.requires):
            Oracle(call).check(made.fn.__wrapped__(*call.arguments.values()), made, peers.SLACK)
    assert asked
