"""cross_entropy_with_gradient on CUDA: rows in pieces, of which some wait for words of others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernelmux import emulator
from kernelmux.backends.cuda import cross_entropy_with_gradient as losses
from kernelmux.emulator import nvrtc

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*on the emulator"),
    pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable())),
]


@pytest.mark.parametrize(("n", "skipped"), [(9000, 0), (9000, 3), (9001, 0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_of_rows_long_past(n: int, skipped: int, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One multiprocessor: a row lies between what is looked at and what is written, so that most of the grid does both."""
    monkeypatch.setattr(losses, "multiprocessors", lambda x: 1)
    monkeypatch.setattr(losses, "_BLOCKS", 1)
    monkeypatch.setattr(losses, "_STAYING", range(1))  # rows of more than a byte are in pieces
    rng = torch.Generator().manual_seed(n)
    x = torch.randn(12 * n + skipped, generator=rng).bfloat16()[skipped:].view(12, n)
    target = torch.randint(0, n, (12,), generator=rng)
    target[1] = -100
    with emulator.checks("full"):
        loss, grad = losses.cross_entropy_with_gradient("staying", x, target, -100, smoothing, "mean")
    exact = x.double().requires_grad_()
    want = F.cross_entropy(exact, target, label_smoothing=smoothing)
    want.backward()
    assert exact.grad is not None
    assert torch.allclose(loss.double(), want, rtol=1e-6)
    assert torch.allclose(grad.double(), exact.grad, rtol=2**-8, atol=1e-9)
