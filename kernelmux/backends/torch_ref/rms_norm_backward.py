"""Gradients of RMS norm by torch's autograd."""

import torch

from kernelmux.backends.torch_ref._conditions import MANY_ROWS, few_rows
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util import torch_modes


def plain(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x, grad_weight = rms_norm_gradients(grad_out, x, weight, eps, x.dtype)
    return grad_x.contiguous(), grad_weight.contiguous()


def exact(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.float32 if x.is_cuda and x.numel() > MANY_ROWS * len(weight) else x.dtype
    grad_x, grad_weight = rms_norm_gradients(grad_out, x, weight, eps, dtype)
    return grad_x.to(x.dtype).contiguous(), grad_weight.to(x.dtype).contiguous()


def rms_norm_gradients(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and weight, computed in `dtype` and returned in it."""
    if torch_modes.transformed():  # autograd takes no leaves of one's own there
        norm = torch.nn.functional.rms_norm
        found = torch.func.vjp(lambda x, weight: norm(x, weight.shape, weight, eps), x.to(dtype), weight.to(dtype))
        grad_x, grad_weight = found[1](grad_out.to(dtype))
        return grad_x, grad_weight
    further = torch.is_grad_enabled() and any(t.requires_grad for t in (grad_out, x, weight))
    with torch.inference_mode(False), torch.enable_grad():
        x, weight = _leaf(x.to(dtype), further), _leaf(weight.to(dtype), further)
        y = torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
        grad_x, grad_weight = torch.autograd.grad(y, (x, weight), grad_out.to(dtype), create_graph=further)
    return grad_x, grad_weight


def _leaf(x: torch.Tensor, further: bool) -> torch.Tensor:
    """x as autograd can start from it: itself where its own gradient is wanted, a copy of an inference tensor."""
    if further and x.requires_grad:
        return x
    return (x.clone() if x.is_inference() else x.detach()).requires_grad_()


VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.autograd through rms_norm", requires=(few_rows("x"),)),
    "exact": Implementation(fn=exact, idea="torch.autograd through rms_norm, in fp32 where rows are many"),
}
