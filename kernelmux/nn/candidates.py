"""Which modules of a model have a counterpart here, and why one of them cannot have it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.nn import gpt, llama
from kernelmux.nn.activation import GELU, LogSoftmax, Softmax
from kernelmux.nn.classes import mixed
from kernelmux.nn.linear import Linear
from kernelmux.nn.loss import CrossEntropyLoss
from kernelmux.nn.module import Ours
from kernelmux.nn.normalization import LayerNorm, RMSNorm
from kernelmux.nn.pooling import MaxPool2d

OF_TORCH: dict[type, Any] = {
    torch.nn.RMSNorm: RMSNorm,
    torch.nn.LayerNorm: LayerNorm,
    torch.nn.Linear: Linear,
    torch.nn.GELU: GELU,
    torch.nn.Softmax: Softmax,
    torch.nn.LogSoftmax: LogSoftmax,
    torch.nn.CrossEntropyLoss: CrossEntropyLoss,
    torch.nn.MaxPool2d: MaxPool2d,
}
OPS = tuple(sorted({ours.op for ours in OF_TORCH.values()} | {"rms_norm", "swiglu", "geglu", "rope", "attention"}))


@dataclass(frozen=True)
class OperatorCandidate:
    """An operator that a module could run on. problem: why it cannot, or None."""

    op: str
    problem: str | None


def candidates(module: torch.nn.Module, parent: torch.nn.Module | None) -> Iterator[OperatorCandidate]:
    """The operators that a module is made of, each with a verdict; none for a module that has no counterpart."""
    found = list(_operators(module, parent))
    if not found:
        return
    common = _common(module)
    yield from (OperatorCandidate(op, common or problem) for op, problem in found)


def class_for(module: torch.nn.Module, ops: frozenset[str]) -> type:
    """The class that a module gets for the operators that it can run on."""
    cls: Any = type(module)
    for base, ours in OF_TORCH.items():
        if isinstance(module, base):
            return mixed(ours, cls)
    ours = _of_transformers(module)
    return mixed(ours, cls) if ours else llama.attention_class(cls, ops)


def _common(module: torch.nn.Module) -> str | None:
    if isinstance(module, Ours):
        return "it is one of kernelmux's already"
    if "forward" in vars(module):
        return "its forward is replaced on the instance, by a library or by hand"
    return None


def _operators(module: torch.nn.Module, parent: torch.nn.Module | None) -> Iterator[tuple[str, str | None]]:
    for base, ours in OF_TORCH.items():
        if isinstance(module, base):
            yield ours.op, _of_torch(module, parent, base, ours)
            return
    if ours := _of_transformers(module):
        yield ours.op, ours.obstacle(module)
    elif attends(module):
        yield "rope", llama.rotary_obstacle(module)
        yield "attention", llama.attention_obstacle(module)


def _of_transformers(module: Any) -> Any:
    """Our class for a module that looks like one of those in transformers, other than attention; None for any other."""
    if _is_norm(module):
        return gpt.GemmaRMSNorm if gpt.is_gemma_norm(module) else llama.LlamaRMSNorm
    if _is_mlp(module):
        return llama.GEGLUS.get(gpt.formula(module.act_fn), llama.LlamaMLP)
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return gpt.Conv1D
    return gpt.GELUS.get(gpt.formula(module))


def _of_torch(module: Any, parent: torch.nn.Module | None, base: Any, ours: type[Ours]) -> str | None:
    if isinstance(parent, torch.nn.MultiheadAttention):
        return "torch.nn.MultiheadAttention reads its weights and never calls it"
    if not isinstance(module, Ours) and type(module).forward is not base.forward:
        return f"{type(module).__name__} has a forward of its own"
    return ours.obstacle(module)


def _is_norm(module: Any) -> bool:
    """By name and structure: ...RMSNorm with a weight per column and a number beside it."""
    weight = getattr(module, "weight", None)
    named = type(module).__name__.endswith("RMSNorm") and (
        hasattr(module, "variance_epsilon") or hasattr(module, "eps")
    )
    return named and isinstance(weight, torch.nn.Parameter) and weight.dim() == 1


def _is_mlp(module: Any) -> bool:
    layers = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
    return all(hasattr(layer, "weight") for layer in layers) and isinstance(
        getattr(module, "act_fn", None), torch.nn.Module
    )


def attends(module: Any) -> bool:
    """By name and structure: ...Attention of transformers, with its configuration and a layer for the queries."""
    named = type(module).__name__.endswith("Attention") and type(module).__module__.startswith("transformers.")
    return named and hasattr(getattr(module, "q_proj", None), "weight") and hasattr(module, "config")
