"""Layer normalisation, broken."""

import torch

from kernelmux.registry.backend import Implementation

Maybe = torch.Tensor | None


def sound(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float) -> torch.Tensor:
    z = x.double()
    c = z - z.mean(-1, keepdim=True)
    return _scaled(c / torch.sqrt((c * c).mean(-1, keepdim=True) + eps), x, weight, bias)


def one_pass(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float) -> torch.Tensor:
    z = x.float()
    mean = z.mean(-1, keepdim=True)
    variance = ((z * z).mean(-1, keepdim=True) - mean * mean).clamp(min=0)
    return _scaled((z - mean) * torch.rsqrt(variance + eps), x, weight, bias)


def unbiased(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float) -> torch.Tensor:
    z = x.double()
    variance = z.var(-1, correction=min(1, z.shape[-1] - 1), keepdim=True)
    return _scaled((z - z.mean(-1, keepdim=True)) / torch.sqrt(variance + eps), x, weight, bias)


def weight_as_bias(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, eps: float) -> torch.Tensor:
    return sound(x, weight, weight if bias is None else bias, eps)


def _scaled(h: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: Maybe) -> torch.Tensor:
    y = h * weight if bias is None else h * weight + bias
    return y.to(x.dtype).contiguous()


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it"),
    "one_pass": Implementation(fn=one_pass, idea="the variance is the mean square less the square of the mean"),
    "unbiased": Implementation(fn=unbiased, idea="divides the variance by one element less"),
    "weight_as_bias": Implementation(fn=weight_as_bias, idea="reads the weight where there is no bias"),
}

CAUGHT_BY = {"one_pass": "accuracy", "unbiased": "accuracy", "weight_as_bias": "shapes"}
