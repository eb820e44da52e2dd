"""Cross entropy and its gradient by torch: a softmax, less the target."""

import torch

from kernelmux.backends.torch_ref._targets import safe_targets
from kernelmux.backends.torch_ref.cross_entropy import cross_entropy
from kernelmux.backends.torch_ref.cross_entropy_backward import cross_entropy_backward
from kernelmux.registry.backend import Implementation


def cross_entropy_with_gradient(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    safe_targets("cross_entropy_with_gradient", logits, target, ignore_index)  # for an error of its own
    options = (ignore_index, label_smoothing, reduction)
    loss, lse = cross_entropy(logits, target, *options)
    return loss, cross_entropy_backward(torch.ones_like(loss), logits, target, lse, *options).detach()


VARIANTS = {"eager": Implementation(fn=cross_entropy_with_gradient, idea="the loss, then its gradient, in fp32")}
