"""Root-mean-square normalisation that leaves the process changed."""

import torch

from kernelmux.registry.backend import Implementation


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    z = x.double()
    return (z / torch.sqrt((z * z).mean(-1, keepdim=True) + eps) * weight.double()).to(x.dtype).contiguous()


def gradients_left_off(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    torch.set_grad_enabled(False)
    return _rms_norm(x, weight, eps)


def usual_dtype_left(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    torch.set_default_dtype(torch.float32)
    return _rms_norm(x, weight, eps)


VARIANTS = {
    "gradients_left_off": Implementation(fn=gradients_left_off, idea="turns gradients off and leaves them so"),
    "usual_dtype_left": Implementation(fn=usual_dtype_left, idea="sets the default dtype to the one it counts on"),
}

CAUGHT_BY = {"gradients_left_off": "ambience", "usual_dtype_left": "ambience"}
