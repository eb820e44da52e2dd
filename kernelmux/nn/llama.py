"""The layers of Llama and its like in transformers, on our operators. This module does without transformers itself.

In attention two names that its forward looks up in its module are replaced for this one instance: the function that turns
queries and keys, and the table of attention functions.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, cast

import torch

import kernelmux as kx
from kernelmux.nn import gpt, templates
from kernelmux.nn.attention import attention, in_order
from kernelmux.nn.classes import derived
from kernelmux.nn.decoder import is_stand_in
from kernelmux.nn.decorators import around, plain
from kernelmux.nn.fallback import misfit, tell, unsuited
from kernelmux.nn.heads import heads, together
from kernelmux.nn.module import Ours, outside, unfit

ROTARY, TABLE = "apply_rotary_pos_emb", "ALL_ATTENTION_FUNCTIONS"
# What "sdpa" ignores as well; a window that matters comes as a mask.
HARMLESS = {
    "position_ids",
    "use_cache",
    "cache_position",
    "num_items_in_batch",
    "output_attentions",
    "output_hidden_states",
    "sliding_window",
}


class LlamaRMSNorm(Ours):
    """weight [N] and variance_epsilon: rms_norm, which rounds once where transformers rounds before the weight as well."""

    op = "rms_norm"

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        if not templates.known(type(module).forward, templates.RMS_NORM):
            return "its forward is none of those that are known to be rms_norm"
        return unfit(cls.op, weight=module.weight) or outside(cls.op, "eps", _eps(module))

    def declined(self, hidden_states: torch.Tensor) -> str | None:
        return misfit(hidden_states, cast(Any, self).weight)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        module: Any = self
        return kx.rms_norm(hidden_states, module.weight, _eps(module))


def _eps(module: Any) -> float:
    return float(module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps)


class LlamaMLP(Ours):
    """gate_proj, up_proj, down_proj and an activation: one operator between the layers, which stay what they are."""

    op = "swiglu"

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        if not templates.known(type(module).forward, templates.GATED_MLP):
            return f"its forward is none of those that are known to be {cls.op}"
        name = type(module.act_fn).__name__
        if name not in ("SiLU", "SiLUActivation") and gpt.formula(module.act_fn) is None:
            return f"its activation is {name}, expected SiLU or GELU"
        if "forward" in vars(module.act_fn):
            return "the forward of its activation is replaced on the instance, by a library or by hand"
        return unfit(cls.op, **{"gate_proj.weight": module.gate_proj.weight})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module: Any = self
        gate, up = module.gate_proj(x), module.up_proj(x)
        if reason := unsuited(gate, up) or (None if gate.shape == up.shape else "its tensors have two shapes"):
            tell(self.op, reason)
            gated = module.act_fn(gate) * up
        else:
            gated = self.gated(gate, up)
        y: torch.Tensor = module.down_proj(gated)
        return y

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """The operator."""
        return kx.swiglu(gate, up)


class GemmaMLP(LlamaMLP):
    """geglu in the place of swiglu; the formula of gelu belongs to the class."""

    op = "geglu"
    approximate: ClassVar[Any] = "tanh"

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return kx.geglu(gate, up, self.approximate)


class GemmaMLPByErf(GemmaMLP):
    """geglu with the exact gelu."""

    approximate = "none"


GEGLUS: dict[str | None, Any] = {"none": GemmaMLPByErf, "tanh": GemmaMLP}


def rotary_obstacle(module: Any) -> str | None:
    """Why the queries and keys of an attention module cannot be turned by `rope`, or None."""
    names = _globals(module)
    if problem := _forward_obstacle(module, ROTARY):
        return problem
    same = templates.known(names[ROTARY], templates.ROTARY)
    if not same or not templates.known(names.get("rotate_half", print), templates.ROTATE_HALF):
        return f"its {ROTARY} is none of those that are known to be rope"
    if not _halves_agree(names):
        return "its module has no rotary embedding whose angles stand twice in each row"
    return unfit("rope", **{"q_proj.weight": module.q_proj.weight})


def attention_obstacle(module: Any) -> str | None:
    """Why the attention function of a module cannot be ours, or None."""
    if problem := _forward_obstacle(module, TABLE) or _forward_obstacle(module, "get_interface"):
        return problem
    chosen = getattr(module.config, "_attn_implementation", None)
    if chosen != "sdpa":
        return f'its attention implementation is "{chosen}", expected "sdpa", which leaves a causal mask out'
    return unfit("attention", **{"q_proj.weight": module.q_proj.weight})


def _forward_obstacle(module: Any, name: str) -> str | None:
    forward = plain(type(module).forward)
    if inspect.unwrap(forward) is not forward:
        return "its forward is decorated in a way that is not known"
    return None if name in forward.__code__.co_names else f"its forward does not call {name}"


def _globals(module: Any) -> dict[str, Any]:
    found: dict[str, Any] = inspect.unwrap(type(module).forward).__globals__
    return found


def _halves_agree(names: dict[str, Any]) -> bool:
    """Whether the rotary embedding beside an attention class gives each angle twice: cat((freqs, freqs))."""
    rotary: list[Any] = [found for name, found in names.items() if name.endswith("RotaryEmbedding")]
    try:
        texts = [inspect.getsource(inspect.unwrap(found.forward)) for found in rotary]
    except (OSError, TypeError, AttributeError):  # no source to read, or no module
        return False
    return bool(texts) and all(re.search(r"cat\(\(freqs, freqs\), dim=-1\)", text) for text in texts)


@cache
def attention_class(cls: Any, ops: frozenset[str]) -> type:
    """The class of an attention module for the operators, of rope and attention, that it gets."""
    forward: Any = plain(cls.forward)
    names = dict(forward.__globals__)
    names.pop("__name__")  # a compiler would look the names up in that module, and find those that are replaced
    if "rope" in ops:
        names[ROTARY] = functools.partial(rotated, names[ROTARY])
    if "attention" in ops:
        names[TABLE] = AttentionTable(names[TABLE])
    made = types.FunctionType(forward.__code__, names, "forward", forward.__defaults__, forward.__closure__)
    made.__kwdefaults__ = forward.__kwdefaults__
    if templates.known(forward, templates.ATTENTION):
        made = joint(made, names)
    return derived(Ours, cls, (attention_class, (cls, ops)), forward=around(cls.forward, made))


def joint(apart: Callable[..., Any], names: dict[str, Any]) -> Any:
    """The forward of an attention module, with one product for queries, keys and values where that serves.

    apart: the forward that it has otherwise. names: what that looks up in its module.
    """

    def forward(
        self: Any,
        hidden_states: torch.Tensor,
        position_embeddings: Any = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Any:
        if not together(self, hidden_states):
            return apart(self, hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs)
        q, k, v = heads(self, hidden_states, self.head_dim)
        q, k = names[ROTARY](q, k, *position_embeddings)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend = names[TABLE].get_interface(self.config._attn_implementation, names["eager_attention_forward"])
        dropout = self.attention_dropout if self.training else 0.0
        y, weights = attend(self, q, k, v, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs)
        return self.o_proj(y.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights

    vars(forward)["__wrapped__"] = apart
    return forward


def rotated(
    otherwise: Callable[..., Any],
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k [B, H, M, D] turned by angles [B, M, D] or [1, M, D], whose halves are equal."""
    if reason := _unturned(q, k, cos, sin, unsqueeze_dim):
        tell("rope", reason)
        found: tuple[torch.Tensor, torch.Tensor] = otherwise(q, k, cos, sin, unsqueeze_dim)
        return found
    half = cos.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    if cos.shape[0] == 1:
        cos, sin = cos[0], sin[0]
    return kx.rope(q, cos, sin), kx.rope(k, cos, sin)


