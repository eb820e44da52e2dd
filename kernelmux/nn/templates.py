"""Forwards as transformers writes them, to recognise a module by its code. None of them runs here.

A module whose forward compiles to the same code computes the same; one that differs in anything is left alone.
"""

from __future__ import annotations

import dis
import inspect
import math
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

import torch

# A compiler takes the attribute of a name that a module imports another way: transformers imports this one.
from torch import nn as ALL_ATTENTION_FUNCTIONS

Code = tuple[tuple[str, Any], ...]


def code(function: Callable[..., Any]) -> Code | None:
    """The instructions of a function, with constants and names in place of their numbers, which a docstring shifts.

    None for what is not written in Python. An attribute `eps` counts as `variance_epsilon`.
    """
    found = getattr(function, "__code__", None)
    if not isinstance(found, CodeType):
        return None
    return tuple((step.opname, _operand(step)) for step in dis.get_instructions(found))


def _operand(step: dis.Instruction) -> Any:
    if step.opcode in dis.hasconst or step.opcode in dis.hasname:
        return "variance_epsilon" if step.argval == "eps" else step.argval
    return step.arg


def known(function: Callable[..., Any], templates: Iterable[Callable[..., Any]]) -> bool:
    """Whether the function has the code of one of the templates, and no decorator around it."""
    found = code(function)
    return inspect.unwrap(function) is function and found is not None and found in map(code, templates)


def _weight_after_rounding(self, hidden_states):  # type: ignore[no-untyped-def]
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
    return self.weight * hidden_states.to(input_dtype)


def _weight_before_rounding(self, hidden_states):  # type: ignore[no-untyped-def]
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
    return (self.weight * hidden_states).to(input_dtype)


def _one_more(self, x):  # type: ignore[no-untyped-def]
    output = self._norm(x.float())
    output = output * (1.0 + self.weight.float())
    return output.type_as(x)


def _norm(self, x):  # type: ignore[no-untyped-def]
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def _conv1d(self, x):  # type: ignore[no-untyped-def]
    size_out = x.size()[:-1] + (self.nf,)  # noqa: RUF005
    x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
    x = x.view(size_out)
    return x


def _acts(self, input):  # type: ignore[no-untyped-def]
    return self.act(input)


def _new_gelu(self, input):  # type: ignore[no-untyped-def]
    return 0.5 * input * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (input + 0.044715 * torch.pow(input, 3.0))))


def _gated(self, x):  # type: ignore[no-untyped-def]
    down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
    return down_proj


def _gated_at_once(self, x):  # type: ignore[no-untyped-def]
    return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def _rotary(q, k, cos, sin, unsqueeze_dim=1):  # type: ignore[no-untyped-def]
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


def rotate_half(x: Any) -> Any:
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


apply_rotary_pos_emb: Any = None  # names that a forward reads, whatever they stand for
eager_attention_forward: Any = None


def _attention(self, x, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):  # type: ignore[no-untyped-def]
    input_shape = x.shape[:-1]
    hidden_shape = (*input_shape, -1, self.head_dim)
    q = self.q_proj(x).view(hidden_shape).transpose(1, 2)
    k = self.k_proj(x).view(hidden_shape).transpose(1, 2)
    v = self.v_proj(x).view(hidden_shape).transpose(1, 2)
    cos, sin = position_embeddings
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    if past_key_values is not None:
        k, v = past_key_values.update(k, v, self.layer_idx)
    attention_interface: Any = ALL_ATTENTION_FUNCTIONS.get_interface(  # type: ignore[attr-defined]
        self.config._attn_implementation, eager_attention_forward
    )
    y, attn_weights = attention_interface(
        self,
        q,
        k,
        v,
        attention_mask,
        dropout=0.0 if not self.training else self.attention_dropout,
        scaling=self.scaling,
        **kwargs,
    )
    y = y.reshape(*input_shape, -1).contiguous()
    y = self.o_proj(y)
    return y, attn_weights


def _layer(self, x, mask=None, at=None, past=None, use_cache=None, angles=None, **kwargs):  # type: ignore[no-untyped-def]
    residual = x
    x = self.input_layernorm(x)
    x, _ = self.self_attn(
        hidden_states=x,
        attention_mask=mask,
        position_ids=at,
        past_key_values=past,
        use_cache=use_cache,
        position_embeddings=angles,
        **kwargs,
    )
    x = residual + x
    residual = x
    x = self.post_attention_layernorm(x)
    x = self.mlp(x)
    x = residual + x
    return x


ACTS = (_acts,)  # a module around a function
ATTENTION = (_attention,)
CONV1D = (_conv1d,)
GEMMA_NORM = (_one_more,)
GEMMA_NORM_INNER = (_norm,)
NEW_GELU = (_new_gelu,)
RMS_NORM = (_weight_after_rounding, _weight_before_rounding)
DECODER_LAYER = (_layer,)
GATED_MLP = (_gated, _gated_at_once)
ROTARY = (_rotary,)
ROTATE_HALF = (rotate_half,)
