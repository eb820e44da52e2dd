"""One call of a task: what the candidate is given, and the reference as a function of it."""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelmux.candidate.allocations import extent, poisoned
from kernelmux.judge.formats import candidate_side, modes
from kernelmux.judge.formats.candidate_side import Outputs, tensors
from kernelmux.judge.formats.task import FormatError, Task

CPU = torch.device("cpu")
MOST = 16  # arguments of which it is asked whether the reference reads them
SMALL_FLOATS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})


@dataclass(frozen=True, eq=False)
class TaskTrial:
    """A call, made in the parent's process.

    args, kwargs: of the candidate, nested as the format nests them. parameters: what a module is given beside them; init:
    what its class is built with, after seeding with init_seed, which tells nothing of the seed of the inputs. reference:
    called with args, kwargs and parameters like these, in whatever dtype they have; it may write into them. check: of a
    task whose right results are many: "" or what is wrong with outputs. note: what differs from the task as written.
    single: the name of the function of torch that the reference is, where it is one. also: a second dtype that a result may
    have, where the reference's own is not that of the memory for it. sizes: variables of the reference's file by name, each
    before and after it was reduced: a solution's file may have the same.
    """

    task: Task
    args: tuple[Any, ...]
    reference: Callable[[tuple[Any, ...], Mapping[str, Any], Mapping[str, torch.Tensor]], Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    init: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {})
    init_seed: int = 0
    check: Callable[[Any], str] | None = None
    note: str = ""
    single: str = ""
    also: torch.dtype | None = None
    sizes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    device: torch.device = CPU

    @cached_property
    def leaves(self) -> list[torch.Tensor]:
        """The tensors among the arguments and parameters, in a fixed order."""
        return [x for x in self._flat[0] if isinstance(x, torch.Tensor)]

    @cached_property
    def _flat(self) -> tuple[list[Any], Any]:
        return pytree.tree_flatten((self.args, dict(self.kwargs), dict(self.parameters)))

    @property
    def size(self) -> int:
        """Bytes of all tensors that the candidate is given."""
        return sum(x.numel() * x.element_size() for x in self.leaves)

    def spelled(self) -> tuple[str, list[torch.Tensor]]:
        """The call as the text that `candidate_side.serving` reads, and its tensors: the leaves come first.

        TypeError for an argument that cannot be handed to another process.
        """
        leaves = list(self.leaves)
        given = {"args": self.args, "kwargs": dict(self.kwargs), "parameters": dict(self.parameters)}
        parts = {**given, "init": self.init, "sizes": dict(self.sizes)}
        told = {name: candidate_side.spelled(part, leaves) for name, part in parts.items()}
        return json.dumps({**told, "init_seed": self.init_seed, "leaves": len(leaves)}), leaves

    def evaluate(self, leaves: Sequence[torch.Tensor] | None = None, exactly: bool = False) -> Outputs:
        """The reference's outputs on other tensors in the place of `leaves`, which stay as they are.

        exactly: in float64, to which floating tensors are raised. FormatError where the reference raises.
        """
        return self._called([_own(x, exactly) for x in (self.leaves if leaves is None else leaves)], exactly)

    def changes(self) -> list[bool]:
        """Which of the leaves the reference itself writes into: a candidate may do the same there."""
        given = [_own(x, False) for x in self.leaves]
        self._called(given, False)
        return [not torch.equal(_bits(x), _bits(y)) for x, y in zip(given, self.leaves, strict=True)]

    def ignored(self) -> list[bool]:
        """Which of the arguments' tensors the reference does not read: memory for outputs. Parameters are none."""
        count = sum(isinstance(x, torch.Tensor) for x in pytree.tree_leaves((self.args, dict(self.kwargs))))
        found = [False] * len(self.leaves)
        if count > MOST:
            return found
        before = self.evaluate()
        for i, x in enumerate(self.leaves[:count]):
            found[i] = all(self._same(before, i, other) for other in _others(x))
        return found

    def _same(self, before: Outputs, place: int, other: torch.Tensor) -> bool:
        """Whether the reference gives these outputs, to the bit, with another tensor in the place of one of the leaves."""
        try:
            after = self.evaluate([*self.leaves[:place], other, *self.leaves[place + 1 :]])
        except FormatError:
            return False
        return [(y.shape, y.dtype) for y in after] == [(y.shape, y.dtype) for y in before] and all(
            torch.equal(_bits(x), _bits(y)) for x, y in zip(before, after, strict=True)
        )

    def _called(self, leaves: Sequence[torch.Tensor], exactly: bool) -> Outputs:
        given = iter(leaves)
        flat = [next(given) if isinstance(x, torch.Tensor) else copy.deepcopy(x) for x in self._flat[0]]
        args, kwargs, parameters = pytree.tree_unflatten(flat, self._flat[1])
        with torch.no_grad(), modes.placed(self.device), modes.exactly() if exactly else nullcontext():
            try:
                return tensors(self.reference(args, kwargs, parameters))
            except Exception as error:
                how = " in float64" if exactly else ""
                raise FormatError(f"the reference{how}: {type(error).__name__}: {first_line(error)}") from error

    def noted(self) -> tuple[list[tuple[str, tuple[Any, ...], dict[str, Any], Any]], Outputs]:
        """The calls of torch that the reference makes, and its outputs."""
        with modes.NotedCall() as mode:
            outputs = self.evaluate(self.leaves)
        return mode.calls, outputs


class Problem(ABC):
    """A task whose reference has been imported. gain: what a module's weights are multiplied by, where it draws them."""

    gain = 1.0

    def __init__(self, task: Task, device: torch.device = CPU) -> None:
        self.task, self.device = task, device

    @property
    def cases(self) -> int:
        """How many different calls it has; at least one."""
        return max(1, len(self.task.cases))

    @abstractmethod
    def trial(self, seed: int, case: int = 0, limit: int | None = None, model_seed: int = 0) -> TaskTrial:
        """A call with inputs drawn from a seed, and where the task is a module parameters drawn from another.

        limit: the most bytes that its tensors may take, for which sizes are reduced where the format lets them be; the
        note of the trial says so. FormatError where the reference cannot make inputs.
        """


def _others(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """What a tensor that is not read may hold, NaN last; integers that are indices would not survive that."""
    if not (x.is_floating_point() or x.is_complex()):
        yield torch.zeros_like(x)
        yield torch.ones_like(x)
    yield poisoned(extent(x.shape, x.stride()), x.dtype, x).as_strided(x.shape, x.stride())


def _own(x: torch.Tensor, exactly: bool) -> torch.Tensor:
    """A copy, which the reference may write into."""
    if exactly and x.dtype == torch.complex64:
        return x.detach().to(torch.complex128)
    raised = exactly and (x.dtype in modes.WIDENED or x.dtype in SMALL_FLOATS)
    return x.detach().to(torch.float64, copy=True) if raised else x.detach().clone()


def _bits(x: torch.Tensor) -> torch.Tensor:
    """The bytes of the numbers, in the order of the tensor."""
    x = x.detach().resolve_conj().reshape(-1).contiguous()
    return (torch.view_as_real(x) if x.is_complex() else x).view(torch.uint8)


def first_line(error: BaseException) -> str:
    """The first line of an error, at most 200 characters."""
    return (str(error).strip().splitlines() or [""])[0][:200]
