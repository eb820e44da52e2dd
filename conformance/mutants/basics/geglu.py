"""GeGLU with the formula of another setting."""

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation


def always_tanh(a: torch.Tensor, b: torch.Tensor, approximate: str) -> torch.Tensor:
    y: torch.Tensor = sound("geglu", a, b, "tanh")
    return y


VARIANTS = {"always_tanh": Implementation(fn=always_tanh, idea="the approximation, whatever the call asks for")}

CAUGHT_BY = {"always_tanh": "accuracy"}
