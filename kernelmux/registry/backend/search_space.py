"""What a kernel may be compiled with: parameters and their values, declared beside the kernel whose tiles they are.

    SPACE = Space("triton", "matmul", "persistent", {"BLOCK_M": (64, 128), ...}, rule, key, refusal)

A launcher takes the configuration of a plan from `SPACE.choice(problem)`: what a search on this GPU found
(`registry.backend.tuned_configs`), else what the rule says. The choice is part of what a plan is remembered by, so that it
costs a call nothing, and so that a search can put another in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple, TypeVar

from kernelmux.registry.errors import KernelmuxError

Config = dict[str, Any]
C = TypeVar("C", bound="ConfigChoice")


class Key(NamedTuple):
    """What a configuration was found for. kind: what must be equal (dtype, layouts); sizes: the lengths, in order."""

    kind: str
    sizes: tuple[int, ...]

    @property
    def bucket(self) -> Key:
        """The key with each length rounded up to a power of two."""
        return Key(self.kind, tuple(1 << max(n - 1, 0).bit_length() for n in self.sizes))


@dataclass(frozen=True, eq=False)
class Space:
    """The configurations of one variant, "triton", "matmul", "persistent".

    values: of each parameter, in rising order. rule: the configuration of a problem without a search; it may have values
    that are not listed. key: of a problem, which has a `device` (a GPU's index, -1 without one). refusal: of a
    configuration and a problem, why that cannot run or is never worth it, or None; what is refused is not compiled.
    """

    backend: str
    op: str
    variant: str
    values: Mapping[str, tuple[int, ...]]
    rule: Callable[[Any], Config]
    key: Callable[[Any], Key]
    refusal: Callable[[Config, Any], str | None]
    _choices: list[ConfigChoice] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self.renew()

    @property
    def name(self) -> str:
        return f"{self.op} {self.backend}/{self.variant}"

    @property
    def choice(self) -> ConfigChoice:
        """Who chooses now."""
        return self._choices[-1]

    def renew(self) -> None:
        """Forget what plans have been told: tables are asked again."""
        self._choices[:] = [ConfigChoice(self)]

    def configs(self) -> Iterator[Config]:
        """Every combination of values."""
        return (dict(zip(self.values, values, strict=True)) for values in product(*self.values.values()))

    def holds(self, config: Config) -> bool:
        """Whether a configuration is one of these."""
        return config.keys() == self.values.keys() and all(config[name] in self.values[name] for name in config)

    @contextmanager
    def using(self, choice: C) -> Iterator[C]:
        """Inside the `with`, plans are made with another choice."""
        self._choices.append(choice)
        try:
            yield choice
        finally:
            self._choices.remove(choice)


def lookup(space: Space, problem: Any) -> Any:
    """What the table of the GPU has for a problem, or None: `tuned_configs.find`, which that module puts in its place."""
    raise KernelmuxError("expected kernelmux.registry.backend.tuned_configs to be imported before a plan is made")


class ConfigChoice:
    """Chooses by the table of the GPU, else by the rule. Equal to no other, and so are the plans made with it."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def __call__(self, problem: Any) -> Config:
        """The configuration of a problem."""
        found = lookup(self.space, problem)
        return self.space.rule(problem) if found is None else dict(found.config)


class Forced(ConfigChoice):
    """Chooses one configuration for every problem of a kind. count: of the plans that it was chosen for."""

    def __init__(self, space: Space, config: Config, kind: str) -> None:
        super().__init__(space)
        self.config, self.kind = config, kind
        self.count = 0

    def __call__(self, problem: Any) -> Config:
        if self.space.key(problem).kind != self.kind:
            return super().__call__(problem)
        self.count += 1
        return dict(self.config)
