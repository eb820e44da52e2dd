"""What is differentiable in an operator, and by which operators.

gradient=Gradient("softmax_backward", wrt=("x",), saves=("y",))
gradient=Composed(("x",), lambda kx, v, g: {"x": kx.transpose(g["y"])})
gradient=NoGradient("an index has no derivative")
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelmux.registry.errors import SpecError
from kernelmux.registry.spec.signature import Spec

Tensors = Mapping[str, torch.Tensor]
Deferred = torch.Tensor | Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Gradient:
    """Gradients by an operator of their own.

    op: takes arguments of the forward call, its outputs `saves`, and gradients of outputs, all by name: grad_out is that of
    the one output that is returned, grad_<output> that of one of several. It returns grad_<tensor> for each of `wrt`, in
    this order. same: further tensors, and which of `wrt` their gradient equals.
    """

    op: str
    wrt: tuple[str, ...]
    saves: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor that has a gradient."""
        return (*self.wrt, *self.same)


@dataclass(frozen=True)
class Composed:
    """Gradients by public operators, and what torch does without a kernel or in one step: views, a product, a factor.

    how: from the operators (a namespace such as `kernelmux`), the arguments and outputs of the forward call, and the
    gradients of the returned outputs, all by name, to the gradients of `wrt`, or to functions that compute them: one of
    several tensors may be frozen, and what its gradient costs is not paid then. saves: outputs that are there for it
    alone. constant: returned outputs that count as constants: they have no gradient, and what `how` makes of them cannot
    be differentiated again.
    """

    wrt: tuple[str, ...]
    how: Callable[[Any, Mapping[str, Any], Tensors], Mapping[str, Deferred]]
    saves: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()

    def compute(
        self, kx: Any, values: Mapping[str, Any], grads: Tensors, wanted: Collection[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """The gradients of the wanted tensors, or of all; arguments as of `how`."""
        found = self.how(kx, values, grads)
        return {name: g() if callable(g) else g for name, g in found.items() if wanted is None or name in wanted}

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor that has a gradient."""
        return self.wrt


@dataclass(frozen=True)
class NoGradient:
    """Why there is none."""

    reason: str


Differentiable = Gradient | Composed | NoGradient


def varying(spec: Spec) -> tuple[str, ...]:
    """The returned outputs from which gradients come: all but those that the gradient declares to be constant."""
    constant = spec.gradient.constant if isinstance(spec.gradient, Composed) else ()
    return tuple(o.name for o in spec.outputs[: spec.visible] if o.name not in constant)


def check(spec: Spec) -> None:
    """SpecError if the gradient of an operator names what it does not have, or does without what it saves."""
    found = spec.gradient
    if found is None or isinstance(found, NoGradient):
        return
    floating = {t.name for t in spec.tensors if spec.dtypes_for(torch.float32)[t.name].is_floating_point}
    if wrong := [name for name in found.tensors if name not in floating]:
        raise SpecError(f"{spec.name}: gradient: expected floating tensors, got {', '.join(wrong)}")
    saves = set(found.saves)
    outputs = {output.name for output in spec.outputs}
    if wrong := sorted(saves - outputs):
        raise SpecError(f"{spec.name}: gradient: expected outputs to save, got {', '.join(wrong)}")
    constant = found.constant if isinstance(found, Composed) else ()
    if not varying(spec) or not set(constant) <= {output.name for output in spec.outputs if not output.saved}:
        raise SpecError(f"{spec.name}: gradient: expected some of the returned outputs as constant, got {constant}")
    if unused := [output.name for output in spec.outputs if output.saved and output.name not in saves]:
        raise SpecError(f"{spec.name}: gradient: expected it to take what is saved for it, {', '.join(unused)}")


def arguments(spec: Spec, backward: Spec, values: Mapping[str, Any], gradients: Tensors) -> dict[str, Any]:
    """The arguments of the operator that gives the gradients of another one.

    values: arguments and outputs of the forward call by name; gradients: of its returned outputs. SpecError for one that
    none of these is.
    """
    returned = [output.name for output in spec.outputs[: spec.visible]]
    known = {f"grad_{name}": gradients[name] for name in returned if name in gradients}
    if len(returned) == 1:
        known["grad_out"] = gradients[returned[0]]
    saves = spec.gradient.saves if isinstance(spec.gradient, Gradient) else ()
    known |= {name: values[name] for name in (*(i.name for i in spec.inputs), *saves) if name in values}
    if missing := [i.name for i in backward.inputs if i.name not in known]:
        raise SpecError(
            f"{spec.name}: gradient: {backward.name} takes {', '.join(missing)}, expected arguments and saved outputs of"
            f" {spec.name} and gradients of its outputs: {', '.join(known)}"
        )
    return {i.name: known[i.name] for i in backward.inputs}
