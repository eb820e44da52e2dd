"""The same answer from every backend where a value is odd: a target that is no class, an eps near 0, a vast scale."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import ArgumentError, UnsupportedError

CPU = torch.device("cpu")
BACKENDS = [name for name in registered.backends() if not registered.unavailable(name, CPU)]
LOSSES = ("cross_entropy", "cross_entropy_with_gradient", "cross_entropy_backward")
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")


def variants(*ops: str) -> list[tuple[str, str]]:
    """Each operator with each variant."""
    return [(op, f"{name}/{variant}") for op in ops for name in BACKENDS for variant in registered.variants(name, op)]


def ran(op: str, variant: str, values: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The outputs of a call; skips what the variant does not take."""
    try:
        return dispatch.outputs(op, **values, backend=variant)
    except UnsupportedError as error:
        pytest.skip(str(error))


def agree(op: str, variant: str, values: dict[str, Any], relative: float = 1e-4) -> None:
    """The outputs are those of the reference, NaN and infinities in the same places."""
    call = catalog.spec(op).bind(**values)
    for got, want in zip(ran(op, variant, values), call.spec.evaluate(call), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=relative, atol=1e-5, equal_nan=True)


def odd_targets(ignored: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits and targets: classes, ignored ones and numbers that are neither, of nine classes and of one."""
    for classes in (9, 1):
        target = torch.tensor([classes - 1, classes, -1, ignored, 2**40, -(2**33)])
        yield torch.linspace(-2, 3, 6 * classes).view(6, classes).sin(), target


@pytest.mark.parametrize(("op", "variant"), variants(*LOSSES))
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_target_that_is_no_class_is_nan_in_its_row(op: str, variant: str, reduction: str) -> None:
    for ignored in (-100, 0, 2):
        for logits, target in odd_targets(ignored):
            values: dict[str, Any] = {
                "logits": logits,
                "target": target,
                "ignore_index": ignored,
                "reduction": reduction,
            }
            if op == "cross_entropy_backward":
                loss = torch.ones(6 if reduction == "none" else ())
                values |= {"grad_loss": loss, "lse": logits.logsumexp(-1)}
            agree(op, variant, values)


@pytest.mark.parametrize(("_", "variant"), variants("cross_entropy"))
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_gradient_is_nan_in_the_rows_of_such_targets_alone(_: str, variant: str, smoothing: float) -> None:
    logits, target = next(odd_targets(-100))
    leaf = logits.requires_grad_()
    loss = kx.cross_entropy(leaf, target, label_smoothing=smoothing, backend=variant)
    assert loss.isnan()
    loss.backward()
    assert leaf.grad is not None and leaf.grad.isnan().all(1).tolist() == [False, True, True, False, True, True]
    assert not leaf.grad[0].isnan().any() and not leaf.grad[3].any()
    known = torch.tensor([8, 0, 0, -100, 0, 0])  # the others weigh as if all of them were classes
    plain = logits.detach().requires_grad_()
    torch.nn.functional.cross_entropy(plain, known, label_smoothing=smoothing).backward()
    assert plain.grad is not None
    torch.testing.assert_close(leaf.grad[0], plain.grad[0])


@pytest.mark.parametrize(("op", "variant"), variants("max_pool2d_backward"))
def test_an_index_outside_of_its_window_adds_nothing(op: str, variant: str) -> None:
    grad = torch.arange(1.0, 5).view(1, 1, 2, 2)
    for index in ([0, 2, 8, 10], [-1, 3, 8, 10], [2, 100, 2**31 - 1, -(2**31)]):
        values = {"grad_out": grad, "index": torch.tensor(index, dtype=torch.int32).view(1, 1, 2, 2)}
        agree(op, variant, {**values, "size": 4, "kernel": 2})


NORMS = ("rms_norm", "add_rms_norm", "rms_norm_backward", "add_rms_norm_backward")
ROWS = torch.stack([torch.zeros(8), *(torch.linspace(-1, 2, 8) * 10.0**k for k in (-22, -19, -16, -8, 0, 8))])


def of_norm(op: str, rows: torch.Tensor, eps: float) -> dict[str, Any]:
    """The arguments of a norm, or of its gradient, of these rows."""
    tensors = [t.name for t in catalog.spec(op).tensors if t.name != "weight"]
    grad = torch.linspace(1, 2, rows.numel()).view(rows.shape).cos()
    found = {name: rows if name in ("x", "total") else grad for name in tensors}
    return {**found, "weight": torch.linspace(0.5, 1.5, 8), "eps": eps} | (
        {"residual": torch.zeros_like(rows)} if "residual" in tensors else {}
    )


@pytest.mark.parametrize(("op", "variant"), variants(*NORMS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_smallest_eps_gives_the_answer_of_the_reference(op: str, variant: str, dtype: torch.dtype) -> None:
    made = of_norm(op, ROWS, 1e-20)
    values: dict[str, Any] = {n: v.to(dtype) if isinstance(v, torch.Tensor) else v for n, v in made.items()}
    call = catalog.spec(op).bind(**values)
    for got, want in zip(ran(op, variant, values), call.spec.evaluate(call), strict=True):
        largest = want.abs().amax(-1, keepdim=True)
        assert ((got.double() - want).abs() <= 0.02 * largest).all(), variant


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("eps", [1e-46, 1e-40, 1.2e-38, 1e-30, 0.9e-20, -1e-46])
def test_an_eps_that_fp32_cannot_work_with_is_refused(op: str, eps: float) -> None:
    text = rf"{op}: eps: expected 1e-20 <= eps <= 1.0 or eps = 0.0, got {eps}"
    for backend in BACKENDS:
        with pytest.raises(ArgumentError, match=text):
            dispatch.function(op)(**of_norm(op, ROWS, eps), backend=backend)


@pytest.mark.parametrize("eps", [0.0, -0.0])
@pytest.mark.parametrize(("op", "variant"), variants("rms_norm"))
def test_without_eps_a_row_of_zeros_is_nan(op: str, variant: str, eps: float) -> None:
    agree(op, variant, of_norm(op, ROWS[[0, 4, 5]], eps))


def test_a_module_refuses_such_an_eps_at_construction() -> None:
    with pytest.raises(ArgumentError, match=r"eps: expected 1e-20 <= eps <= 1\.0 or eps = 0\.0, got 1e-30"):
        kx.nn.RMSNorm(8, eps=1e-30)


@pytest.mark.parametrize(("op", "variant"), variants("softmax"))
@pytest.mark.parametrize("scale", [1e18, -1e18, 1e10, 0.0, 1e-46])
def test_a_vast_scale_gives_the_softmax_of_the_reference(op: str, variant: str, scale: float) -> None:
    x = torch.tensor([[0.0, 0, 0], [1, 1, -1], [1, 2, 3], [1e15, 1e15, -1e15], [-1e-3, 1e-3, 0]])
    agree(op, variant, {"x": x, "scale": scale})


@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
@pytest.mark.parametrize("scale", [1e30, -1e19])
def test_a_scale_that_takes_ordinary_numbers_beyond_fp32_is_refused(op: str, scale: float) -> None:
    given = [torch.ones(2, 3)] * len(catalog.spec(op).tensors)
    for backend in BACKENDS:
        with pytest.raises(ArgumentError, match=rf"{op}: scale: expected -1e\+18 <= scale <= 1e\+18, got"):
            dispatch.function(op)(*given, scale=scale, backend=backend)


@pytest.mark.parametrize(("op", "variant"), variants("polynomial"))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_coefficients_beyond_the_dtype_give_the_sum_of_fp32(op: str, variant: str, dtype: torch.dtype) -> None:
    large = 1e5 if dtype == torch.float16 else 3.39e38
    x = torch.tensor([0.0, 0.125, -0.25, 0.5]).to(dtype)
    for name in "abc":
        agree(op, variant, {"x": x, **dict.fromkeys("abcd", 0.0), name: large}, relative=2.0**-7)


@pytest.mark.parametrize("op", ["attention", "attention_backward", "paged_attention"])
@pytest.mark.parametrize("scale", [1e30, -1e4])
def test_a_scale_of_which_weights_keep_no_fraction_is_refused(op: str, scale: float) -> None:
    case = catalog.spec(op).cases[0]
    tensors = catalog.spec(op).untouched(case, torch.float16)
    for backend in BACKENDS:
        with pytest.raises(ArgumentError, match=rf"{op}: scale: expected -128\.0 <= scale <= 128\.0, got"):
            dispatch.function(op)(**tensors, scale=scale, backend=backend)


@pytest.mark.parametrize(("op", "variant"), variants("attention_backward"))
@pytest.mark.parametrize("scale", [128.0, -128.0])
def test_one_key_has_all_the_weight_whatever_the_scale(op: str, variant: str, scale: float) -> None:
    q, k = torch.full((1, 1, 3, 64), 2.0).half(), torch.full((1, 1, 1, 64), 0.5).half()
    y, lse = dispatch.outputs("attention", q, k, k, scale=scale, backend="torch_ref")
    found = ran(op, variant, {"grad_out": q, "q": q, "k": k, "v": k, "y": y, "lse": lse, "scale": scale})
    for got, want in zip(found, (0.0, 0.0, 6.0), strict=True):
        assert (got - want).abs().max() <= 0.01, variant
