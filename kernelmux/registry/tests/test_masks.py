"""Which keys a query of attention sees: what the arguments say, and what kernels make of them."""

from itertools import product

import pytest
import torch

import kernelmux as kx
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.ops import attention
from kernelmux.registry.spec.sliding_windows import mask_of

pytestmark = pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.EmulationWarning")

BACKENDS = ("torch_ref", "cuda", "triton")
CALLS = [
    ({"window": 3}, 3, 0),
    ({"window": 3, "ahead": 2}, 3, 2),
    ({"ahead": 3}, None, 3),
    ({"window": 3, "causal": True}, 3, 0),
    ({"ahead": 0}, None, 0),
    ({"window": 4, "ahead": 100}, 4, None),
    ({}, None, None),
]


def seen(m, n, window, ahead):
    """By the words of the docs, key by key."""
    places = [[j - (i + n - m) for j in range(n)] for i in range(m)]
    return torch.tensor(
        [[(window is None or at > -window) and (ahead is None or at <= ahead) for at in row] for row in places]
    ).view(m, n)


def weights(m, n, backend, **options):
    """The weight of each key: values are a unit matrix, and all scores are equal."""
    q, k, v = torch.zeros(1, 1, m, n), torch.zeros(1, 1, n, n), torch.eye(n)[None, None]
    return kx.attention(q, k, v, backend=backend, **options)[0, 0]


@pytest.mark.parametrize(
    ("backend", "arguments", "window", "ahead"),
    [(b, *call) for b in BACKENDS for call in (CALLS if b == "torch_ref" else CALLS[:3])],
)
def test_a_query_sees_the_keys_of_its_window_and_those_ahead(backend, arguments, window, ahead):
    for m, n in ((8, 8), (5, 9), (9, 6)):
        got = weights(m, n, backend, **arguments)
        assert torch.equal(got > 0, seen(m, n, window, ahead)), (m, n)


@pytest.mark.parametrize("backend", BACKENDS)
def test_causal_is_no_key_ahead(backend):
    q, k, v = (torch.randn(1, 2, n, 64, dtype=torch.bfloat16) for n in (33, 40, 40))
    for window in (None, 7):
        causal = kx.attention(q, k, v, causal=True, window=window, backend=backend)
        assert torch.equal(kx.attention(q, k, v, window=window, ahead=0, backend=backend), causal)


def test_causal_and_keys_ahead_are_an_error():
    q = torch.zeros(1, 1, 4, 8)
    with pytest.raises(
        ArgumentError, match="expected causal=True or a number of keys ahead, not both, got causal = True"
    ):
        kx.attention(q, q, q, causal=True, ahead=2)
    with pytest.raises(ArgumentError, match="ahead: expected"):
        kx.attention(q, q, q, ahead=-1)


def test_the_mask_of_kernels_is_that_of_the_arguments():
    bounds = (None, 0, 1, 2, 5, 7, 2**31 - 1)
    for m, n, causal, window, ahead in product((1, 2, 5, 7), (1, 3, 7, 9), (False, True), bounds, bounds):
        if window == 0 or (causal and ahead is not None):
            continue
        hides_later, shift, length = mask_of(m, n, causal, window, ahead)
        at, j = torch.arange(m)[:, None] + shift, torch.arange(n)[None]
        found = torch.ones(m, n, dtype=torch.bool)
        found &= (j <= at) if hides_later else True
        found &= (j > at - length) if length else True
        wanted = attention.visible(m, n, causal, window, ahead, torch.device("cpu"))
        assert torch.equal(found, wanted), (m, n, causal, window, ahead)


def test_gradients_end_where_the_window_ends():
    q, k, v = (torch.randn(1, 1, 12, 16, dtype=torch.float64).float().requires_grad_() for _ in range(3))
    for backend in BACKENDS:
        y = kx.attention(q, k, v, window=2, ahead=1, backend=backend)
        (found,) = torch.autograd.grad(y[0, 0, 5].sum(), v)
        assert found[0, 0].abs().sum(-1).nonzero().flatten().tolist() == [4, 5, 6]