def _unturned(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int) -> str | None:
    """What there is about a call that `rope` does not do, or None."""
    if unsqueeze_dim != 1:
        return f"its unsqueeze_dim is {unsqueeze_dim}"
    if problem := unsuited(q, cos, sin) or unsuited(k, cos, sin):
        return problem
    if not q.dim() == k.dim() == cos.dim() + 1 == sin.dim() + 1 == 4:
        return "its tensors have not the axes [B, H, M, D] and [B, M, D]"
    one = cos.shape[0] == 1 or cos.shape[0] == q.shape[0] == k.shape[0]
    same = cos.shape == sin.shape and cos.shape[1:] == (q.shape[2], q.shape[3]) == (k.shape[2], k.shape[3])
    return None if one and same else "its angles are broadcast"


class AttentionTable:
    """The table of attention functions of transformers with ours in place of "sdpa"."""

    def __init__(self, others: Any) -> None:
        self.others = others

    def get_interface(self, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        """The function of that name; ours may hand a call on to it."""
        otherwise: Callable[..., Any] = self.others.get_interface(name, default)
        return functools.partial(attend, otherwise) if name == "sdpa" else otherwise


def attend(
    otherwise: Callable[..., Any],
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, Any]:
    """Attention of [B, H, M, D] as [B, M, H, D]; what the operator has no counterpart for goes on, with a warning."""
    whole = attention_mask is not None and is_stand_in(attention_mask)
    if problem := _left_over(query, key, value, None if whole else attention_mask, dropout, others):
        tell("attention", problem)
        given = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **others}
        if whole:
            attention_mask, given["is_causal"] = None, True
        result: tuple[torch.Tensor, Any] = otherwise(module, query, key, value, attention_mask, **given)
        return result
    causal = query.shape[2] > 1 and (is_causal if is_causal is not None else getattr(module, "is_causal", True))
    # In a cache with room for more the first keys belong to these queries, as is_causal of torch has it.
    y = attention(query, key, value, is_causal=causal, scale=scaling, enable_gqa=True)
    return in_order(y, (0, 2, 1, 3)).transpose(1, 2).contiguous(), None


def _left_over(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    others: dict[str, Any],
) -> str | None:
    """What there is about a call that `attention` does not do, or None."""
    if mask is not None:
        return "it has a mask (padding, a window, or sequences in one row)"
    if dropout:
        return f"it has dropout {dropout}"
    if problem := unsuited(query, key, value):
        return problem
    if not query.dim() == key.dim() == value.dim() == 4:
        return "its tensors have not the axes [B, H, M, D]"
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1:3] != value.shape[1:3]:
        return "its queries, keys or values are broadcast"
    if value.shape[-1] != query.shape[-1]:
        return "its values have other columns than its queries"
    if query.shape[1] % key.shape[1]:
        return "its heads of queries are no multiple of those of keys"
    odd = sorted(name for name, found in others.items() if found is not None and found is not False)
    odd = [name for name in odd if name not in HARMLESS]
    return f"it has arguments without a counterpart: {', '.join(odd)}" if odd else None
