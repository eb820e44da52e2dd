"""Public calls of operators that save outputs, take optional tensors, or point into an axis."""

import pytest
import torch

import kernelmux as kx
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")


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


def paged(lengths, pages=((0, 2, 1), (1, 0, 2)), **options):
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(shape, generator=rng).half() for shape in ((2, 4, 64), (3, 2, 16, 64), (3, 2, 16, 64)))
    table, lengths = (torch.tensor(x, dtype=torch.int32) for x in (pages, lengths))
    return kx.paged_attention(q, k, v, table, lengths, **options)


@pytest.mark.parametrize("length", [-1, 49, 2**31 - 1, -(2**31)])
def test_a_length_that_no_sequence_has_is_nan(length):
    for backend in ("torch_ref/plain", "torch_ref/exact", *KERNELS):
        y = paged((40, length), backend=backend)
        assert y[1].isnan().all() and torch.equal(y[0], paged((40, 40), backend=backend)[0])


@pytest.mark.parametrize("backend", KERNELS)
def test_a_length_that_no_sequence_has_is_nan_where_sequences_are_split(backend):
    table = ((0,) * 64, (1,) * 64)
    y = paged((1024, 1025), table, backend=backend)
    assert y[1].isnan().all() and torch.equal(y[0], paged((1024, 1024), table, backend=backend)[0])


def test_a_page_that_is_none_is_met_alike_and_one_behind_the_end_is_not_looked_at():
    table = ((0, 2, 1), (1, 7, -1))
    for backend in ("torch_ref/plain", "torch_ref/exact", *KERNELS):
        assert torch.equal(paged((40, 16), table, backend=backend), paged((40, 16), backend=backend))
        assert paged((40, 17), table, backend=backend)[1].isnan().all()


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
