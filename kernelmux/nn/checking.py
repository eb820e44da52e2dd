"""`check_model`: a patched model beside the plain one and float64, layer by layer, forward and backward."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelmux.nn import modes
from kernelmux.nn.agreement import tokens
from kernelmux.nn.check_report import Apart, CheckReport, ComparedLayer, Routing
from kernelmux.nn.module import Ours
from kernelmux.nn.patching import Patch, patch
from kernelmux.nn.verdicts import Error, errors_of, gradient_errors, scale_of, worst
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError, shown
from kernelmux.registry.observe.module_hooks import Modules

Tensor = torch.Tensor
NOTHING = Error("output", 0.0, 0.0, 0.0)  # of what has none
MOST_APART = 3  # gradients to show where routers chose differently


def check_model(
    model: torch.nn.Module, *inputs: Any, ops: str | Iterable[str] | None = None, seed: int = 0, **named: Any
) -> CheckReport:
    """Compare a model with its patched copy and with float64, and name the first layer that is off, if one is.

    report = kernelmux.nn.check_model(model, tokens, labels=tokens)
    print(report); assert report.ok

    inputs, named: what the model is called with. ops: as for `patch`. seed: of the gradients that are drawn. The model
    stays as it is. Three copies of it, in eval mode and without a cache, are compared: one is patched, one is in float64.
    A layer is a module that `patch` swapped, or that stands in a list of layers and holds one. By itself it gets the inputs
    that it has in the plain model, and a gradient that is drawn, so that it inherits no error; where modules choose (topk,
    argmax), all take the same choice. `kernelmux.nn.verdicts` says what is off. End to end the models start from their
    loss, or from a gradient that is drawn. The patched copy runs on the backends that are chosen where this is called.
    ArgumentError for what is no model, holds modules of kernelmux already or none that can be swapped, and for a cache.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"check_model(): model: expected a torch.nn.Module, got {shown(model)}")
    if ours := [name or "the model itself" for name, found in model.named_modules() if isinstance(found, Ours)]:
        raise ArgumentError(
            f"check_model(): model: expected one without kernelmux's modules, got one with {ours[0]}: undo its patch first"
        )
    for name in ("use_cache", "past_key_values"):  # a layer that is called again would find its own keys there
        if named.get(name):
            raise ArgumentError(f"check_model(): {name}: expected a call without a cache, got {shown(named[name])}")
    with torch.enable_grad():
        return _Check(model, ops, seed, inputs, named).report()


@dataclass
class _Run:
    """What a copy did end to end. outputs, gradients: of each layer, and what came back to them; parameters: gradients."""

    result: Any = None
    outputs: dict[str, list[Tensor]] = field(default_factory=dict)
    gradients: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    choices: modes.Choices | None = None


