"""Convolutions of images without pixels: with padding there are results; rungs that copy boxes take no such call."""

from __future__ import annotations

import pytest
import torch

import kernelmux
from kernelmux.registry.backend import lookup as registered

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]
pytestmark = pytest.mark.filterwarnings("ignore:.*runs its GPU kernels on the emulator")


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("shape", [(1, 16, 0, 3), (2, 64, 3, 0)])
def test_images_without_pixels_give_the_bias(shape: tuple[int, ...], backend: str) -> None:
    x, bias = torch.empty(shape, dtype=torch.float16), torch.arange(8).half()
    weight = torch.randn(8, shape[1], 3, 3).half().requires_grad_()
    y = kernelmux.conv2d(x, weight, bias, padding=2, backend=backend)
    y.sum().backward()
    assert y.numel() and torch.equal(y, bias.view(1, 8, 1, 1).expand_as(y))
    assert weight.grad is not None and not weight.grad.any()
