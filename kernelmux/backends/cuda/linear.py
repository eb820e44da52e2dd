"""activation(x weight^T + bias): every rung of matmul, with an epilogue where its sums leave the registers."""

from collections.abc import Callable

import torch

from kernelmux.backends.cuda._families.epilogue import Epilogue, EpilogueKind
from kernelmux.backends.cuda.matmul import RUNGS, FactorNames, MatmulRung
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtLeast, Condition

# x comes with K contiguous; an empty sum, which leaves the bias, is not for the tensor cores.
NAMES = FactorNames("x", "weight", (("weight", 1),))
FILLED = dict.fromkeys(("bf16x6", "tensor_cores", "wgmma"), (AtLeast("K", 1),))
LAYOUT = {"x": "last", "weight": "matrix", "bias": "contiguous"}


def rows(x: torch.Tensor) -> torch.Tensor:
    """x [... K] as [M, K]: where it lies, if its rows are one distance apart and do not overlap."""
    flat = x.flatten(0, -2) if x.dim() > 1 else x[None]
    return flat if flat.stride(0) >= flat.shape[1] or len(flat) == 1 else flat.contiguous()


def linear(
    product: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    activation: str, precision: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """y, and the argument of the activation, [0] without one; product: the function of a rung."""
    shape, ending = (*x.shape[:-1], weight.shape[0]), EpilogueKind(bias is not None, activation)
    z = x.new_empty(0 if activation == "none" else shape)
    epilogue = Epilogue(ending, (bias, z)) if ending.macros else Epilogue()
    return product(rows(x), weight.t(), precision, epilogue).view(shape), z


def _variant(rung: MatmulRung, *more: Condition) -> Implementation:
    def fn(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, precision: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return linear(rung.fn, x, weight, bias, activation, precision)

    conditions = *more, *rung.conditions(NAMES)
    return Implementation(fn, rung.idea, conditions, LAYOUT, rung.arithmetic, pays=rung.pays(NAMES))


VARIANTS = {name: _variant(rung, *FILLED.get(name, ())) for name, rung in RUNGS.items()}