class _Check:
    """The three copies of a model, and what they are called with."""

    def __init__(
        self,
        model: torch.nn.Module,
        ops: str | Iterable[str] | None,
        seed: int,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        self.seed, self.inputs, self.named = seed, inputs, named
        self.plain = copy.deepcopy(model).eval()
        _configure(self.plain, "use_cache", False)
        self.patched = copy.deepcopy(self.plain)
        self.patch: Patch = patch(self.patched, ops)
        if not self.patch.swapped:
            raise ArgumentError(
                f"check_model(): model: expected one that patch() can swap modules of, got {self.patch}"
            )
        self.exact = copy.deepcopy(self.plain).double()
        _configure(self.exact, "_experts_implementation", "eager")  # torch multiplies groups in fp32 at most
        self.ops: dict[str, list[str]] = {}
        for entry in self.patch.swapped:
            self.ops.setdefault(entry.path, []).append(entry.op)
        self.paths = [path for path, _ in model.named_modules() if path in self.ops or self._is_layer(path)]
        self.scale = scale_of(pytree.tree_leaves((inputs, named)), self.plain)

    def _is_layer(self, path: str) -> bool:
        parent = self.plain.get_submodule(path.rpartition(".")[0])
        listed = isinstance(parent, torch.nn.ModuleList | torch.nn.ModuleDict | torch.nn.Sequential)
        return bool(path) and listed and any(swapped.startswith(f"{path}.") for swapped in self.ops)

    def report(self) -> CheckReport:
        alone = _LayersApart(self)
        exact = self._run(self.exact, None)
        plain, patched = self._run(self.plain, exact.choices), self._run(self.patched, exact.choices)
        layers = [self._layer(path, *found, exact, plain, patched) for path, found in alone.found.items()]
        errors = dict(gradient_errors([run.parameters for run in (exact, plain, patched)], self.scale))
        rounding = tuple(name for name, found in errors.items() if found.noise)
        routing, apart = self._routing(exact, plain, patched, rounding)
        tensors = [*self.plain.parameters(), *pytree.tree_leaves((self.inputs, self.named))]
        first = next(x for x in tensors if isinstance(x, Tensor))
        return CheckReport(
            model=type(self.plain).__name__,
            dtype=SHORT.get(first.dtype, str(first.dtype)),
            device=str(first.device),
            swapped=len(self.ops),
            layers=(*layers, self._whole(worst(errors.values()), exact, plain, patched)),
            uncalled=tuple(path for path in self.ops if path not in alone.found),
            routing=routing,
            apart=apart,
            rounding=rounding,
            tokens=tokens(exact.result, plain.result, patched.result),
        )

    def _run(self, model: torch.nn.Module, held: modes.Choices | None) -> _Run:
        """One pass, forward and backward, with the choices of another one if they are given."""
        run, hooks, found = _Run(), [], dict(model.named_modules())
        for path in self.paths:
            hooks.append(found[path].register_forward_hook(_keeper(run, path)))
        where = Modules(model)
        inputs, named = self.inputs, self.named
        with ExitStack() as stack:
            run.choices = stack.enter_context(modes.Choices(where.current, held))
            if model is self.exact:
                inputs, named = pytree.tree_map(_doubled, (inputs, named))
                stack.enter_context(modes.Float64())
            run.result = model(*inputs, **named)
        for hook in hooks:
            hook.remove()
        where.close()
        outputs, gradients = _start(run.result, self.seed)
        if outputs:
            torch.autograd.backward(outputs, gradients)
        run.result = pytree.tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, run.result)
        run.parameters = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        return run

    def _layer(self, path: str, forward: Error, backward: Error | None, *runs: _Run) -> ComparedLayer:
        module = self.plain.get_submodule(path)
        flow = worst(errors_of([run.outputs.get(path, []) for run in runs], "output", self.scale))
        back = [[run.gradients.get(path, {})[i] for i in sorted(run.gradients.get(path, {}))] for run in runs]
        ops = tuple(self.ops.get(path, ()))
        return ComparedLayer(
            path, type(module).__name__, ops, forward, backward, flow, worst(errors_of(back, "output", self.scale))
        )

    def _whole(self, backward: Error | None, *runs: _Run) -> ComparedLayer:
        """The model end to end: what it returns, but for numbers such as a loss, and the gradients of its parameters."""
        forward = worst(errors_of([[x for x in _floats(run.result) if x.dim()] for run in runs], "output", self.scale))
        forward = forward or NOTHING
        return ComparedLayer("", type(self.plain).__name__, (), forward, backward, forward, backward)

    def _routing(
        self, exact: _Run, plain: _Run, patched: _Run, rounding: tuple[str, ...]
    ) -> tuple[tuple[Routing, ...], tuple[Apart, ...]]:
        """Where routers chose otherwise than float64's, and what follows from it if each model has its own way."""
        chosen: Any = exact.choices, plain.choices, patched.choices
        total: dict[str, int] = {}
        for path, rows in chosen[0].made:
            total[path] = total.get(path, 0) + len(rows)
        of_plain, of_patched = (modes.differing(chosen[0], made) for made in chosen[1:])
        if not any((*of_plain.values(), *of_patched.values())):
            return tuple(Routing(path, count, 0, 0, 0) for path, count in total.items()), ()
        free: Any = [self._run(model, None) for model in (self.plain, self.patched)]
        between = modes.differing(free[0].choices, free[1].choices)
        found = tuple(
            Routing(path, count, of_plain.get(path, 0), of_patched.get(path, 0), between.get(path, 0))
            for path, count in total.items()
        )
        freely, held = _apart(*free), _apart(plain, patched)
        most = sorted(freely.keys() - set(rounding), key=lambda name: -freely[name])[:MOST_APART]
        return found, tuple(Apart(name, freely[name], held.get(name, math.nan)) for name in most)


