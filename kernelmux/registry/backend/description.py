"""What a backend says of itself, and what it says of each of its implementations of an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch

from kernelmux.registry.backend.search_space import Space
from kernelmux.registry.spec import numerics
from kernelmux.registry.spec.conditions import Capability, Condition, Unmet, unmet
from kernelmux.registry.util.memory_format import format_of

KERNELS = {"triton": "triton", "cuda": "kernelmux.backends.cuda"}  # backends that are emulated: what a file has of them


def kernels_of(source: ModuleType) -> tuple[str, ...]:
    """The backends of which a module has kernels: something in it comes from their package."""
    return tuple(n for n, package in KERNELS.items() if any(_belongs(v, package) for v in vars(source).values()))


def _belongs(value: Any, package: str) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
    return isinstance(home, str) and f"{home}.".startswith(f"{package}.")


@dataclass(frozen=True)
class Ahead:
    """Calls for which a backend comes before those of higher priority: it would run one of these variants on such a card.

    variants: "matmul/persistent". dtypes: of the leading tensor. why: the reason in a few words. order: how the leading
    tensor, images, lies in memory; None for any.
    """

    variants: frozenset[str]
    dtypes: frozenset[torch.dtype]
    card: Capability
    why: str
    order: torch.memory_format | None = None

    def concerns(self, call: Any) -> bool:
        """Whether card, dtype and order in memory of a call are such."""
        if call.capability is None or not self.card.admits(call.capability):
            return False
        x = call.arguments[call.spec.leading.name]
        return x.dtype in self.dtypes and self.order in (None, format_of(x))


@dataclass(frozen=True)
class Backend:
    """A way to compute operators.

    unavailable: given the device of a call, None or why this backend cannot work there; `package_versions.not_installed`
    says that of a package which the user can install, and the test suites fail for it. priority: the higher is tried first
    by "auto". emulates: on CPU tensors its GPU kernels run on the emulator, so "auto" never picks it there.
    emulation: entered around each emulated call. composite: made of torch's operators, so that autograd, tracing, fake
    tensors and views with the negative bit work as in torch; a backend with kernels of its own has none of these.
    replays: on a GPU every launch goes through a seam that notes it, so that calls may be replayed
    (`registry.call.launch_replay`).
    compilers: given a device where it works, the compilers that it found for its kernels, with version and place, a line
    each; `kernelmux doctor` shows them. ahead: for which calls "auto" tries it before backends of higher priority.
    cores: the first compute capability on whose tensor cores its kernels multiply.
    """

    name: str
    summary: str
    priority: int
    unavailable: Callable[[torch.device], str | None]
    emulates: bool = False
    emulation: Callable[[], AbstractContextManager[object]] = nullcontext
    composite: bool = False
    replays: bool = False
    compilers: Callable[[torch.device], Sequence[str]] = lambda device: ()
    ahead: tuple[Ahead, ...] = ()
    cores: tuple[int, int] = (7, 5)


@dataclass(frozen=True)
class Implementation:
    """One idea of how to compute an operator.

    fn: takes every argument of the spec, in order, scalars normalised; returns fresh tensors, contiguous whatever the
    strides of the inputs (of images: in the order that `Output.order` asks for). One that has no parameter for some
    argument with a default runs only calls that leave it at that (`validation.adapted`).
    idea: the idea in one line.
    requires: conditions a call must meet.
    pays: conditions of the calls that it is for: of others a lesser variant is the quicker one, and takes them unless this
    one is named.
    layout: per tensor "any" strides (default), "last" (unit stride in the last axis), "matrix" (unit stride in one of
    the last two axes) or "contiguous"; what does not fit is copied first.
    arithmetic: how it accumulates (`numerics.ARITHMETICS`), or by output; one of those that the spec allows.
    rounds: what it rounds to the storage dtype beside what the spec allows, which loosens its bound by that much. Only for
    the baselines of a composite backend, and never for the last of a ladder; tables, pages and failures name it.
    deterministic: the same call gives the same bits; False for sums in an order that changes, such as by atomics.
    exempt: properties of the spec that it does not have, by the name of their class, each with the reason; for
    BatchInvariant a condition instead says which calls do not have it, and the others are asked.
    space: the configurations that its kernel may be compiled with, among which `python -m kernelmux.tune` searches.
    """

    fn: Callable[..., Any]
    idea: str
    requires: tuple[Condition, ...] = ()
    pays: tuple[Condition, ...] = field(default=(), kw_only=True)
    layout: Mapping[str, str] = field(default_factory=dict)
    arithmetic: str | Mapping[str, str] = "fp32"
    rounds: tuple[numerics.Rounding, ...] = ()
    deterministic: bool = True
    exempt: Mapping[str, str | Condition] = field(default_factory=dict)
    space: Space | None = None

    def accumulates(self, output: str) -> str:
        """The arithmetic of an output."""
        return self.arithmetic if isinstance(self.arithmetic, str) else self.arithmetic[output]

    @property
    def wording(self) -> tuple[str, ...]:
        """The conditions in words, with those under which it is the choice where no variant is named."""
        return *(c.text for c in self.requires), *(f"by default: {c.text}" for c in self.pays)

    @property
    def declared(self) -> str:
        """What it rounds beside what the spec allows, in words; "" for nothing."""
        return ", ".join(dict.fromkeys(r.what for r in self.rounds))

    def computes(self, output: str, dtype: torch.dtype, scalars: Mapping[str, Any]) -> numerics.Arithmetic:
        """All that its bound needs to know of how it computes an output of a call in this dtype."""
        rounds = tuple(r for r in self.rounds if r.output in ("", output))
        return replace(numerics.arithmetic(self.accumulates(output), dtype, scalars), rounds=rounds)

    def unmet(self, call: Any) -> list[Unmet]:
        """The conditions that a call does not meet; empty if it can run."""
        return [found for condition in self.requires if (found := unmet(condition, call))]

    def pays_for(self, call: Any) -> bool:
        """Whether it is for a call that names no variant, if it can run it."""
        return not any(condition.check(call) for condition in self.pays)

    def reasons(self, call: Any) -> list[str]:
        """Why this implementation cannot run a call; empty if it can."""
        return [str(found) for found in self.unmet(call)]
