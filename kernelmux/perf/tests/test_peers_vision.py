"""The gradients of convolution and pooling in torch are those of the specs: on the CPU, where torch has them too."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from kernelmux.perf import peers
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.timing import inputs
from kernelmux.registry import catalog
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.spec import exact_arguments

T = torch.Tensor
pytestmark = pytest.mark.usefixtures("joined")


@pytest.mark.parametrize("variant", ["cudnn", "torch_compile"])
@pytest.mark.parametrize(("order", "taken"), [("", torch.contiguous_format), ("channels-last", torch.channels_last)])
def test_gradients_of_convolution_by_torch_are_those_of_the_specs(variant: str, order: str, taken: Any) -> None:
    along = "stride=2x1 padding=1x0 dilation=1x2"
    for text in (
        f"conv2d_backward_input grad_out=2x5x5x4 weight=5x3x3x3 {along} output_padding=1x0 {order}",
        f"conv2d_backward_weight grad_out=2x5x5x4 x=2x3x10x8 kernel=3x3 {along} {order}",
    ):
        op, _, shapes = text.partition(" ")
        given, wanted = drawn(op, shapes)
        got = uncompiled(registered.variants(peers.NAME, op)[variant])(*given)
        assert torch.allclose(got.double(), wanted, atol=1e-4) and got.is_contiguous(memory_format=taken)
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize("order", ["", "channels-last"])
def test_the_gradient_of_pooling_by_torch_is_that_of_the_spec(order: str) -> None:
    shapes = f"grad_out=2x3x5x6 index=2x3x5x6 size=9x11 kernel=3 stride=2 padding=1 {order}"
    given, wanted = drawn("max_pool2d_backward", shapes)
    for implementation in registered.variants(peers.NAME, "max_pool2d_backward").values():
        assert torch.allclose(uncompiled(implementation)(*given).double(), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("conv2d_backward_input", "grad_out=1x8x4x4 weight=8x8x3x3 padding=1"),
        ("conv2d_backward_weight", "grad_out=1x8x4x4 x=1x8x4x4 kernel=3 padding=1"),
    ],
)
def test_gradients_that_torch_would_round_to_tf32_are_left_out(op: str, shapes: str) -> None:
    spec = catalog.spec(op)
    for dtype, taken in ((torch.float16, True), (torch.float32, False)):
        call = spec.hypothetical(spec.case(shapes), dtype)
        found = registered.variants(peers.NAME, op)
        assert [found[name].reasons(call) == [] for name in ("cudnn", "torch_compile")] == [taken, taken]


def drawn(op: str, shapes: str) -> tuple[tuple[Any, ...], T]:
    """The arguments of a call in fp32 as perf draws them, and what the spec's reference makes of them in fp64."""
    call = inputs.one(Row(op, shapes, "fp32", peers.NAME, ""), "cpu")
    wanted: T = call.spec.reference(*exact_arguments(call))
    return tuple(call.arguments.values()), wanted


def uncompiled(implementation: Implementation) -> Any:
    """The function itself, without torch.compile."""
    return inspect.unwrap(implementation.fn)
