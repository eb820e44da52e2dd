"""Modules that `kernelmux.patch` swaps, one or more per operator, each run as it is and on the operator."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import kernelmux
from kernelmux.registry import catalog
from kernelmux.registry.choice import precedence
from kernelmux.registry.errors import KernelmuxError
from kernelmux.registry.observe import call_log

Results = tuple[tuple[torch.Tensor, ...], dict[str, "torch.Tensor | None"]]
COLUMNS = 24
OF_TRANSFORMERS = ("attention", "rope")


@dataclass(frozen=True)
class ModuleCall:
    """A module, how it is called, and the arguments of its operator in spec order for these inputs.

    call: the module itself, or what its forward looks up to compute the operator.
    """

    op: str
    module: torch.nn.Module
    call: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    arguments: tuple[Any, ...]

    def results(self, backend: str) -> tuple[Results, Results]:
        """Output and gradients of inputs and parameters: as the module is, and patched, on a backend."""
        plain = self._run()
        with kernelmux.patch(self.module, ops=self.op), precedence.use(backend), call_log.record() as log:
            swapped = self._run()
        if self.op not in {entry.operator for entry in log.entries}:
            raise KernelmuxError(f"{type(self.module).__name__}: patched, and it runs no {self.op}")
        return plain, swapped

    def _run(self) -> Results:
        inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in self.inputs]
        leaves = {f"input {i}": x for i, x in enumerate(inputs) if x.requires_grad}
        leaves |= dict(self.module.named_parameters())
        with torch.enable_grad():
            y = self.call(*inputs)
        incoming = torch.linspace(0.5, 1, y.numel(), device=y.device).view(y.shape)
        found = torch.autograd.grad(y, list(leaves.values()), incoming, allow_unused=True)
        return (y.detach(),), dict(zip(leaves, found, strict=True))


class IdentityLayer(torch.nn.Identity):
    """A projection that changes nothing: what is left of a gated layer is its operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))


class GatedMLP(torch.nn.Module):
    """The gated layer of a Llama, as transformers writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = (
            IdentityLayer(),
            IdentityLayer(),
            IdentityLayer(),
            torch.nn.SiLU(),
        )

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


Draw = Callable[..., torch.Tensor]  # shape -> normal numbers on the device
Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...], dict[str, Any]]  # module, inputs, arguments of the operator


def _norm(module: Any, draw: Draw) -> Made:
    x = draw(5, COLUMNS)
    bias = {"bias": module.bias} if hasattr(module, "bias") else {}
    return module, (x,), {"x": x, "weight": module.weight, "eps": module.eps, **bias}


def _linear(draw: Draw) -> Made:
    module, x = torch.nn.Linear(COLUMNS, 10), draw(5, COLUMNS)
    return module, (x,), {"x": x, "weight": module.weight, "bias": module.bias}


def _of_x(module: torch.nn.Module, scalars: dict[str, Any], shape: tuple[int, ...], draw: Draw) -> Made:
    x = draw(*shape)
    return module, (x,), {"x": x, **scalars}


def _cross_entropy(draw: Draw) -> Made:
    logits = draw(5, COLUMNS)
    target = logits.argmin(-1)
    return torch.nn.CrossEntropyLoss(), (logits, target), {"logits": logits, "target": target}


def _swiglu(draw: Draw) -> Made:
    x = draw(5, COLUMNS)
    return GatedMLP(), (x,), {"a": x, "b": x}


MODULES: dict[str, tuple[Callable[[Draw], Made], ...]] = {
    "rms_norm": (lambda draw: _norm(torch.nn.RMSNorm(COLUMNS, eps=1e-6), draw),),
    "layer_norm": (lambda draw: _norm(torch.nn.LayerNorm(COLUMNS), draw),),
    "linear": (_linear,),
    "gelu": tuple(
        partial(_of_x, torch.nn.GELU(kind), {"approximate": kind}, (5, COLUMNS)) for kind in ("none", "tanh")
    ),
    "softmax": (partial(_of_x, torch.nn.Softmax(1), {"axis": 1}, (3, 7, 4)),),
    "log_softmax": (partial(_of_x, torch.nn.LogSoftmax(-1), {"axis": -1}, (5, COLUMNS)),),
    "max_pool2d": (
        partial(_of_x, torch.nn.MaxPool2d(3, 2, 1), {"kernel": 3, "stride": 2, "padding": 1}, (2, 3, 9, 8)),
    ),
    "cross_entropy": (_cross_entropy,),
    "swiglu": (_swiglu,),
}


def missing(op: str) -> str:
    """Why there is no module for an operator, or ""."""
    if op in OF_TRANSFORMERS:
        return (
            "" if importlib.util.find_spec("transformers") else "its module is of transformers, which is not installed"
        )
    return "" if op in MODULES else "no module"


def pairs(op: str, device: torch.device, seed: int) -> Iterator[ModuleCall]:
    """The modules of an operator, in fp32."""
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, device="cpu").to(device)  # a default device is in force

    if op in OF_TRANSFORMERS:
        yield _of_transformers(op, draw)
    for make in MODULES.get(op, ()):
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(seed)
            module, inputs, arguments = make(draw)
        given = {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
        yield ModuleCall(op, module, module, inputs, catalog.spec(op).given(**given))


def _of_transformers(op: str, draw: Draw) -> ModuleCall:
    """What the forward of its Llama's attention looks up: the function that turns queries, or that of attention."""
    found = importlib.import_module("transformers.models.llama.modeling_llama")
    config = found.LlamaConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1)
    config._attn_implementation = "sdpa"
    module = found.LlamaAttention(config, 0)
    q, k, v = draw(2, 4, 6, 8), draw(2, 2, 6, 8), draw(2, 2, 6, 8)

    def looked_up(name: str) -> Any:
        return inspect.unwrap(type(module).forward).__globals__[name]

    if op == "rope":
        angles = draw(6, 4)
        cos, sin = (torch.cat((half, half), -1)[None] for half in (angles.cos(), angles.sin()))
        given = {"x": q, "cos": angles.cos(), "sin": angles.sin()}
        call = lambda x: looked_up("apply_rotary_pos_emb")(x, x, cos, sin)[0]  # noqa: E731
        return ModuleCall(op, module, call, (q,), catalog.spec(op).given(**given))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        run = looked_up("ALL_ATTENTION_FUNCTIONS").get_interface("sdpa", None)
        y: torch.Tensor = run(module, q, k, v, None, is_causal=True)[0].transpose(1, 2)
        return y

    return ModuleCall(op, module, attend, (q, k, v), catalog.spec(op).given(q, k, v, causal=True))
