"""Public calls of operators that save outputs, take optional tensors, or point into an axis."""

import pytest
import torch

import kernelmux as kx
from kernelmux.registry import dispatch
from kernelmux.registry.errors import ArgumentError


def test_saved_outputs_are_hidden_from_the_public_call_and_returned_on_request():
    logits, target = torch.randn(5, 9), torch.tensor([0, 8, -100, 3, 3])
    loss = kx.cross_entropy(logits, target, backend="torch_ref")
    every = dispatch.outputs("cross_entropy", logits, target, backend="torch_ref")
    assert loss.shape == () and [tuple(y.shape) for y in every] == [(), (5,)]
    assert torch.equal(every[0], loss) and torch.allclose(every[1], logits.logsumexp(-1))


def test_outputs_are_a_tuple_even_of_one():
    x = torch.randn(3, 4)
    (y,) = dispatch.outputs("softmax", x, backend="torch_ref")
    assert torch.equal(y, kx.softmax(x, backend="torch_ref"))


def test_an_optional_tensor_is_none_or_given_in_turns():
    x, weight, bias = torch.randn(3, 4), torch.ones(4), torch.full((4,), 2.0)
    for _ in range(2):
        plain = kx.layer_norm(x, weight, backend="torch_ref")
        assert torch.allclose(kx.layer_norm(x, weight, bias, backend="torch_ref"), plain + 2, atol=1e-6)
        assert torch.equal(kx.layer_norm(x, weight, None, backend="torch_ref"), plain)


@pytest.mark.parametrize("target", [9, -1, 2**40])
def test_a_target_that_is_no_class_is_an_argument_error_of_torch_on_a_cpu(target):
    with pytest.raises(ArgumentError, match=rf"target: expected 0 <= target < 9 or .* = -100, got {target} in row 1"):
        kx.cross_entropy(torch.randn(2, 9), torch.tensor([3, target]), backend="torch_ref")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_torchs(reduction, smoothing):
    logits, target = torch.randn(7, 9), torch.tensor([0, 8, -100, 3, 3, -100, 1])
    ours = kx.cross_entropy(logits, target, label_smoothing=smoothing, reduction=reduction, backend="torch_ref")
    theirs = torch.nn.functional.cross_entropy(logits, target, reduction=reduction, label_smoothing=smoothing)
    assert torch.allclose(ours, theirs, atol=1e-6)
    ignored = torch.full((7,), -100)
    assert kx.cross_entropy(logits, ignored, reduction=reduction, backend="torch_ref").isnan().all() == (
        reduction == "mean"
    )
