"""What a call costs on the host beside the implementation itself: through the dispatcher, bound, with a gradient wanted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from kernelmux.perf.results import Overhead
from kernelmux.registry import autograd, catalog, dispatch, domains
from kernelmux.registry import backend as registered
from kernelmux.registry.bound import bind
from kernelmux.registry.cases import Case
from kernelmux.registry.gradient import Composed, Gradient
from kernelmux.registry.spec import OpSpec

REPEATS = 31
SECONDS = 0.002  # of one repeat: short ones in turns, so that what the host does meanwhile meets every form
WARMUP = 3  # calls, after which one of a kernel is replayed


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
        emulated = registered.emulates(name, torch.device(device))
        with registered.backend(name).emulation() if emulated else nullcontext():
            times = _interleaved(_forms(spec, values, label))
    except Exception as error:
        return [Overhead(op, name, error=f"{type(error).__name__}: {error}")]
    fields: dict[str, Any] = dict(times)
    return [Overhead(op, label, **fields)]


def _forms(spec: OpSpec, values: tuple[Any, ...], label: str) -> dict[str, Callable[[], Any]]:
    """The ways to call a variant, by the names of their times."""
    name, public = label.partition("/")[0], dispatch.function(spec.name)
    plan, _ = dispatch.resolve(spec, values, label)
    like = [x for i, x in zip(spec.inputs, values, strict=True) if i in spec.tensors]
    scalars = {i.name: x for i, x in zip(spec.inputs, values, strict=True) if i not in spec.tensors}
    bound = bind(spec.name, like, backend=label, **scalars)
    tensors = [x for x in like if x is not None]
    forms: dict[str, Callable[[], Any]] = {
        "direct_us": lambda: plan.run(values),
        "through_us": lambda: public(*values, backend=label),
        "bound_us": lambda: bound(*tensors),
    }
    if wanted := _wanted(spec, values, name):
        forms["gradient_us"] = lambda: public(*wanted, backend=label)
    return forms


def _wanted(spec: OpSpec, values: tuple[Any, ...], backend: str) -> tuple[Any, ...]:
    """The values with a gradient wanted of every tensor that has one; nothing if the backend has none."""
    if not isinstance(spec.gradient, Gradient | Composed):
        return ()
    pairs = list(zip(spec.inputs, values, strict=True))
    chosen = {i.name for i, x in pairs if isinstance(x, torch.Tensor) and i.name in spec.gradient.tensors}
    if not chosen or any(autograd.lack(spec, backend, name) for name in chosen):
        return ()
    return tuple(x.detach().requires_grad_() if i.name in chosen else x for i, x in pairs)


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


def _interleaved(forms: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median microseconds of each, measured in turns, so that what the host does meanwhile meets all alike."""
    count = {name: _count(call) for name, call in forms.items()}
    rounds = [{name: _batch(call, count[name]) for name, call in forms.items()} for _ in range(REPEATS)]
    return {name: 1e6 * statistics.median(found[name] for found in rounds) for name in forms}


def _count(call: Callable[[], Any]) -> int:
    for _ in range(WARMUP):
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
