"""geglu, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("geglu")


# basics: GeGLU with the formula of another setting.


@mutant("the approximation, whatever the call asks for", family="basics", caught_by="accuracy")
def always_tanh(a: torch.Tensor, b: torch.Tensor, approximate: str) -> torch.Tensor:
    y: torch.Tensor = sound("geglu", a, b, "tanh")
    return y
