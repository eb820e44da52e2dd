"""The ways in which torch runs an operator: by its function, as an operator of torch, mapped, differentiated, exported."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.interop import torch_ops

Tensors = dict[str, torch.Tensor]
Run = Callable[[Mapping[str, Any]], tuple[torch.Tensor, ...]]  # from arguments by name to the outputs that are returned
FUNCTION, OPERATOR = "function", "operator"
WAYS = ("vmap", "compile", "export", "gradient", "patch")  # of the check `integration`
STATIC, NO_GRADIENT = "static", "no gradient"  # remarks: what a way lacks, and nothing is wrong with


def way(op: str, kind: str, backend: str) -> Run:
    """The public function (FUNCTION) or the operator of torch (OPERATOR) on a backend."""
    spec = catalog.spec(op)
    run = dispatch.function(op) if kind == FUNCTION else torch_ops.operator(op)
    taken = {item.name: partial(torch_ops.taken, item) for item in spec.scalars} if kind == OPERATOR else {}

    def call(values: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        given = {name: taken[name](value) if name in taken else value for name, value in values.items()}
        result = run(**given, backend=backend)
        return (result if isinstance(result, tuple) else (result,))[: spec.visible]

    return call


def differentiable(values: Mapping[str, Any]) -> list[str]:
    """The tensors that may want a gradient: floating ones, of more than 8 bits."""
    tensors = {name: x for name, x in values.items() if isinstance(x, torch.Tensor)}
    return [name for name, x in tensors.items() if x.is_floating_point() and x.dtype.itemsize > 1]


def gradients(
    run: Run, values: Mapping[str, Any], wanted: Sequence[str] | None = None
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor | None]]:
    """The outputs of a call, and by name the gradients of the `wanted` tensors, or of all; None: there is none."""
    names = differentiable(values) if wanted is None else wanted
    leaves = {name: values[name].detach().clone().requires_grad_() for name in names}
    with torch.enable_grad():
        outputs = run({**values, **leaves})
    ends = [y for y in outputs if y.requires_grad]
    if not ends or not leaves:
        return outputs, dict.fromkeys(leaves)
    incoming = [torch.linspace(0.5, 1, y.numel(), device=y.device).view(y.shape).to(y.dtype) for y in ends]
    found = torch.autograd.grad(ends, list(leaves.values()), incoming, allow_unused=True)
    return outputs, dict(zip(leaves, found, strict=True))


def mapped(run: Run, shared: Mapping[str, Any], examples: Sequence[Tensors], at: int = 0) -> tuple[torch.Tensor, ...]:
    """The outputs of one call under torch.vmap over these tensors, stacked along their axis `at`; the others are shared."""
    names = list(examples[0])
    stacked = [torch.stack([own[name] for own in examples], at) for name in names]
    call = torch.vmap(lambda *own: run({**shared, **dict(zip(names, own, strict=True))}), in_dims=at)
    found: tuple[torch.Tensor, ...] = call(*stacked)
    return found


class Exportable(torch.nn.Module):
    """The public function of an operator as a model of its tensors."""

    def __init__(self, op: str, names: Sequence[str], rest: Mapping[str, Any], backend: str) -> None:
        super().__init__()
        self.run, self.names, self.rest = way(op, FUNCTION, backend), tuple(names), dict(rest)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.run({**dict(zip(self.names, tensors, strict=True)), **self.rest})


def exported(
    op: str, tensors: Tensors, rest: Mapping[str, Any], backend: str, free: Sequence[str] = ()
) -> tuple[Callable[..., tuple[torch.Tensor, ...]], bool]:
    """What torch.export makes of a call, saved and loaded again, and whether it takes another first axis of `free`."""
    dynamic = tuple({0: torch.export.Dim.AUTO} if name in free else None for name in tensors)
    model = Exportable(op, list(tensors), rest, backend)
    program = torch.export.export(model, tuple(tensors.values()), dynamic_shapes=(dynamic,))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module(), bool(program.range_constraints)
