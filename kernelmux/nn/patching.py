"""`patch`: the modules of a model that exists on our operators, in place and reversibly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from kernelmux.nn import decoder_layer
from kernelmux.nn.candidates import OPS, attends, candidates, class_for
from kernelmux.nn.classes import mixed
from kernelmux.nn.decoder import decoder_class
from kernelmux.nn.module import Ours
from kernelmux.nn.report import ModuleEntry, text
from kernelmux.registry.errors import ArgumentError, KernelmuxError, shown, unknown


class Patch:
    """What `patch` did to a model. `print(patch)` lists it; `patch.undo()`, or the end of a `with`, takes it back.

    swapped, left: a `ModuleEntry` for each operator of each module that has a counterpart here. others: the names of the
    classes of leaf modules that have none.
    """

    def __init__(self, model: torch.nn.Module, ops: frozenset[str], wanted: frozenset[str] = frozenset()) -> None:
        self.model = type(model).__name__
        self.swapped: list[ModuleEntry] = []
        self.left: list[ModuleEntry] = []
        self.others: list[str] = []
        self._changed: list[tuple[str, Any, type, type]] = []  # path, module, class before, class now
        self._plan(model, ops)
        self._require(wanted)
        for _, module, _, now in self._changed:
            module.__class__ = now

    def _plan(self, model: torch.nn.Module, ops: frozenset[str]) -> None:
        for path, module, parent in _walk(model):
            found = list(candidates(module, parent))
            entries = [ModuleEntry(path, type(module).__name__, c.op, c.problem) for c in found if c.op in ops]
            self.left += [entry for entry in entries if entry.reason]
            self.swapped += (taken := [entry for entry in entries if not entry.reason])
            if taken:
                now = class_for(module, frozenset(entry.op for entry in taken))
                self._changed.append((path, module, type(module), now))
            if not found and not any(module.children()) and not isinstance(module, Ours):
                self.others.append(type(module).__name__)
        ours = {op: {entry.path for entry in self.swapped if entry.op == op} for op in ("attention", "rms_norm")}
        self._changed += [*_layers(model, ours["rms_norm"]), *_decoders(model, ours["attention"])]

    def _require(self, wanted: frozenset[str]) -> None:
        """ArgumentError, before anything is changed, for operators that were named and that no module can run on."""
        lacking = sorted(wanted - {entry.op for entry in self.swapped})
        if not lacking:
            return
        why = [entry for entry in self.left if entry.op in lacking]
        reasons = text(self.model, (), why, ()) if why else "no module of the model has a counterpart"
        raise ArgumentError(
            f"patch(): ops: expected operators that a module of the model can run on, got {', '.join(lacking)}:"
            f" {reasons}\n  missing_ok=True swaps the others"
        )

    def undo(self) -> None:
        """Give every module back the class that it had; a second call does nothing.

        KernelmuxError, and nothing is changed, if a module has another class by now than the one it got here.
        """
        for path, module, _, now in self._changed:
            if type(module) is not now:
                raise KernelmuxError(
                    f"Patch.undo(): {path or 'the model'} is a {type(module).__qualname__} that was made since:"
                    " undo what changed it first"
                )
        for _, module, before, _ in self._changed:
            module.__class__ = before
        self._changed.clear()

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<patch of {self.model}: {len({entry.path for entry in self.swapped})} modules swapped; print() lists them>"

    def __str__(self) -> str:
        return text(self.model, self.swapped, self.left, self.others)


def patch(model: torch.nn.Module, ops: str | Iterable[str] | None = None, *, missing_ok: bool = False) -> Patch:
    """Run the modules of a model on kernelmux's operators, in place; returns what was done, and how to take it back.

    print(kernelmux.patch(model))                      # what was swapped, what was left, and why
    with kernelmux.patch(model, ops=["rms_norm", "swiglu"]): ...

    Swapped are torch.nn.RMSNorm, LayerNorm, Linear, GELU, Softmax, LogSoftmax, MaxPool2d and CrossEntropyLoss, and in
    models of transformers that are built like Llama the RMS norms, the gated layer (swiglu, geglu), the rotary embedding
    (rope) and sdpa attention, and GPT-2's Conv1D and the GELU of GPT-2 and BERT. ops: one of these operators, or several.
    Parameters, hooks, flags and the `state_dict` stay the same objects under the same names. A call that an operator does
    not take, such as one in float64, runs as before, with a FallbackWarning.

    UnknownName for an operator that no module has. ArgumentError for what is no model, and for an operator of `ops` that no
    module of this model can run on, with the reasons, unless missing_ok.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"patch(): model: expected a torch.nn.Module, got {shown(model)}")
    named = _operators(ops)
    return Patch(model, named, frozenset() if ops is None or missing_ok else named)


def _operators(ops: Any) -> frozenset[str]:
    if ops is None:
        return frozenset(OPS)
    if not isinstance(ops, str | Iterable):
        raise ArgumentError(f"patch(): ops: expected an operator or several, got {shown(ops)}")
    listed = [ops] if isinstance(ops, str) else list(ops)
    for op in listed:
        if op not in OPS:
            raise unknown("operator", op, OPS, "patch()")
    return frozenset(listed)


def _decoders(model: torch.nn.Module, ours: set[str]) -> Iterator[tuple[str, Any, type, type]]:
    """The decoders whose layers of attention are all ours: path, module, class before, class now."""
    layers = {path for path, module in model.named_modules() if attends(module)}
    for path, module in model.named_modules():
        own = {layer for layer in layers if layer.startswith(f"{path}." if path else "")}
        if own and own <= ours and "forward" not in vars(module) and (decoder := decoder_class(module)):
            cls: Any = type(module)
            yield path, module, cls, mixed(decoder, cls)


def _layers(model: torch.nn.Module, ours: set[str]) -> Iterator[tuple[str, Any, type, type]]:
    """The layers of decoders whose two norms are ours: path, module, class before, class now."""
    for path, module in model.named_modules():
        norms = {f"{path}.{name}".lstrip(".") for name in decoder_layer.NORMS}
        if norms <= ours and "forward" not in vars(module) and decoder_layer.is_layer(module):
            cls: Any = type(module)
            yield path, module, cls, mixed(decoder_layer.DecoderLayer, cls)


def _walk(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, torch.nn.Module | None]]:
    """Every module once, with its path and the module that holds it."""
    parents = {id(child): module for module in model.modules() for child in module.children()}
    for path, module in model.named_modules():
        yield path, module, parents.get(id(module))
