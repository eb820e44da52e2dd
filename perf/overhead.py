"""What the dispatcher costs: `kx.op(x)` against the implementation itself, on a small input, in host microseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from kernelmux.perf.results import Overhead
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, dispatch, domains
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import OpSpec

REPEATS = 15
SECONDS = 0.005  # of one repeat


def measure(ops: tuple[str, ...], backends: tuple[str, ...], device: str) -> tuple[Overhead, ...]:
    """One per operator and backend, for the variant that the backend picks by itself."""
    rows = []
    for op in ops or catalog.names():
        for name in backends:
            rows += _row(op, name, device)
    return tuple(rows)


def _row(op: str, name: str, device: str) -> list[Overhead]:
    spec = catalog.spec(op)
    case = next((c for c in spec.cases if c.tier == "smoke"), spec.cases[0])
    values = _values(spec, case, device)
    if registered.unavailable(name, torch.device(device)) or not registered.implements(name, op):
        return []
    try:
        label = dispatch.which(op, *values, backend=name)
        implementation = registered.variants(name, op)[label.partition("/")[2]]
        arguments = tuple(spec.bind(*values).arguments.values())
        public = dispatch.function(op)
        emulated = registered.emulates(name, torch.device(device))
        with registered.backend(name).emulation() if emulated else nullcontext():
            times = _interleaved(lambda: implementation.fn(*arguments), lambda: public(*values, backend=label))
    except Exception as error:
        return [Overhead(op, name, error=f"{type(error).__name__}: {error}")]
    return [Overhead(op, label, *times)]


def _values(spec: OpSpec, case: Case, device: str) -> tuple[Any, ...]:
    """The arguments of the public call, in order."""
    shapes, scalars, formats = case.parsed
    kinds = spec.dtypes_for((case.dtypes or spec.dtypes)[0], formats)
    drawn = {name: torch.randn(shape).to(kinds[name]) for name, shape in shapes.items()}
    values = domains.lawful(spec, drawn, scalars)
    hosted = {tensor.name for tensor in spec.tensors if tensor.host}
    if device == "cuda":
        values = {name: x.pin_memory() if name in hosted else x.cuda() for name, x in values.items()}
    call = spec.bind(**values, **scalars)
    return tuple(values.get(name, value) for name, value in call.arguments.items())


def _interleaved(direct: Callable[[], Any], through: Callable[[], Any]) -> tuple[float, float]:
    """The least microseconds of both, measured in turns: whatever disturbs a host only ever adds time."""
    count = _count(through)
    pairs = [(_batch(direct, count), _batch(through, count)) for _ in range(REPEATS)]
    return min(p[0] for p in pairs) * 1e6, min(p[1] for p in pairs) * 1e6


def _count(call: Callable[[], Any]) -> int:
    call()
    _drain()
    start = time.perf_counter()
    call()
    _drain()
    return max(3, min(1000, int(SECONDS / max(time.perf_counter() - start, 1e-7))))


def _batch(call: Callable[[], Any], count: int) -> float:
    """Seconds per call without waiting for the device."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    seconds = time.perf_counter() - start
    _drain()
    return seconds / count


def _drain() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
