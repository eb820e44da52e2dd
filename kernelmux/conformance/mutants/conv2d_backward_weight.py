"""conv2d_backward_weight, broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.conditions import AtMost
from kernelmux.registry.ops.conv2d_backward_weight import reference
from kernelmux.registry.spec.sliding_windows import Pair
from kernelmux.registry.util.memory_format import format_of

mutant = Mutants("conv2d_backward_weight")


# basics: Gradient of a convolution with respect to its kernels, broken.

SHARES = 8  # of the places
STEP = 32  # places of a step


def sums(grad_out: torch.Tensor, x: torch.Tensor, *along: Pair) -> torch.Tensor:
    return reference(grad_out.double(), x.double(), *along)


def ended(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sums in the dtype and the order of x."""
    return y.to(x.dtype).contiguous(memory_format=format_of(x))


def _named(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """With the arguments by the names of the spec."""

    def conv2d_backward_weight(
        grad_out: torch.Tensor,
        x: torch.Tensor,
        kernel: Pair,
        stride: Pair,
        padding: Pair,
        dilation: Pair,
    ) -> torch.Tensor:
        return fn(grad_out, x, kernel, stride, padding, dilation)

    conv2d_backward_weight.__name__ = fn.__name__
    return conv2d_backward_weight


@mutant("sums the wrong window", family="basics", caught_by="accuracy")
@_named
def next_window(grad_out: torch.Tensor, x: torch.Tensor, *along: Pair) -> torch.Tensor:
    """Each place meets the window one column further on."""
    return ended(sums(grad_out, x.roll(-1, 3), *along), x)


@mutant("leaves out the last image", family="basics", caught_by="accuracy")
@_named
def last_image_dropped(grad_out: torch.Tensor, x: torch.Tensor, *along: Pair) -> torch.Tensor:
    kept = max(len(x) - 1, min(len(x), 1))
    return ended(sums(grad_out[:kept], x[:kept], *along), x)


@mutant("leaves out places beyond the last whole step", family="basics", caught_by="accuracy")
@_named
def incomplete_step(grad_out: torch.Tensor, x: torch.Tensor, *along: Pair) -> torch.Tensor:
    """Places beyond the last whole step, where there is one, are left out."""
    n, o, p, q = grad_out.shape
    flat = grad_out.permute(0, 2, 3, 1).reshape(-1, o).clone()
    if len(flat) > STEP:
        flat[len(flat) // STEP * STEP :] = 0
    return ended(sums(flat.view(n, p, q, o).permute(0, 3, 1, 2), x, *along), x)


@mutant("adds shares in 16 bits", family="basics", caught_by="accuracy")
@_named
def in_16_bits(grad_out: torch.Tensor, x: torch.Tensor, *along: Pair) -> torch.Tensor:
    """Sums of the shares of the places are added in the dtype of the result; fp32 in bf16."""
    low = torch.bfloat16 if x.dtype == torch.float32 else x.dtype
    total = torch.zeros_like(sums(grad_out, x, *along), dtype=low)
    for share in range(SHARES):
        part = torch.zeros_like(grad_out)
        part[:, :, share::SHARES] = grad_out[:, :, share::SHARES]
        total = total + sums(part, x, *along).to(low)
    return ended(total, x)


@mutant("takes the stride for the dilation", family="basics", caught_by="accuracy")
@_named
def steps_swapped(
    grad_out: torch.Tensor,
    x: torch.Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> torch.Tensor:
    """Stride and dilation in each other's place."""
    images = torch.nn.functional.pad(x, (0, stride[1] * kernel[1], 0, stride[0] * kernel[0]))
    far = max(0, dilation[0] * grad_out.shape[2]), max(0, dilation[1] * grad_out.shape[3])
    images = torch.nn.functional.pad(images, (0, far[1], 0, far[0]))
    return ended(sums(grad_out, images, kernel, dilation, padding, stride), x)


# order: Gradient of kernels whose sum over places is divided among blocks.

SOURCE = Path(__file__).with_name("conv2d_backward_weight.cu")


@mutant(
    "parts of the sum are added as they come",
    family="order",
    caught_by="repeatability",
    arithmetic="fp32_sequential",
    requires=(AtMost("K", 2**20),),
)
def atomic_parts(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    (n, o, p, q), c, order = grad_out.shape, x.shape[1], format_of(x)
    grad_out, x = grad_out.contiguous(), x.contiguous()
    total = torch.zeros(o, c, *kernel, device=x.device, dtype=torch.float32)
    if grad_out.numel() and x.numel():
        sizes = [*x.shape, o, *kernel, p, q, *stride, *padding, *dilation]
        there = torch.tensor(sizes, dtype=torch.int32, device=x.device)
        grid = (-(-total.numel() // 64), -(-n * p * q // 16))
        launch(SOURCE, "atomic_parts", grid, 64, (grad_out, x, total, there), x.dtype)
    return total.to(x.dtype).contiguous(memory_format=order)


# state: Gradient of the weight of a convolution through a workspace that is kept.

_sums: dict[object, torch.Tensor] = {}


@mutant("no images: the sums of the last call", family="state", caught_by="state")
def sums_of_before(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    """Sums are kept for each shape of the weight; without images no block writes them, but they are cast all the same."""
    found: torch.Tensor = sound("conv2d_backward_weight", grad_out, x, kernel, stride, padding, dilation)
    y, key = found.contiguous(memory_format=format_of(x)), (found.shape, found.device)
    if not len(x):
        return y.copy_(_sums.get(key, y))
    _sums[key] = y.float()
    return y
