"""Each module under torch.compile(dynamic=True), in one graph for all sizes, and under torch.export for every batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import kernelmux as kx
from kernelmux import nn


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return nn.attention(q, k, k, is_causal=True, enable_gqa=True)


class Rotated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.angle = nn.RotaryEmbedding(8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.angle(x, x)[0]


class Images(torch.nn.Module):
    """As a ResNet begins: places are left over at the edge of some images, and at that of others none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 5, 3, stride=2)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.pool(self.first(x)))


def rows(*axes: int) -> Callable[[int, int], tuple[torch.Tensor, ...]]:
    """Inputs [b, n, ...], of which the last axes stay."""
    return lambda b, n: (torch.randn(b, n, *axes),)


MODULES: dict[str, tuple[Callable[[], Any], Callable[[int, int], tuple[torch.Tensor, ...]]]] = {
    "Linear": (lambda: nn.Linear(24, 10), rows(24)),
    "SwiGLU": (lambda: nn.SwiGLU(8, 24), rows(8)),
    "RMSNorm": (lambda: nn.RMSNorm((4, 6)), rows(4, 6)),
    "LayerNorm": (lambda: nn.LayerNorm(24), rows(24)),
    "GELU": (nn.GELU, rows()),
    "Softmax": (lambda: nn.Softmax(-1), rows()),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), rows(7)),
    "RotaryEmbedding": (Rotated, rows(6, 8)),
    "attention": (Attention, lambda b, n: (torch.randn(b, 6, n, 8), torch.randn(b, 3, n, 8))),
    "CrossEntropyLoss": (
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda b, n: (torch.randn(b, 11, n), torch.randint(0, 11, (b, n))),
    ),
    "Conv2d and MaxPool2d": (Images, lambda b, n: (torch.randn(b, 3, 2 * n + 18, 60 - 3 * n),)),
}


def backward(y: torch.Tensor, module: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(y.square().sum(), [*inputs[:1], *module.parameters()])


def near(got: Any, want: Any) -> None:
    """torch_ref called as a function has torch's gradients, whose sums go in another order."""
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_one_graph_for_all_sizes_with_its_backward(name):
    torch.manual_seed(0)
    make, draw = MODULES[name]
    module = make()
    torch._dynamo.reset()
    compiled = torch.compile(module, dynamic=True, fullgraph=True, backend="aot_eager")
    with kx.use("torch_ref"), torch._dynamo.config.patch(error_on_recompile=True):
        for b, n in ((2, 5), (5, 4), (4, 9), (3, 2)):
            inputs = draw(b, n)
            inputs[0].requires_grad_()
            got, want = compiled(*inputs), module(*inputs)
            near(got, want)
            near(backward(got, module, inputs), backward(want, module, inputs))


@pytest.mark.parametrize("name", MODULES)
def test_an_exported_module_takes_every_batch(name):
    torch.manual_seed(0)
    make, draw = MODULES[name]
    module, inputs = make(), draw(4, 6)
    with kx.use("torch_ref"):
        program = torch.export.export(module, inputs, dynamic_shapes=tuple({0: Dim("batch")} for _ in inputs)).module()
        for b in (2, 7):
            other = draw(b, 6)
            near(program(*other), module(*other))
