"""Other libraries as contestants."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelmux.perf import cli, peers, plan
from kernelmux.perf.options import Options
from kernelmux.perf.peers._attention import rows_first, window_sizes
from kernelmux.perf.report import beside
from kernelmux.perf.tests.synthetic import row
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, plugins
from kernelmux.registry.backend import Implementation
from kernelmux.registry.ops import attention, attention_backward, paged_attention
from kernelmux.registry.spec import Call

T = torch.Tensor

OPS = [m.name for m in pkgutil.iter_modules([str(Path(peers.__file__).parent)]) if not m.name.startswith("_")]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "_announced", {})
    peers.join()
    yield
    plugins.find.cache_clear()
    registered.backend.cache_clear()
    registered.variants.cache_clear()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.usefixtures("joined")
def test_every_peer_has_the_signature_of_its_operator(op: str) -> None:
    assert op in catalog.names()
    assert {"torch_compile", "flash_4"} & set(registered.variants(peers.NAME, op))


@pytest.mark.usefixtures("joined")
def test_what_is_not_installed_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(registered, "unavailable", lambda name, device: None)
    rows = plan.rows(Options(ops=("softmax",), workloads=("large",), device="cuda", peers=True))
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
        (bound(4, 4, window=3), ["window = 3, needs window in {None}"], []),
        (bound(4, 4, scale=-0.5), ["scale = -0.5, needs scale > 0"], ["scale = -0.5, needs scale > 0"]),
    ],
)
def test_attention_elsewhere_says_which_calls_it_takes(call: Call, cudnn: list[str], flash: list[str]) -> None:
    found = registered.variants(peers.NAME, "attention")
    assert [found[name].reasons(call) for name in ("cudnn", "flash_2")] == [cudnn, flash]
    assert found["flash_4"].reasons(call)[0] == "flash_attn.cute is not installed"


def test_a_window_of_flash_attention_does_not_count_the_place_itself() -> None:
    assert window_sizes(True, 8) == (7, 0) and window_sizes(False, 8) == (7, None)
    assert window_sizes(True, None) == (None, 0) and window_sizes(False, None) == (None, None)


def turned(*tensors: T) -> list[T]:
    return [x.transpose(1, 2) for x in tensors]


def window_of(left: int | None) -> int | None:
    return None if left is None else left + 1


def module_of(implementation: Implementation) -> ModuleType:
    return sys.modules[implementation.fn.__module__]


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 3)])
def test_what_flash_attention_gets_and_gives(monkeypatch: pytest.MonkeyPatch, causal: bool, window: int | None) -> None:
    """Functions that compute the same on [B M H D], with the arguments of the libraries, stand for these."""

    def flash_2(q: T, k: T, v: T, *args: Any, scale: float, window_size_left: int | None, **others: Any) -> Any:
        assert args == (None, None, q.shape[1], k.shape[1], 0.0, causal, False)
        q, k, v = turned(q, k, v)
        y, lse = attention.reference(q, k, v, causal, scale, window_of(window_size_left), "ieee")
        return y.transpose(1, 2), lse, None, None, None

    def flash_4(q: T, k: T, v: T, *, softmax_scale: float, causal: bool, window_size: Any, return_lse: bool) -> Any:
        assert return_lse and window_size[1] == (0 if causal else None)
        q, k, v = turned(q, k, v)
        y, lse = attention.reference(q, k, v, causal, softmax_scale, window_of(window_size[0]), "ieee")
        return y.transpose(1, 2), lse

    found = registered.variants(peers.NAME, "attention")
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_2)
    monkeypatch.setattr(module_of(found["flash_4"]), "_flash_4", flash_4)
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 9, 8)
    wanted = attention.reference(q, k, k, causal, 0.3, window, "ieee")
    for name in ("flash_2", "flash_4"):
        got = found[name].fn(q, k, k, causal, 0.3, window, "ieee")
        assert all(torch.equal(g, w) for g, w in zip(got, wanted, strict=True))


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 3)])
def test_what_gradients_of_flash_attention_get_and_give(
    monkeypatch: pytest.MonkeyPatch, causal: bool, window: int | None
) -> None:
    def gradients(g: T, q: T, k: T, v: T, y: T, lse: T, scale: float, left: int | None) -> list[T]:
        g, q, k, v, y = turned(g, q, k, v, y)
        return turned(*attention_backward.reference(g, q, k, v, y, lse, causal, scale, window_of(left), "ieee"))

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
    y, lse = attention.reference(q, k, k, causal, 0.3, window, "ieee")
    arguments = (g, q, k, k, y, lse, causal, 0.3, window, "ieee")
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
    assert cli.main(["--record", "--peers"]) == 2
    assert "other libraries are not recorded" in capsys.readouterr().err


@pytest.mark.usefixtures("joined")
def test_a_line_compares_the_best_variants_with_the_fastest_of_the_others() -> None:
    times = {
        ("cuda", "naive"): 40.0, ("cuda", "fast"): 10.0, ("triton", "one"): 20.0, ("torch_ref", "eager"): 50.0,
        ("peers", "quack"): 15.0, ("peers", "liger"): 30.0,
    }  # fmt: skip
    ((name, cuda, triton, torch_us, other, *ahead),) = beside.lines(
        row(backend=backend, variant=variant, median_us=us) for (backend, variant), us in times.items()
    )
    assert name.startswith("softmax x=")
    assert (cuda.split(), triton.split()) == (["10.0", "fast"], ["20.0", "one"])
    assert (torch_us.split()[0], other.split()) == ("50.0", ["15.0", "quack"])
    assert ahead == ["1.50x", "0.75x"]


@pytest.mark.usefixtures("joined")
def test_where_torch_is_faster_than_the_other_libraries_it_is_the_measure() -> None:
    rows = [row(backend="cuda", median_us=10.0), row(backend="torch_ref", variant="eager", median_us=9.0)]
    (line,) = beside.lines([*rows, row(backend="peers", variant="quack", median_us=12.0)])
    assert line[4].split() == ["9.00", "torch"]


def test_without_other_libraries_there_is_nothing_to_compare() -> None:
    assert beside.lines([row(backend="cuda"), row(backend="torch_ref", variant="eager")]) == []
