"""linear: activation(x weight^T + bias), every rung of matmul with an epilogue before its sums are stored."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernelmux.backends.triton.matmul import RUNGS, ProductNames, TritonMatmulRung
from kernelmux.backends.triton.matmul._epilogue import EpilogueTensors, EpilogueTerms
from kernelmux.registry.backend import Implementation


def rows(x: torch.Tensor) -> torch.Tensor:
    """x [... K] as [M, K]: where it lies, if its rows are one distance apart and do not overlap."""
    flat = x.flatten(0, -2) if x.dim() > 1 else x[None]
    return flat if flat.stride(0) >= flat.shape[1] or len(flat) == 1 else flat.contiguous()


def linear(
    product: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    activation: str, precision: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """y, and the argument of the activation, [0] without one; product: the function of a rung."""
    shape, ending = (*x.shape[:-1], weight.shape[0]), EpilogueTerms(bias is not None, activation)
    z = x.new_empty(0 if activation == "none" else shape)
    epilogue = EpilogueTensors(ending, bias, None if activation == "none" else z)
    return product(rows(x), weight.t(), precision, epilogue).view(shape), z


def _variant(rung: TritonMatmulRung) -> Implementation:
    def fn(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str, precision: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return linear(rung.fn, x, weight, bias, activation, precision)

    names, layout = ProductNames("x", "weight", "M"), {"x": "last", "weight": "matrix", "bias": "contiguous"}
    return Implementation(
        fn, rung.idea, rung.requires(names), layout, arithmetic="mma", pays=rung.pays(names)
    )  # fmt: skip


VARIANTS = {name: _variant(rung) for name, rung in RUNGS.items()}
