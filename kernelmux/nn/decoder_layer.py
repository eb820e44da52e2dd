"""A layer of a decoder built like Llama's: its sums go into the norms behind them, and into those norms' gradients.

The norm after attention takes the sum before it along (`add_rms_norm`). The first norm of a layer has no sum before it, but
its input goes past the layer as well, so the gradient of the one is added where that of the other is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

import kernelmux as kx
from kernelmux.nn import templates
from kernelmux.nn.decorators import plain
from kernelmux.nn.fallback import misfit
from kernelmux.nn.llama import LlamaRMSNorm, _eps
from kernelmux.nn.module import Ours
from kernelmux.nn.watched import watched
from kernelmux.registry.call.bound_call import unusual
from kernelmux.registry.choice import precedence

# What a layer hands to its attention where it is not given it.
DEFAULTS: Mapping[str, Any] = {
    "attention_mask": None,
    "position_ids": None,
    "past_key_values": None,
    "use_cache": False,
    "position_embeddings": None,
}
NORMS = ("input_layernorm", "post_attention_layernorm")


def is_layer(module: Any) -> bool:
    """Whether a module has the forward of a layer with two norms and two sums, and nothing else between its parts."""
    forward: Any = type(module).forward
    while _checkpoints(forward):
        forward = forward.__wrapped__
    return templates.known(plain(forward), templates.DECODER_LAYER)


def _checkpoints(forward: Any) -> bool:
    """Whether it is what transformers puts around the forward of a layer, and around that of a class derived from it."""
    return hasattr(forward, "__wrapped__") and forward.__globals__.get("__name__") == "transformers.modeling_layers"


def free(norm: Any) -> bool:
    """Whether a norm is ours, and its sums may be made elsewhere."""
    return isinstance(norm, LlamaRMSNorm) and not watched(cast(Any, norm))


class DecoderLayer(Ours):
    """input_layernorm, self_attn, post_attention_layernorm and mlp."""

    op = "add_rms_norm"

    def forward(self, hidden_states: torch.Tensor, *rest: Any, **named: Any) -> Any:
        module: Any = self
        first, second = module.input_layernorm, module.post_attention_layernorm
        if rest or not (free(first) and free(second)) or misfit(hidden_states, first.weight):
            parent: Any = super()
            return parent.forward(hidden_states, *rest, **named)
        y, x = beside(hidden_states, first)
        attended, _ = module.self_attn(hidden_states=y, **{**DEFAULTS, **named})
        if attended.shape != x.shape or misfit(attended, second.weight) or attended.dtype != x.dtype:
            total = x + attended
            return total + module.mlp(second(total))
        y, total = kx.add_rms_norm(attended, x, second.weight, _eps(second))
        return total + module.mlp(y)


def beside(x: torch.Tensor, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised rows of x, and x, whose two gradients become one in a single kernel."""
    if not torch.is_grad_enabled() or not x.requires_grad or torch.compiler.is_compiling() or unusual((x,)):
        return norm(x), x
    found: tuple[torch.Tensor, torch.Tensor] = Beside.apply(x, norm.weight, _eps(norm))  # type: ignore[no-untyped-call]
    return found


class Beside(torch.autograd.Function):
    """rms_norm of x, and x itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.request = eps, precedence.requested("rms_norm", None)
        ctx.set_materialize_grads(False)
        return kx.rms_norm(x, weight, eps), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        (x, weight), (g, past), request = ctx.saved_tensors, grads, ctx.request
        if g is None:
            return past, None, None
        if torch.is_grad_enabled():  # a derivative of this may follow
            wanted = [t for t in (x, weight) if t.requires_grad]
            y = kx.rms_norm(x, weight, ctx.eps, backend=request)
            found, *others = torch.autograd.grad(y, wanted, g, create_graph=True)
            return (found if past is None else found + past), *(others or (None,)), None
        if past is None:
            return *kx.rms_norm_backward(g, x, weight, ctx.eps, backend=request), None
        return *kx.add_rms_norm_backward(g, past, x, weight, ctx.eps, backend=request), None
