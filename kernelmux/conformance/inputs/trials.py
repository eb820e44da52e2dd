"""A trial: one call with its inputs, its float64 reference and its error bound, made once per process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from kernelmux.registry.backend import bounds
from kernelmux.registry.cases import Case, generator
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import SpecError
from kernelmux.registry.numerics import Arithmetic, Bound
from kernelmux.registry.spec import (
    REQUIRED,
    Call,
    Computed,
    OpSpec,
    Positive,
    Real,
    Tensor,
    exact_arguments,
    value_domains,
)

CACHE_BYTES = {"cpu": 2**28, "cuda": 2**30}  # per process, of which a GPU has many at once
OBJECTS = 2**14  # bytes of a trial beside its numbers, about: its call, and small tensors
SMALL = 2**16  # elements of a trial that keeps its bounds: of seven terms and about as long as its outputs


@dataclass(frozen=True, eq=False)
class Trial:
    """A call of an operator: `values` in spec order as a user would pass them.

    case: the name of its case; text: the case spelt out. note: what is special about the values.
    """

    spec: OpSpec
    case: str
    text: str
    dtype: torch.dtype
    seed: int
    values: tuple[Any, ...]
    note: str = ""

    @cached_property
    def call(self) -> Call:
        return self.spec.bind(*self.values)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What an implementation is called with: bound, with defaults, in the order of the signature."""
        return tuple(self.call.arguments.values())

    @cached_property
    def references(self) -> tuple[torch.Tensor, ...]:
        """What is right, in float64."""
        return self.spec.evaluate(self.call)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {i.name: v for i, v in zip(self.spec.inputs, self.values, strict=True) if isinstance(v, torch.Tensor)}

    @property
    def empty(self) -> bool:
        """Whether nothing is computed: no output element, or no input element."""
        return any(t.numel() == 0 for t in (*self.references, *self.tensors.values()))

    @cached_property
    def size(self) -> int:
        """Elements in and out."""
        outputs = (torch.Size(o.shape(self.call)).numel() for o in self.spec.outputs)
        return sum(t.numel() for t in self.tensors.values()) + sum(outputs)

    def changed(self, note: str, **tensors: torch.Tensor) -> Trial:
        """The same call with other tensors, pinned where the old ones were; its reference is evaluated anew.

        Tensors that are computed from others follow these, unless they are given.
        """
        pinned = {i.name for i in self.spec.tensors if i.host and self.tensors[i.name].is_pinned()}
        tensors = {n: t.pin_memory() if n in pinned and not t.is_pinned() else t for n, t in tensors.items()}
        if tensors and (following := [n for n in computed(self.spec) if n not in tensors]):
            lawful = self.lawful({**self.tensors, **tensors})
            tensors |= {name: lawful[name] for name in following}
        values = tuple(tensors.get(i.name, v) for i, v in zip(self.spec.inputs, self.values, strict=True))
        return replace(self, values=values, note=note)

    def elsewhere(self, note: str, **tensors: torch.Tensor) -> Trial:
        """The same call with tensors that hold the same values in other memory: what is right is not evaluated anew."""
        made = self.changed(note, **tensors)
        if self.size <= SMALL:
            vars(made).update(references=self.references, _bounds=self._bounds)
        return made

    def lawful(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of this call with values that each may have: indices inside of their axis, computed ones computed."""
        return value_domains.lawful(self.spec, tensors, self.call.scalars)

    @property
    def free(self) -> dict[str, torch.Tensor]:
        """The floating tensors that may have any value: those that nothing is said about, and positive ones."""
        given = {i.name for i in self.spec.tensors if isinstance(i.domain, Real | Positive)}
        return {name: x for name, x in self.tensors.items() if name in given and x.is_floating_point()}

    def bounds(self, how: Sequence[Arithmetic]) -> tuple[Bound | None, ...]:
        """How far each output may be off with its arithmetic and declared roundings; None: it must be equal."""
        if self.size > SMALL:
            return self._all_bounds(how)
        if (key := tuple(how)) not in self._bounds:
            self._bounds[key] = self._all_bounds(how)
        return self._bounds[key]

    @cached_property
    def _bounds(self) -> dict[tuple[Arithmetic, ...], tuple[Bound | None, ...]]:
        """The bounds of a small trial that were asked for."""
        return {}

    def _all_bounds(self, how: Sequence[Arithmetic]) -> tuple[Bound | None, ...]:
        floating = [output.dtype_of(self.call).is_floating_point for output in self.spec.outputs]
        arguments = exact_arguments(self.call) if any(floating) else ()
        return tuple(
            bounds.limit(self.call, i, one, self.references[i], arguments, self._flushed) if floating[i] else None
            for i, one in enumerate(how)
        )

    @cached_property
    def _flushed(self) -> tuple[torch.Tensor, ...]:
        return bounds.flushed(self.call)


def computed(spec: OpSpec) -> list[str]:
    """The tensors of an operator that are computed from others."""
    return [item.name for item in spec.tensors if isinstance(item.domain, Computed)]


def on_device(x: torch.Tensor, item: Tensor, device: torch.device) -> torch.Tensor:
    """A tensor where the operator expects it: on the device, or pinned for it."""
    if device.type == "cpu":
        return x
    return x.pin_memory() if item.host else x.to(device)


def values(spec: OpSpec, case: Case, tensors: dict[str, torch.Tensor], device: torch.device) -> tuple[Any, ...]:
    """Arguments in spec order from tensors by name and the scalars of a case, or their defaults."""
    found: list[Any] = []
    for item in spec.inputs:
        if isinstance(item, Tensor):
            found.append(on_device(tensors[item.name], item, device) if item.name in tensors else item.default)
        elif item.name in case.scalars:
            found.append(case.scalars[item.name])
        elif item.default is REQUIRED:
            raise SpecError(f"{spec.name}: case {case.name} says nothing about {item.name}, which has no default")
        else:
            found.append(item.default)
    return tuple(found)


def drawn(spec: OpSpec, case: Case, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Random tensors of a case; the seed comes from operator, case, dtype and `seed` alone.

    A case that a check makes may name its distribution in its text ("inputs=small"), so that a command can repeat it.
    """
    return spec.drawn(case, dtype, generator(spec.name, spec.version, case.name, SHORT[dtype], seed))


class Memory:
    """Trials by key; the oldest are forgotten beyond a limit in bytes."""

    def __init__(self) -> None:
        self.trials: OrderedDict[object, tuple[Trial, int]] = OrderedDict()
        self.bytes = 0

    def find(self, key: object) -> Trial | None:
        """The trial of that key, which is the newest from now on; None if it is not, or no longer, known."""
        if key not in self.trials:
            return None
        self.trials.move_to_end(key)
        return self.trials[key][0]

    def keep(self, key: object, trial: Trial, limit: int) -> None:
        """Remember a trial; a reference takes 8 bytes per element, and a bound that is kept 56."""
        own = OBJECTS + (64 if trial.size <= SMALL else 8) * trial.size
        self.trials[key] = trial, own
        self.bytes += own
        while self.bytes > limit and len(self.trials) > 1:
            self.bytes -= self.trials.popitem(last=False)[1][1]

    def clear(self) -> None:
        self.trials.clear()
        self.bytes = 0


_memory = Memory()


def forget() -> None:
    """Give the memory of all trials back."""
    _memory.clear()


def trial(spec: OpSpec, case: Case, dtype: torch.dtype, seed: int, device: torch.device) -> Trial:
    """The trial of a case with random inputs; remembered while there is room."""
    key = (spec.name, case, dtype, seed, device)
    if found := _memory.find(key):
        return found
    made = Trial(spec, case.name, case.text, dtype, seed, values(spec, case, drawn(spec, case, dtype, seed), device))
    _memory.keep(key, made, CACHE_BYTES[device.type])
    return made


def exact_trial(spec: OpSpec, case: Case, dtype: torch.dtype, seed: int, device: torch.device) -> Trial | None:
    """The trial whose result every order of evaluation gives bit for bit, or None where there is none for this case."""
    if not callable(spec.exact):
        return None
    rng = generator(spec.name, spec.version, "exact", case.name, SHORT[dtype], seed)
    tensors = spec.exact(case, dtype, rng)
    if not tensors:
        return None
    return Trial(spec, case.name, case.text, dtype, seed, values(spec, case, tensors, device), "exact inputs")


RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers by their size in bytes


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor as integers of the same size."""
    return x.resolve_neg().contiguous().view(RAW[x.element_size()])


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(bits(x), bits(y))


def same_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors are views of one storage."""
    return x.device == y.device and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def distinct(x: torch.Tensor) -> torch.Tensor:
    """A view without the repetitions of an expanded tensor: of 2^40 equal elements one is left."""
    once = tuple(slice(0, 1) if s == 0 and n > 1 else slice(None) for s, n in zip(x.stride(), x.shape, strict=True))
    return x.detach()[once]


def copies(values: Sequence[Any]) -> list[torch.Tensor | None]:
    """A copy of what every tensor among the values holds."""
    return [distinct(v).clone() if isinstance(v, torch.Tensor) else None for v in values]


def restore(values: Sequence[Any], before: Sequence[torch.Tensor | None]) -> list[int]:
    """Give tensors that a call has changed their old values again; the positions of those that it had changed.

    Trials are remembered, and the next variant must meet what the spec was evaluated on.
    """
    kept = [(i, distinct(values[i]), old) for i, old in enumerate(before) if old is not None]
    changed = [(i, x, old) for i, x, old in kept if not same_bits(x, old)]
    for _, x, old in changed:
        x.copy_(old)
    return [i for i, _, _ in changed]


def shown(shape: Sequence[int]) -> str:
    """A shape as cases spell it: 4x100, scalar."""
    return "x".join(map(str, shape)) if shape else "scalar"
