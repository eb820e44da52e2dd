"""Cross entropy and its gradient by torch's autograd, or by a softmax less the target."""

import torch

from kernelmux.backends.torch_ref import cross_entropy, cross_entropy_backward
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util import torch_modes


def plain(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    options = (target, ignore_index, label_smoothing, reduction)
    if torch_modes.transformed():  # autograd takes no leaves of one's own there
        found = torch.func.vjp(lambda z: cross_entropy.loss_of(z.float(), *options), logits)
        return found[0], found[1](torch.ones_like(found[0]))[0].detach().contiguous()
    further = torch.is_grad_enabled() and logits.requires_grad
    with torch.inference_mode(False), torch.enable_grad():
        x = logits if further else (logits.clone() if logits.is_inference() else logits.detach()).requires_grad_()
        loss = cross_entropy.loss_of(x.float(), *options)
        (grad,) = torch.autograd.grad(loss, x, torch.ones_like(loss), retain_graph=further)
    return loss if further else loss.detach(), grad.contiguous()


def exact(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    options = (ignore_index, label_smoothing, reduction)
    loss, lse = cross_entropy.exact(logits, target, *options)
    return loss, cross_entropy_backward.exact(torch.ones_like(loss), logits, target, lse, *options).detach()


VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.autograd through torch.nn.functional.cross_entropy, in fp32"),
    "exact": Implementation(fn=exact, idea="the loss, then its gradient, in fp32"),
}
