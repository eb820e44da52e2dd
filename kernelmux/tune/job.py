"""What is searched for: the configuration of one variant for one call."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from kernelmux import emulator
from kernelmux.perf.timing.inputs import Inputs
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import Implementation, device_tables
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.search_space import Config, ConfigChoice, Forced, Key, Space
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.spec import Call

CAPABILITY = (9, 0)  # of the GPU for which kernels are compiled where there is none


@dataclass(frozen=True)
class Job:
    """A variant, a workload as text, and the short name of its dtype."""

    op: str
    backend: str
    variant: str
    workload: str
    dtype: str

    @property
    def label(self) -> str:
        return f"{self.backend}/{self.variant}"

    @property
    def call_text(self) -> str:
        """The workload and its dtype."""
        return f"{self.workload} {self.dtype}"

    @property
    def name(self) -> str:
        return f"{self.op} {self.label}, {self.call_text}"

    @property
    def implementation(self) -> Implementation:
        return registered.variants(self.backend, self.op)[self.variant]

    @property
    def space(self) -> Space:
        """The space of the variant; UnsupportedError if it declares none."""
        if (found := self.implementation.space) is None:
            raise UnsupportedError(f"{self.op} {self.label} declares no space: there is nothing to search")
        return found

    def untouched(self, device: str) -> Call:
        """The call, with tensors whose values are not set; on a CPU they take no memory until they are written."""
        spec = catalog.spec(self.op)
        case = spec.case(self.workload)
        tensors = spec.untouched(case, dtypes.parse(self.dtype), torch.device(device))
        values: dict[str, Any] = {**tensors, **case.scalars}
        return spec.bind(**values, capability=CAPABILITY if device == "cpu" else None)

    def reasons(self, device: str) -> list[str]:
        """Why the variant cannot run the call, on the GPU at hand ("cuda") or on one of `CAPABILITY` ("cpu")."""
        spec = catalog.spec(self.op)
        capability = torch.cuda.get_device_capability() if device == "cuda" else CAPABILITY
        case, dtype = spec.case(self.workload), dtypes.parse(self.dtype)
        call = spec.hypothetical(case, dtype, torch.device(device), capability=capability)
        return list(self.implementation.reasons(call))

    @cached_property
    def identity(self) -> tuple[str, ...]:
        """What a result is remembered by: the job, and what kernels are made of."""
        spec = catalog.spec(self.op).hash
        source = registered.source_hash(self.backend, self.op, self.variant)
        found_with = " ".join(f"{name} {version}" for name, version in device_tables.installed().items())
        return self.op, self.label, self.call_text, spec, source, found_with


class _Asked(Exception):
    """A plan was to be made: of this problem."""


class _Asks(ConfigChoice):
    def __call__(self, problem: Any) -> Config:
        raise _Asked(problem)


def problem_of(job: Job, device: str) -> Any:
    """What the launcher of a job makes of its call, as the space sees it; UnsupportedError if it asks for no tile."""
    try:
        with job.space.using(_Asks(job.space)), compiling(job.backend, device):
            job.implementation.fn(*_arguments(job, job.untouched(device)))
    except _Asked as asked:
        return asked.args[0]
    raise UnsupportedError(f"{job.name}: the call asks for no configuration")


@contextmanager
def compiling(backend: str, device: str = "cpu") -> Iterator[list[Any]]:
    """Inside the `with`, kernels for tensors of a CPU are compiled and do not run; gives what they launch."""
    with ExitStack() as stack:
        launched: list[Any] = []
        if device == "cpu":
            launched = stack.enter_context(emulator.recorder(run=False))
            stack.enter_context(warnings.catch_warnings(action="ignore"))
            stack.enter_context(registered.backend(backend).emulation())
        yield launched


def _arguments(job: Job, call: Call) -> tuple[Any, ...]:
    return Inputs((call,)).arguments(job.implementation)[0]


def compiled(job: Job, config: Config, kind: str) -> int:
    """Compile the kernels of a configuration, without a GPU; bytes of shared memory. Raises what the compiler does."""

    call, space = job.untouched("cpu"), job.space
    with compiling(job.backend) as launched, emulator.triton_driver.with_machine_code():
        with space.using(Forced(space, config, kind)) as forced:
            job.implementation.fn(*_arguments(job, call))
    if not forced.count:
        raise UnsupportedError(f"{job.name}: the call is not of the kind {kind!r}")
    return max((launch.shared for launch in launched), default=0)


@dataclass(frozen=True)
class Candidates:
    """What a search compiles: `chosen`, nearest to the rule first; refused: how many for which reason; how many `left`."""

    key: Key
    rule: Config
    chosen: tuple[Config, ...]
    refused: dict[str, int]
    left: int

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Candidates:
        """What `asdict` took apart, perhaps on another machine."""
        (kind, sizes), chosen = fields["key"], fields["chosen"]
        return cls(**{**fields, "key": Key(kind, tuple(sizes)), "chosen": tuple(chosen)})


def candidates(job: Job, problem: Any, most: int) -> Candidates:
    """At most so many configurations of a job: half of them those that differ least from the rule's, the others spread
    evenly over the rest."""
    space, rule = job.space, job.space.rule(problem)
    fitting, refused = [], Counter[str]()
    for config in space.configs():
        if reason := space.refusal(config, problem):
            refused[reason] += 1
        else:
            fitting.append(config)
    fitting.sort(key=lambda config: _steps(space, config, rule))
    near, rest = fitting[: -(-most // 2)], fitting[-(-most // 2) :]
    count = min(most - len(near), len(rest))
    chosen = (*near, *(rest[i * len(rest) // count] for i in range(count)))
    return Candidates(space.key(problem), rule, chosen, dict(refused), len(fitting) - len(chosen))


def _steps(space: Space, one: Config, other: Config) -> float:
    """How many values lie between two configurations, over all parameters."""
    return sum(abs(_place(values, one.get(n)) - _place(values, other.get(n))) for n, values in space.values.items())


def _place(values: tuple[int, ...], value: int | None) -> float:
    """Where a value stands among others; between two of them for one that is not listed."""
    if value is None or value < values[0]:
        return 0.0
    below = max(i for i, v in enumerate(values) if v <= value)
    return below + (values[below] != value) / 2
