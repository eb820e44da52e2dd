"""Gradients of swiglu whose two outputs, or three inputs, are mistaken for one another."""

import torch
import triton
import triton.language as tl

from kernelmux.conformance.mutants._sound import sound
from kernelmux.conformance.mutants._triton import BLOCK, launch
from kernelmux.registry.backend import Implementation

Pair = tuple[torch.Tensor, torch.Tensor]


@triton.jit
def _gradients_kernel(grad_a, grad_b, grad_out, a, b, columns, pitch, n, BLOCK: tl.constexpr):
    """Rows of `columns` elements that lie `pitch` apart in a, and in b as well."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = i // columns * pitch + i % columns
    g = tl.load(grad_out + i, mask=i < n).to(tl.float32)
    u = tl.load(a + place, mask=i < n).to(tl.float32)
    v = tl.load(b + place, mask=i < n).to(tl.float32)
    t = tl.exp(-tl.abs(u))
    s = tl.where(u < 0, t, 1.0) / (1 + t)
    u = tl.minimum(tl.maximum(u, -1000.0), 1000.0)
    tl.store(grad_a + i, g * v * (s + u * t / ((1 + t) * (1 + t))), mask=i < n)
    tl.store(grad_b + i, g * (tl.maximum(u, -1000.0) * s), mask=i < n)


def pitch_of_first(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Pair:
    """Halves of one tensor have one pitch; a alone is asked for it."""
    rows_of_matrix = a.dim() == 2 and a.stride(1) == 1 and b.stride(1) == 1 and a.stride(0) >= a.shape[1] > 1
    if not rows_of_matrix or not a.numel():
        grads: Pair = sound("swiglu_backward", grad_out, a, b)
        return grads
    grad_out = grad_out.contiguous()
    if b.stride(0) < a.stride(0):
        b = b.new_zeros(a.shape[0] * a.stride(0))  # memory that may be read
    grad_a, grad_b = torch.empty_like(grad_out), torch.empty_like(grad_out)
    sizes = (a.shape[1], a.stride(0), a.numel())
    launch(_gradients_kernel, -(-a.numel() // BLOCK), grad_a, grad_b, grad_out, a, b, *sizes, BLOCK=BLOCK)
    return grad_a, grad_b


def exchanged(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Pair:
    grad_a, grad_b = sound("swiglu_backward", grad_out, a, b)
    return grad_b, grad_a


def rounded_between(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Pair:
    """silu(a) is rounded to the dtype before the product, as two operators in a row would."""
    grad_a, _ = sound("swiglu_backward", grad_out, a, b)
    return grad_a, sound("silu", a) * grad_out.contiguous()


VARIANTS = {
    "pitch_of_first": Implementation(fn=pitch_of_first, idea="b is read with the pitch of a"),
    "exchanged": Implementation(fn=exchanged, idea="grad_a and grad_b in the other order"),
    "rounded_between": Implementation(fn=rounded_between, idea="silu(a) is rounded before the product"),
}

CAUGHT_BY = {"pitch_of_first": "layout", "exchanged": "accuracy", "rounded_between": "accuracy"}
