"""rms_norm_backward, broken."""

from typing import Any

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("rms_norm_backward")


# shapes: Gradients of rms_norm, broken for many axes and for none.

Pair = tuple[torch.Tensor, torch.Tensor]


@mutant("grad_weight of the last slice, for rank 4 and more", family="shapes", caught_by="shapes")
def last_of_many(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """With more than two axes before the last one, the partial sums of the first are not added up."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    if x.dim() > 3 and x.numel():
        grad_weight = sound("rms_norm_backward", grad_out[-1], x[-1], weight, eps)[1]
    return grad_x, grad_weight


@mutant("grad_weight as it was allocated, where a block has no rows", family="shapes", caught_by="shapes")
def no_rows(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """Without rows no block writes the sums; a matrix is thought of, a block of matrices is not."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    return grad_x, grad_weight.fill_(7) if x.dim() > 2 and not x.numel() else grad_weight


# scalars: Gradients of rms_norm, broken for other eps than the default.

Tensors = tuple[torch.Tensor, torch.Tensor]
USUAL = 1e-6


def _backward(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, eps_weight: float) -> Tensors:
    """The closed form in float64; each gradient with an eps of its own."""
    g, z, w = (t.double() for t in (grad_out, x, weight))
    square = (z * z).mean(-1, keepdim=True)
    r, r_weight = torch.rsqrt(square + eps), torch.rsqrt(square + eps_weight)
    grad_x = r * (g * w - z * r * r * (g * w * z).mean(-1, keepdim=True))
    grad_weight = (g * z * r_weight).reshape(-1, x.shape[-1]).sum(0) if x.shape[-1] else w
    return grad_x.to(x.dtype).contiguous(), grad_weight.to(x.dtype).contiguous()


@mutant("the formula written out: nothing is wrong with it", family="scalars")
def closed_form(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    return _backward(grad_out, x, weight, eps, eps)


@mutant("the argument eps is ignored", family="scalars", caught_by="scalars")
def fixed_eps(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    return _backward(grad_out, x, weight, USUAL, USUAL)


@mutant("the gradient of the weight ignores eps", family="scalars", caught_by="scalars")
def eps_for_x_only(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    return _backward(grad_out, x, weight, eps, USUAL)


# order: Gradients of rms_norm, with sums over the rows that change.


@mutant("rows add to grad_weight as they come", family="order", caught_by="repeatability", arithmetic="fp32_sequential")
def weight_by_atomics(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    from kernelmux.conformance.mutants import _kernels

    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    if not x.numel():
        return grad_x, grad_weight
    n, total = x.shape[-1], torch.zeros(x.shape[-1], device=x.device, dtype=torch.float32)
    g, v = (t.reshape(-1, n).float().contiguous() for t in (grad_out, x))
    factor = torch.rsqrt(v.double().square().mean(-1) + eps).float()
    _triton.launch(_kernels.rms_norm_backward_weight, len(v), total, g, v, factor, n, BLOCK=128)
    return grad_x, grad_weight.copy_(total)


mutant(
    "rows add to grad_weight as they come, and this is declared",
    family="order",
    name="declared",
    arithmetic="fp32_sequential",
    deterministic=False,
)(weight_by_atomics)


# claims: Gradients of rms_norm that are not what a caller is promised.


@mutant("returns a list of its outputs", family="claims", caught_by="accuracy")
def as_list(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Any:
    g, z, w = (t.double() for t in (grad_out, x, weight))
    r = torch.rsqrt((z * z).mean(-1, keepdim=True) + eps)
    grad_x = r * (g * w - z * r * r * (g * w * z).mean(-1, keepdim=True))
    grad_weight = (g * z * r).reshape(-1, x.shape[-1]).sum(0) if x.shape[-1] else w
    return [grad_x.to(x.dtype).contiguous(), grad_weight.to(x.dtype).contiguous()]


# extent: Gradients of rms_norm, in pieces of rows of which the last is forgotten.

PIECE = 65535


@mutant("rows beyond 65,535 are forgotten in grad_x", family="extent", caught_by="extent")
def first_piece(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """More rows than a piece are cut off, though the sum over rows has them all."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    if x.numel() > PIECE * x.shape[-1]:
        grad_x.view(-1, x.shape[-1])[PIECE:] = 0
    return grad_x, grad_weight


# ambience: Gradients of rms_norm that count on a mode of autograd.


@mutant("asks autograd, which inference mode has turned off", family="ambience", caught_by="ambience")
def by_autograd(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    """Works with gradients on or off, and not at all in inference mode."""
    z, w = (t.detach().double().requires_grad_() for t in (x, weight))
    with torch.enable_grad():
        y = z / torch.sqrt((z * z).mean(-1, keepdim=True) + eps) * w
    grads = torch.autograd.grad(y, (z, w), grad_out.double())
    return grads[0].to(x.dtype).contiguous(), grads[1].to(x.dtype).contiguous()


# state: Gradients of rms_norm through a workspace that is kept.

_partial: dict[object, torch.Tensor] = {}


@mutant("fewer rows find partial sums of more rows", family="state", caught_by="state")
def parts_of_before(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """Sixteen partial sums for each length of rows, all of which are added; a call with fewer rows leaves the last ones."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    if not x.numel():
        return grad_x, grad_weight
    g, v = (t.double().reshape(-1, x.shape[-1]) for t in (grad_out, x))
    terms = g * v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    key = ("parts", x.shape[-1], x.device)
    parts = _partial.setdefault(key, torch.zeros(16, x.shape[-1], dtype=torch.float64, device=x.device))
    for row in range(min(len(terms), 16)):
        parts[row] = terms[row::16].sum(0)
    return grad_x, torch.empty_like(weight).copy_(parts.sum(0))


@mutant("threads share the partial sums", family="state", caught_by="state")
def shared_partials(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """What each row gives to grad_weight waits in one workspace for each shape."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    if not x.numel():
        return grad_x, grad_weight
    g, v = (t.double().reshape(-1, x.shape[-1]) for t in (grad_out, x))
    key = (g.shape, x.device)
    partial = _partial.setdefault(key, torch.empty(g.shape, dtype=torch.float64, device=x.device))
    partial.copy_(g * v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps))
    return grad_x, torch.empty_like(weight).copy_(partial.sum(0))


@mutant("grad_weight is a row of a kept buffer", family="state", caught_by="state")
def kept_weight_gradient(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    """grad_weight alternates between the rows of a buffer."""
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    key = ("rows", weight.shape, weight.dtype, weight.device)
    rows = _partial.setdefault(key, torch.empty(4, *weight.shape, dtype=weight.dtype, device=weight.device))
    rows.copy_(rows.roll(1, 0))
    return grad_x, rows[0].copy_(grad_weight)
