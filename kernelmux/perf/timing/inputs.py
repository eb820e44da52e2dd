"""Inputs of a workload: random normal values, in as many copies as it takes to find none of them in the L2 cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.roofline import Work
from kernelmux.perf.timing.clock import l2_bytes
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import Case, seed_of
from kernelmux.registry.spec import Call, OpSpec, Tensor, value_domains

COLD = 3  # copies together are this many times the L2 cache
MOST_COPIES = 32


@dataclass(frozen=True)
class Inputs:
    """The calls of one group of rows: the same shapes, other values."""

    calls: tuple[Call, ...]

    @property
    def call(self) -> Call:
        return self.calls[0]

    @property
    def work(self) -> Work:
        """What one of the calls must do at least."""
        return work(self.call)

    def arguments(self, implementation: Implementation) -> list[tuple[Any, ...]]:
        """What the implementation takes, per copy, in the layout that it reads."""
        return [registered.laid_out(call, implementation) for call in self.calls]


def work(call: Call) -> Work:
    """What a call must do at least."""
    cost = call.cost
    sizes = [(torch.Size(output.shape(call)), output.dtype_of(call)) for output in call.spec.outputs]
    written = sum(shape.numel() * dtype.itemsize for shape, dtype in sizes)
    return Work(cost.bytes, cost.flops, written, cost.unit, dtypes.SHORT[call.dtype], cost.link)


def planned(row: Row) -> Work:
    """What a row's call must do at least, before it has inputs."""
    spec = catalog.spec(row.op)
    return work(spec.hypothetical(spec.case(row.workload), dtypes.parse(row.dtype)))


def make(row: Row, device: str) -> Inputs:
    """Inputs of a row's group on a device; one copy on a CPU, whose caches stay warm."""
    first = one(row, device)
    copies = _copies(first) if device == "cuda" else 1
    return Inputs((first, *(one(row, device, i) for i in range(1, copies))))


def one(row: Row, device: str, copy: int = 0) -> Call:
    """One set of inputs of a row's group."""
    spec = catalog.spec(row.op)
    return _call(spec, spec.case(row.workload), dtypes.parse(row.dtype), device, copy)


def _copies(call: Call) -> int:
    """How many sets of inputs push one another out of the cache; the free memory decides last."""
    if call.spec.hosted:
        return 1
    size = sum(t.nbytes for t in call.tensors.values())
    wanted = max(2, min(-(-COLD * l2_bytes() // max(size, 1)), MOST_COPIES))
    free = torch.cuda.mem_get_info()[0]
    return max(1, min(wanted, free // 8 // max(size, 1)))


def _call(spec: OpSpec, case: Case, dtype: torch.dtype, device: str, copy: int) -> Call:
    """A call whose tensors have lawful values: see `value_domains`."""
    shapes, scalars, formats = case.parsed
    rng = torch.Generator(device).manual_seed(seed_of(spec.name, case.name, dtype, copy) % (1 << 62))
    kinds = spec.dtypes_for(dtype, formats)
    given = (t for t in spec.tensors if t.name in shapes)
    values = {t.name: case.laid(t.name, _draw(t, shapes[t.name], kinds[t.name], rng)) for t in given}
    return spec.bind(**value_domains.lawful(spec, values, scalars), **scalars)


def _draw(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point:
        drawable = torch.float32 if dtype.itemsize == 1 else dtype
        drawn = torch.randn(shape, dtype=drawable, device=rng.device, generator=rng).to(dtype)
    else:
        info = torch.iinfo(dtype)
        drawn = torch.randint(info.min, info.max, shape, dtype=dtype, device=rng.device, generator=rng)
    if tensor.host and drawn.is_cuda:
        return torch.empty(shape, dtype=dtype, pin_memory=True).copy_(drawn)
    return drawn
