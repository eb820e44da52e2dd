"""layer_norm, broken."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("layer_norm")


# basics: Layer normalisation, broken.

Maybe = torch.Tensor | None


@mutant("nothing is wrong with it", family="basics")
def sound(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float) -> torch.Tensor:
    z = x.double()
    c = z - z.mean(-1, keepdim=True)
    return _scaled(c / torch.sqrt((c * c).mean(-1, keepdim=True) + eps), x, weight, bias)


@mutant("the variance is the mean square less the square of the mean", family="basics", caught_by="accuracy")
def one_pass(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float) -> torch.Tensor:
    z = x.float()
    mean = z.mean(-1, keepdim=True)
    variance = ((z * z).mean(-1, keepdim=True) - mean * mean).clamp(min=0)
    return _scaled((z - mean) * torch.rsqrt(variance + eps), x, weight, bias)


@mutant("divides the variance by one element less", family="basics", caught_by="accuracy")
def unbiased(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float) -> torch.Tensor:
    z = x.double()
    variance = z.var(-1, correction=min(1, z.shape[-1] - 1), keepdim=True)
    return _scaled((z - z.mean(-1, keepdim=True)) / torch.sqrt(variance + eps), x, weight, bias)


@mutant("reads the weight where there is no bias", family="basics", caught_by="shapes")
def weight_as_bias(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float) -> torch.Tensor:
    return sound(x, weight, weight if bias is None else bias, eps)


def _scaled(h: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: Maybe) -> torch.Tensor:
    y = h * weight if bias is None else h * weight + bias
    return y.to(x.dtype).contiguous()


# edges: layer_norm in Triton, whose variance counts the padding.


@mutant(
    "the padding of the last block takes part in the variance",
    family="edges",
    caught_by="accuracy",
    requires=(_triton.IN_A_BLOCK,),
)
def padded(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    y = _triton.rows(_kernels.layer_norm, x, -1, weight.contiguous(), eps)
    return y if bias is None else (y.float() + bias.float()).to(x.dtype)
