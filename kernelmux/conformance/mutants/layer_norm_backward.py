"""layer_norm_backward, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("layer_norm_backward")


# basics: Gradients of layer normalisation, broken.

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _gradients(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, level: bool) -> Three:
    g, z = grad_out.double(), x.double()
    c = z - z.mean(-1, keepdim=True)
    r = 1 / torch.sqrt((c * c).mean(-1, keepdim=True) + eps)
    h, gw = c * r, g * weight
    inner = gw - h * (gw * h).mean(-1, keepdim=True)
    grad_x = r * (inner - gw.mean(-1, keepdim=True) if level else inner)
    rows = tuple(range(x.dim() - 1))
    sums = [t.sum(rows) if rows else t for t in (g * h, g)]
    return grad_x.to(x.dtype).contiguous(), sums[0].to(x.dtype).contiguous(), sums[1].to(x.dtype).contiguous()


@mutant("nothing is wrong with it", family="basics")
def sound(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Three:
    return _gradients(grad_out, x, weight, eps, level=True)


@mutant("forgets the gradient through the mean", family="basics", caught_by="accuracy")
def as_rms_norm(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Three:
    return _gradients(grad_out, x, weight, eps, level=False)


@mutant("multiplies the gradient of the bias by the weight", family="basics", caught_by="accuracy")
def weighted_bias(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Three:
    grad_x, grad_weight, grad_bias = sound(grad_out, x, weight, eps)
    return grad_x, grad_weight, grad_bias * weight
