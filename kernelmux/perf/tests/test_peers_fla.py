"""fla: what it gets and gives, and which calls it takes."""

import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelmux.perf import peers
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.ops import (
    attention,
    attention_backward,
    cross_entropy,
    cross_entropy_backward,
    rms_norm_backward,
    rope,
)

T = torch.Tensor
BF16 = torch.bfloat16
pytestmark = pytest.mark.usefixtures("joined")


@pytest.fixture
def fla(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives a function of a peer's module in place of one of fla, which is imported at the first call."""

    def given(op: str, **functions: Any) -> None:
        module: ModuleType = sys.modules[registered.variants(peers.NAME, op)["fla"].fn.__module__]
        for name, function in functions.items():
            monkeypatch.setattr(module, name, function)

    return given


def test_gradients_of_a_norm_get_what_the_forward_call_found_computed_once(fla: Callable[..., None]) -> None:
    asked: list[float] = []

    def forward(x: T, weight: None, bias: None, eps: float, is_rms_norm: bool) -> tuple[None, None, T, T]:
        assert x.dim() == 2 and is_rms_norm
        asked.append(eps)
        return None, None, 1 / torch.sqrt((x * x).mean(-1) + eps), x

    def backward(g: T, x: T, weight: T, bias: None, mean: None, r: T, is_rms_norm: bool) -> tuple[T, ...]:
        assert g.shape == x.shape == (6, 8) and g.is_contiguous() and is_rms_norm
        weighted, h = g * weight, x * r[:, None]
        return r[:, None] * (weighted - h * (weighted * h).mean(-1, keepdim=True)), (g * h).sum(0), weight, x

    fn = registered.variants(peers.NAME, "rms_norm_backward")["fla"].fn
    fla("rms_norm_backward", _fla_forward=forward, _fla=backward)
    g, x, weight = torch.randn(2, 8, 3).mT.double(), torch.randn(2, 3, 8).double(), torch.randn(8).double()
    for eps in (0.125, 0.5, 0.125):
        for got, wanted in zip(fn(g, x, weight, eps), rms_norm_backward.reference(g, x, weight, eps), strict=True):
            assert torch.allclose(got, wanted)
    assert asked == [0.125, 0.5]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_is_reduced_and_its_gradient_gets_one_of_each_row(
    fla: Callable[..., None], reduction: str
) -> None:
    def loss_of(logits: T, target: T, smoothing: float, ignore_index: int) -> tuple[Any, ...]:
        rows, lse = cross_entropy.reference(logits, target, ignore_index, smoothing, "none")
        return rows, None, lse, logits.shape[1], 0

    def gradient(logits: T, target: T, lse: T, each: T, smoothing: float, ignore_index: int) -> T:
        assert each.shape == target.shape
        return cross_entropy_backward.reference(each, logits, target, lse, ignore_index, smoothing, "none")

    found = {op: registered.variants(peers.NAME, op)["fla"].fn for op in ("cross_entropy", "cross_entropy_backward")}
    both = registered.variants(peers.NAME, "cross_entropy_with_gradient")["fla"].fn
    fla("cross_entropy", _fla=loss_of)
    fla("cross_entropy_backward", _fla=gradient)
    logits, target, scalars = torch.randn(5, 7).double(), torch.tensor([2, 6, 0, 2, 5]), (2, 0.3, reduction)
    wanted, lse = cross_entropy.reference(logits, target, *scalars)
    grad = cross_entropy_backward.reference(torch.ones_like(wanted), logits, target, lse, *scalars)
    assert torch.allclose(found["cross_entropy"](logits, target, *scalars)[0], wanted)
    got = both(logits, target, *scalars)
    assert torch.allclose(got[0], wanted) and torch.allclose(got[1], grad)
    got = found["cross_entropy_backward"](2 * torch.ones_like(wanted), logits, target, lse, *scalars)
    assert torch.allclose(got, 2 * grad)


def test_rotary_embeddings_get_heads_as_a_batch(fla: Callable[..., None]) -> None:
    def rotary(x: T, cos: T, sin: T, interleaved: bool) -> T:
        assert x.shape == (6, 5, 1, 8) and x.is_contiguous()
        return rope.reference(x.transpose(1, 2), cos, sin, interleaved).transpose(1, 2).contiguous()

    fn = registered.variants(peers.NAME, "rope")["fla"].fn
    fla("rope", _fla=rotary)
    x, cos, sin = torch.randn(2, 3, 5, 8), torch.randn(5, 4), torch.randn(5, 4)
    assert torch.equal(fn(x, cos, sin, True), rope.reference(x, cos, sin, True))


@pytest.mark.parametrize("window", [None, 3])
def test_attention_has_rows_first_and_its_lse_in_base_2(fla: Callable[..., None], window: int | None) -> None:
    def heads_first(*tensors: T) -> list[T]:
        assert all(x.is_contiguous() for x in tensors)
        return [x.transpose(1, 2) for x in tensors]

    def forward(q: T, k: T, v: T, gates: None, sinks: None, scale: float, window: int | None) -> tuple[T, T]:
        q, k, v = heads_first(q, k, v)
        y, lse = attention.reference(q, k, v, True, scale, window, "ieee", None)
        return y.transpose(1, 2), lse.transpose(1, 2) / math.log(2)

    def backward(q: T, k: T, v: T, y: T, gates: None, lse: T, g: T, scale: float, window_size: int | None) -> list[Any]:
        q, k, v, y, g = heads_first(q, k, v, y, g)
        given = g, q, k, v, y, lse.transpose(1, 2) * math.log(2), True, scale, window_size, "ieee", None
        return [*(x.transpose(1, 2) for x in attention_backward.reference(*given)), None]

    found = {op: registered.variants(peers.NAME, op)["fla"].fn for op in ("attention", "attention_backward")}
    fla("attention", _fla=forward)
    fla("attention_backward", _fla=backward)
    q, k, v, g = (torch.randn(2, heads, 5, 8).double() for heads in (4, 2, 2, 4))
    scalars = (True, 0.3, window, "ieee", None)
    y, lse = attention.reference(q, k, v, *scalars)
    for got, wanted in zip(found["attention"](q, k, v, *scalars), (y, lse), strict=True):
        assert torch.allclose(got, wanted)
    arguments = (g, q, k, v, y, lse, *scalars)
    for got, wanted in zip(
        found["attention_backward"](*arguments), attention_backward.reference(*arguments), strict=True
    ):
        assert torch.allclose(got, wanted)


@pytest.mark.parametrize(
    ("op", "text", "dtype", "told"),
    [
        ("rms_norm", "x=2x32768 weight=32768", BF16, None),
        ("rms_norm", "x=2x32769 weight=32769", BF16, "N = 32769"),
        ("rms_norm", "x=2x16385 weight=16385", torch.float32, "N = 16385"),
        ("add_rms_norm_backward", "grad_y=2x9 grad_total=2x9 total=2x9 weight=9", torch.float32, None),
        ("softmax", "x=4x5x6 axis=-1", BF16, None),
        ("softmax", "x=4x5x6 axis=1", BF16, "axis = 1, needs the last axis of x"),
        ("softmax_backward", "grad_out=4x6 y=4x6", torch.float32, None),
        ("softmax_backward", "grad_out=4x6 y=4x6", BF16, "y is bf16"),
        ("attention", "q=1x4x5x8 k=1x2x5x8 v=1x2x5x8 causal=True window=3", BF16, None),
        ("attention", "q=1x4x5x8 k=1x2x5x8 v=1x2x5x8", BF16, "causal = False"),
        ("rope", "x=2x3x5x8 cos=5x4 sin=5x4", BF16, None),
        ("rope", "x=2x3x5x8 cos=2x5x4 sin=5x4", BF16, "cos and sin with 3 and 2 axes"),
    ],
)
def test_which_calls_fla_takes(op: str, text: str, dtype: torch.dtype, told: str | None) -> None:
    spec = catalog.spec(op)
    call = spec.hypothetical(spec.case(text), dtype)
    found = registered.variants(peers.NAME, op)["fla"]
    problems = [problem for c in found.requires if not hasattr(c, "library") and (problem := c.check(call))]
    assert (told in problems[0]) if told else not problems
