"""What a call costs on the host beside the implementation itself: through the dispatcher, bound, with a gradient wanted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from kernelmux.perf.record.run_file import Overhead
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.call.bound_call import bind
from kernelmux.registry.cases import Case
from kernelmux.registry.choice import gradient_support
from kernelmux.registry.spec import OpSpec, value_domains
from kernelmux.registry.spec.gradient import Composed, Gradient

ROUNDS, FEWEST = 31, 7  # at least; and where those would take longer than LONGEST
SECONDS = 0.002  # of one form in one round: short ones in turns, so that what the host does meanwhile meets every form
# Seconds of all rounds of one kernel. On a CPU the kernel runs within its call, and its noise hides CLOSE for minutes.
LONGEST = {"cuda": 3.0, "cpu": 0.5}
CLOSE = 0.1  # microseconds: to so much what is added to a call is to be known
WARMUP = 3  # calls, after which one of a kernel is replayed


def measure(ops: tuple[str, ...], backends: tuple[str, ...], device: str) -> tuple[Overhead, ...]:
    """One per operator, backend and variant that the backend picks by itself for one of the dtypes."""
    rows = []
    for op in ops or catalog.usable():
        for name in backends:
            rows += _rows(op, name, device)
    return tuple(rows)


def _rows(op: str, name: str, device: str) -> list[Overhead]:
    if registered.unavailable(name, torch.device(device)) or not registered.implements(name, op):
        return []
    spec = catalog.spec(op)
    case = next((c for c in spec.cases if c.tier == "smoke"), spec.cases[0])
    found: dict[str, Overhead] = {}
    for dtype in case.dtypes or spec.dtypes:
        values = _values(spec, case, dtype, device)
        try:
            label = dispatch.which(op, *values, backend=name)
        except Exception as error:
            found[name] = Overhead(op, name, error=f"{type(error).__name__}: {error}")
            continue
        if label not in found:
            found[label] = _row(spec, values, label, device)
    return list(found.values())


def _row(spec: OpSpec, values: tuple[Any, ...], label: str, device: str) -> Overhead:
    name = label.partition("/")[0]
    emulated = registered.emulates(name, torch.device(device))
    try:
        with registered.backend(name).emulation() if emulated else nullcontext():
            times: dict[str, Any] = _interleaved(_forms(spec, values, label), LONGEST[device])
    except Exception as error:
        return Overhead(spec.name, label, error=f"{type(error).__name__}: {error}")
    return Overhead(spec.name, label, **times)


def _forms(spec: OpSpec, values: tuple[Any, ...], label: str) -> dict[str, Callable[[], Any]]:
    """The ways to call a variant, by the names of their times."""
    name, public = label.partition("/")[0], dispatch.function(spec.name)
    plan, _ = dispatch.resolve(spec, values, label)
    like = [x for i, x in zip(spec.inputs, values, strict=True) if i in spec.tensors]
    scalars = {i.name: x for i, x in zip(spec.inputs, values, strict=True) if i not in spec.tensors}
    bound = bind(spec.name, like, backend=label, **scalars)
    trusting = bind(spec.name, like, backend=label, check=False, **scalars)
    tensors = [x for x in like if x is not None]
    forms: dict[str, Callable[[], Any]] = {
        "direct_us": lambda: plan.run(values),
        "through_us": lambda: public(*values, backend=label),
        "bound_us": lambda: bound(*tensors),
        "unchecked_us": lambda: trusting(*tensors),
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
    if not chosen or any(gradient_support.lack(spec, backend, name) for name in chosen):
        return ()
    return tuple(x.detach().requires_grad_() if i.name in chosen else x for i, x in pairs)


def _values(spec: OpSpec, case: Case, dtype: torch.dtype, device: str) -> tuple[Any, ...]:
    """The arguments of the public call, in order."""
    shapes, scalars, formats = case.parsed
    kinds = spec.dtypes_for(dtype, formats)
    drawn = {name: torch.randn(shape).to(kinds[name]) for name, shape in shapes.items()}
    values = value_domains.lawful(spec, drawn, scalars)
    hosted = {tensor.name for tensor in spec.tensors if tensor.host}
    if device == "cuda":
        values = {name: x.pin_memory() if name in hosted else x.cuda() for name, x in values.items()}
    call = spec.bind(**values, **scalars)
    return tuple(values.get(name, value) for name, value in call.arguments.items())


BASES = {  # what each is compared with
    "through_us": "direct_us",
    "bound_us": "direct_us",
    "unchecked_us": "direct_us",
    "gradient_us": "through_us",
}


def _interleaved(forms: Mapping[str, Callable[[], Any]], longest: float) -> dict[str, float]:
    """The microseconds of each, measured in turns, so that what the host does meanwhile meets all alike.

    The implementation's own time is a median of rounds. To it comes the median of what a form adds to its base in the
    same round: the host's clock changes between rounds. There are as many rounds as that takes (`CLOSE`), for `longest`
    seconds at most.
    """
    count, rounds = {name: _count(call) for name, call in forms.items()}, list[dict[str, float]]()
    end = time.perf_counter() + longest
    while len(rounds) < FEWEST or not (time.perf_counter() > end or (len(rounds) >= ROUNDS and _known(rounds))):
        rounds.append({name: 1e6 * _batch(call, count[name]) for name, call in forms.items()})
    times = {"direct_us": statistics.median(found["direct_us"] for found in rounds)}
    for name, base in BASES.items():
        if name in forms:
            times[name] = times[base] + statistics.median(_added(rounds, name))
    return times


def _added(rounds: list[dict[str, float]], name: str) -> list[float]:
    return [found[name] - found[BASES[name]] for found in rounds]


def _known(rounds: list[dict[str, float]]) -> bool:
    """Whether the median of what each form adds has a standard error of no more than `CLOSE`."""
    quartiles = [statistics.quantiles(_added(rounds, name)) for name in BASES if name in rounds[0]]
    return all(
        0.93 * (high - low) / len(rounds) ** 0.5 <= CLOSE for low, _, high in quartiles
    )  # of a normal distribution


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
