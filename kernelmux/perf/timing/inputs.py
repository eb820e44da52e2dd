"""Inputs of a workload: random normal values, in as many copies as it takes to find none of them in the L2 cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.roofline import Work
from kernelmux.perf.timing import sampling
from kernelmux.perf.timing.clock import l2_bytes
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import Case, seed_of
from kernelmux.registry.spec import Call, OpSpec, Tensor, value_domains
from kernelmux.registry.spec.signature import Spec

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
    """A call whose tensors have lawful values: see `lawful`."""
    shapes, scalars, formats = case.parsed
    rng = torch.Generator(device).manual_seed(seed_of(spec.name, case.name, dtype, copy) % (1 << 62))
    kinds = spec.dtypes_for(dtype, formats)
    given = (t for t in spec.tensors if t.name in shapes)
    values = {t.name: case.laid(t.name, _draw(t, shapes[t.name], kinds[t.name], rng)) for t in given}
    return spec.bind(**lawful(spec, values, scalars), **scalars)


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


# --- inputs that follow from others ----------------------------------------------------------------------------------


def lawful(spec: OpSpec, values: Mapping[str, Any], scalars: Mapping[str, Any]) -> dict[str, Any]:
    """As `value_domains.lawful`, in pieces where the whole needs more memory than a check may use.

    The output and the sums of attention come from all its scores in float64, which for 3 x 32 heads of 6,976 queries and
    keys are 35 GiB, and more than one such matrix at a time.
    """
    if not _follow(spec, values):
        return value_domains.lawful(spec, values, scalars)
    call = spec.bind(**values, **scalars)
    need, limit = sampling.work(call), sampling.room(call) / sampling.LIVE
    axes = _piecewise(call) if need > limit else []
    return _within(call, dict(values), scalars, axes, limit / need)


def _follow(spec: Spec, given: Mapping[str, Any]) -> list[value_domains.Computed]:
    """How the tensors that follow from others are made of them."""
    domains = (t.domain for t in spec.tensors if t.name in given)
    return [domain for domain in domains if isinstance(domain, value_domains.Computed)]


def _within(
    call: Call, values: dict[str, Any], scalars: Mapping[str, Any], axes: list[sampling.FreeAxis], share: float
) -> dict[str, Any]:
    """Lawful values of a call, computed for this share of it at a time; for more if these axes do not divide so far."""
    if share >= 1 or not axes:
        return value_domains.lawful(call.spec, values, scalars)
    free, *others = axes
    length = sampling.lengths(call)[free.axis]
    each = max(1, int(length * share))
    found: dict[str, Any] = {}
    for start in range(0, length, each):
        cut = free.cut(call, torch.arange(start, min(start + each, length)))
        part = dict(zip(call.arguments, sampling.cut_arguments(call, tuple(call.arguments.values()), cut), strict=True))
        tensors = {name: part[name] for name in values}
        piece = _within(call.spec.bind(**tensors, **scalars), tensors, scalars, others, share * length / each)
        _put(call, piece, found, values, cut)
    return found


def _piecewise(call: Call) -> list[sampling.FreeAxis]:
    """The axes along which the computed inputs fall into pieces."""
    names = tuple(call.arguments)

    def evaluate(spec: Spec, arguments: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        given = dict(zip(names, arguments, strict=True))
        return tuple(domain.function(given) for domain in _follow(spec, call.tensors))

    lengths = sampling.lengths(call)
    found = sampling.independent(call, evaluate)
    return [free for free in found if free.picker == "spread" and lengths[free.axis] > 1]


def _put(
    call: Call, piece: Mapping[str, Any], found: dict[str, Any], values: Mapping[str, torch.Tensor], cut: sampling.Cut
) -> None:
    """Put the tensors of a piece, whose positions lie side by side, where they belong in those of the whole."""
    for tensor in call.spec.tensors:
        if tensor.name not in values:
            continue
        whole = values[tensor.name]
        out = found.setdefault(tensor.name, torch.empty_like(whole))
        letters = tensor.named(whole.shape)
        out[tuple(_span(cut.positions.get(letter)) for letter in letters)] = piece[tensor.name]


def _span(positions: torch.Tensor | None) -> slice:
    return slice(None) if positions is None else slice(int(positions[0]), int(positions[-1]) + 1)