class _LayersApart:
    """Each layer by itself, in a pass of the plain model, whose inputs it gets. found: the worst errors by path."""

    def __init__(self, check: _Check) -> None:
        self.found: dict[str, tuple[Error, Error | None]] = {}
        models = (check.exact, check.plain, check.patched)
        self._seed, self._busy = check.seed, False
        self._modules = [dict(model.named_modules()) for model in models]
        self._where = [Modules(model) for model in models]
        hooks = [
            check.plain.get_submodule(path).register_forward_pre_hook(self._hook(path), with_kwargs=True)
            for path in check.paths
        ]
        check.plain(*check.inputs, **check.named)
        for hook in hooks:
            hook.remove()
        for where in self._where:
            where.close()

    def _hook(self, path: str) -> Callable[..., None]:
        def before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._busy:  # inside of a layer that is compared
                return
            self._busy = True
            try:
                forward, backward = self._compare(path, args, kwargs)
            finally:
                self._busy = False
            first, second = self.found.get(path, (None, None))  # of an earlier call
            self.found[path] = worst([forward, first]) or forward, worst([backward, second])

        return before

    def _compare(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Error, Error | None]:
        (exact, plain, patched), choices = (modules[path] for modules in self._modules), None
        calls = []
        for module, where in ((plain, self._where[1]), (patched, self._where[2]), (exact, self._where[0])):
            noted = modes.Choices(where.current, choices)
            choices = choices or noted
            calls.append(_Call(module, args, kwargs, noted, exact=module is exact))
        calls.insert(0, calls.pop())
        pairs = zip(calls[0].outputs, calls[1].outputs, strict=True)
        given = [_gradient(x, self._seed + i).to(y.dtype) for i, (x, y) in enumerate(pairs)]
        scale = scale_of((*pytree.tree_leaves((args, kwargs)), *calls[1].outputs), plain)
        forward = worst(errors_of([call.outputs for call in calls], "output", scale)) or NOTHING
        backward = dict(gradient_errors([call.backward(given) for call in calls], scale))
        return forward, worst(backward.values())


class _Call:
    """A module called by itself with copies of inputs, in float64 if `exact`. outputs: those that are numbers."""

    def __init__(
        self, module: torch.nn.Module, args: Any, kwargs: Any, choices: modes.Choices, exact: bool = False
    ) -> None:
        self.wanted: dict[str, Tensor] = {}
        args, kwargs = pytree.tree_map(lambda x: self._own(x, exact), (args, kwargs))
        with ExitStack() as stack:
            stack.enter_context(choices)
            if exact:
                stack.enter_context(modes.Float64())
            self.outputs = _floats(module(*args, **kwargs))
        self.wanted |= {name: p for name, p in module.named_parameters() if p.requires_grad}

    def _own(self, x: Any, exact: bool) -> Any:
        if not isinstance(x, Tensor):
            return x
        own = x.detach().clone()
        own = _doubled(own) if exact else own
        if x.requires_grad:
            self.wanted[f"input {len(self.wanted)}"] = own.requires_grad_()
        return own

    def backward(self, given: list[Tensor]) -> dict[str, Tensor]:
        """The gradients of inputs and parameters, for those of the outputs."""
        pairs = [(y, g.to(y.dtype)) for y, g in zip(self.outputs, given, strict=False) if y.requires_grad]
        if not pairs or not self.wanted:
            return {}
        outputs, gradients = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, list(self.wanted.values()), gradients, allow_unused=True)
        return {name: g for name, g in zip(self.wanted, found, strict=True) if g is not None}


def _configure(model: torch.nn.Module, name: str, value: Any) -> None:
    """Set an attribute of every configuration in a model that has it."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, name):
            setattr(config, name, value)


def _keeper(run: _Run, path: str) -> Callable[..., None]:
    """A forward hook that keeps outputs, and the gradients that come back to them."""

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        if path in run.outputs:  # of several calls the first
            return
        found = _floats(output)
        run.outputs[path] = [x.detach() for x in found]
        gradients = run.gradients.setdefault(path, {})
        for i, x in enumerate(found):
            if x.requires_grad:
                x.register_hook(lambda g, i=i: gradients.__setitem__(i, g.detach()))  # type: ignore[no-untyped-call]

    return after


def _floats(result: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor) and x.is_floating_point()]


def _doubled(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def _start(result: Any, seed: int) -> tuple[list[Tensor], list[Tensor | None]]:
    """Where a backward starts: at the loss, or at all outputs with gradients that are drawn."""
    loss = getattr(result, "loss", None)
    if isinstance(loss, Tensor) and loss.requires_grad:
        return [loss], [None]
    outputs = [x for x in _floats(result) if x.requires_grad]
    return outputs, [_noise(x, seed + i).to(x.dtype) for i, x in enumerate(outputs)]


def _noise(x: Tensor, seed: int) -> Tensor:
    drawn = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return drawn.to(x.device)


def _gradient(y: Tensor, seed: int) -> Tensor:
    """Noise, and as much along y: in noise alone a term such as sum(gradient * y) would be next to nothing."""
    size = y.detach().square().mean().sqrt()
    return _noise(y, seed) + torch.nan_to_num(y.detach() / size)


def _apart(plain: _Run, patched: _Run) -> dict[str, float]:
    """How far the gradients of two models are apart, relative to those of the plain one."""
    found = {}
    for name, g in plain.parameters.items():
        size = g.double().norm()
        if name in patched.parameters and size > 0:
            found[name] = float((patched.parameters[name].double() - g.double()).norm() / size)
    return found
