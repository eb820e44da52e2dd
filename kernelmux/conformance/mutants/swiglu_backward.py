"""swiglu_backward, broken."""

import torch

from kernelmux.conformance.mutants._memory import BufferRing
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound
from kernelmux.conformance.mutants._triton import BLOCK, launch

mutant = Mutants("swiglu_backward")


# basics: Gradients of swiglu whose two outputs, or three inputs, are mistaken for one another.

Pair = tuple[torch.Tensor, torch.Tensor]


@mutant("b is read with the pitch of a", family="basics", caught_by="layout")
def pitch_of_first(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Pair:
    """Halves of one tensor have one pitch; a alone is asked for it."""
    from kernelmux.conformance.mutants import _kernels

    rows_of_matrix = a.dim() == 2 and a.stride(1) == 1 and b.stride(1) == 1 and a.stride(0) >= a.shape[1] > 1
    if not rows_of_matrix or not a.numel():
        grads: Pair = sound("swiglu_backward", grad_out, a, b)
        return grads
    grad_out = grad_out.contiguous()
    if b.stride(0) < a.stride(0):
        b = b.new_zeros(a.shape[0] * a.stride(0))  # memory that may be read
    grad_a, grad_b = torch.empty_like(grad_out), torch.empty_like(grad_out)
    sizes = (a.shape[1], a.stride(0), a.numel())
    launch(
        _kernels.swiglu_backward_gradients, -(-a.numel() // BLOCK), grad_a, grad_b, grad_out, a, b, *sizes, BLOCK=BLOCK
    )
    return grad_a, grad_b


@mutant("grad_a and grad_b in the other order", family="basics", caught_by="accuracy")
def exchanged(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Pair:
    grad_a, grad_b = sound("swiglu_backward", grad_out, a, b)
    return grad_b, grad_a


@mutant("silu(a) is rounded before the product", family="basics", caught_by="accuracy")
def rounded_between(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Pair:
    """silu(a) is rounded to the dtype before the product, as two operators in a row would."""
    grad_a, _ = sound("swiglu_backward", grad_out, a, b)
    return grad_a, sound("silu", a) * grad_out.contiguous()


# state: Gradients of swiglu of which one is kept.

TWO = BufferRing(2)


@mutant("grad_b alternates between two buffers", family="state", caught_by="state")
def second_in_a_ring(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each first output is new, the second one of two buffers in turn."""
    grad_a, grad_b = sound("swiglu_backward", grad_out, a, b)
    return grad_a, TWO.next(grad_b).copy_(grad_b)


@mutant("one memory for both outputs where a and b have one", family="state", caught_by="layout")
def halves_of_one(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Pair:
    grads: Pair = sound("swiglu_backward", grad_out, a, b)
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return grads
    both = torch.stack(grads)
    return both[0], both[1]
