"""The layers of GPT-2, BERT and Gemma in transformers, on our operators. This module does without transformers itself."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, cast

import torch

import kernelmux as kx
from kernelmux.nn import templates
from kernelmux.nn.fallback import misfit, unsuited
from kernelmux.nn.module import Ours, outside, precision, unfit


class Conv1D(Ours):
    """weight [in, out] and bias [out]: linear with the transposed weight, which is read in place."""

    op = "linear"

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        if not templates.known(type(module).forward, templates.CONV1D) or module.nf != module.weight.shape[1]:
            return "its forward is none of those that are known to be linear"
        return unfit(cls.op, weight=module.weight, bias=module.bias)

    def declined(self, x: torch.Tensor) -> str | None:
        return unsuited(x, cast(Any, self).weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module: Any = self
        return kx.linear(x, module.weight.t(), module.bias, precision=precision(x.is_cuda))


class GELUActivation(Ours):
    """gelu; the formula belongs to the class."""

    op = "gelu"
    approximate: ClassVar[Any] = "none"

    def declined(self, input: torch.Tensor) -> str | None:
        return unsuited(input)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return kx.gelu(input, self.approximate)


class GELUTanh(GELUActivation):
    """gelu with tanh."""

    approximate = "tanh"


GELUS: dict[str | None, Any] = {"none": GELUActivation, "tanh": GELUTanh}


def formula(module: Any) -> str | None:
    """The `approximate` of the GELU that a module of torch or transformers is, swapped or not; None for another module."""
    if isinstance(module, torch.nn.GELU | GELUActivation):
        known = isinstance(module, Ours) or type(module).forward is torch.nn.GELU.forward
        return cast(str, module.approximate) if known else None
    if "GELU" not in type(module).__name__:
        return None
    if templates.known(type(module).forward, templates.NEW_GELU):
        return "tanh"
    if not templates.known(type(module).forward, templates.ACTS):
        return None
    act = getattr(module, "act", None)
    given = act.keywords if isinstance(act, functools.partial) and not act.args else {}
    found = act.func if isinstance(act, functools.partial) and given.keys() == {"approximate"} else act
    return given.get("approximate", "none") if found is torch.nn.functional.gelu else None


class GemmaRMSNorm(Ours):
    """weight [N] and eps: rms_norm with the weight 1 + weight, in fp32 alone, where that sum is the one of transformers."""

    op = "rms_norm"

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        if module.weight.dtype != torch.float32:
            return "in 16 bits the operator would round its weight plus 1, which transformers does not"
        return unfit(cls.op, weight=module.weight) or outside(cls.op, "eps", module.eps)

    def declined(self, x: torch.Tensor) -> str | None:
        weight = cast(Any, self).weight
        if x.dtype != torch.float32 or weight.dtype != torch.float32:
            return "its weight plus 1 is one of fp32 alone"
        return misfit(x, weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module: Any = self
        return kx.rms_norm(x, 1.0 + module.weight, module.eps)


def is_gemma_norm(module: Any) -> bool:
    """Whether a norm multiplies by 1 + weight, in fp32."""
    cls = type(module)
    return templates.known(cls.forward, templates.GEMMA_NORM) and templates.known(
        getattr(cls, "_norm", print), templates.GEMMA_NORM_INNER
    )
