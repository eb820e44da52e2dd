"""Times one row and checks what it computed.

A GPU at its power limit lowers its clock within a few tenths of a second and raises it again as slowly, so a time
belongs to a state. "Burst": the samples follow a rest. "Held": a few samples more, straight after calls back to back,
which give the host time. On an H200 cuBLAS takes about 1400 us for 8192^3 in bf16 in the first state and about 1600 us
in the second, in the same number of clock cycles.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from kernelmux.perf import peers
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows import roofline
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.roofline import Ceilings, Work
from kernelmux.perf.rows.row_result import RooflinePoint, Timed
from kernelmux.perf.timing import untimed_work
from kernelmux.perf.timing.clock import (
    CudaStopwatch,
    Sample,
    Stopwatch,
    SynchronousStopwatch,
    VirtualClock,
    WallStopwatch,
    rest,
)
from kernelmux.perf.timing.graph import replay_us
from kernelmux.perf.timing.inputs import Inputs
from kernelmux.perf.timing.reseed import NEW, Exchange, draw, require_nothing_kept, with_explanation
from kernelmux.perf.timing.stopping import WARMUP, Timing, timing_of, until_known
from kernelmux.perf.timing.verify import Checked, Oracle, WrongOutput
from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import Implementation, tamper_guard
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.spec import Call

FEWEST = 5
ISSUES = 5  # calls that tell how long the stream must be kept busy
HOST_CALLS, HOST_SECONDS = 100, 0.1  # at most, in one batch
HOLD_SECONDS = 0.3  # of batches: the load that brings the held state
HELD, HELD_SECONDS = 9, 0.1  # samples, at most
ROUND_SECONDS = 2e-4  # a round on a CPU repeats the call until it takes about this long


class AboveCeiling(AssertionError):
    """A time that no machine with these ceilings can reach: the measurement is wrong."""


class Laps:
    """Seconds of the parts of a row's work, each since the one before it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def __call__(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part], self.last = now - self.last, now


@dataclass(frozen=True)
class Shared:
    """What rows that do the same work share. fresh: the values that every last timed call meets.

    checked: elements at most that a check computes anew.
    """

    inputs: Inputs
    fresh: Call
    checked: float = math.inf

    @cached_property
    def oracle(self) -> Oracle:
        """The reference of the last timed call."""
        return Oracle(self.fresh, self.checked)

    @cached_property
    def known(self) -> Oracle:
        """The reference of the last set of inputs as it is: libraries may keep what they convert."""
        return Oracle(self.inputs.calls[-1], self.checked)


@dataclass(frozen=True)
class Ready:
    """A row that has been called once: the call by the number of a set of inputs, and the same call timed."""

    call: Callable[[int], Any]
    arguments: list[tuple[Any, ...]]
    sample: Sample
    first_s: float

    @property
    def copies(self) -> int:
        return len(self.arguments)


@dataclass(frozen=True)
class DeviceState:
    """Host time, and what the GPU does before and under load; None on a CPU, or where the clock cannot be read."""

    host_us: float | None = None
    mhz: float | None = None
    held_us: float | None = None
    held_mhz: float | None = None


def time_row(
    row: Row,
    implementation: Implementation,
    shared: Shared,
    benchmark: Any,
    clock: VirtualClock,
    options: PerfOptions,
    ceilings: Ceilings | None,
) -> Timed:
    """Time a row through pytest-benchmark. WrongOutput, AboveCeiling; UnsupportedError for arithmetic without a ceiling."""
    with tf32(shared.inputs.call.arguments.get("precision") == "tf32"):
        return _time_row(row, implementation, shared, benchmark, clock, options, ceilings)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Inside, torch may use tf32 if the rows permit it. Its switch is one for the process, which runs nothing else."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _time_row(
    row: Row,
    implementation: Implementation,
    shared: Shared,
    benchmark: Any,
    clock: VirtualClock,
    options: PerfOptions,
    ceilings: Ceilings | None,
) -> Timed:
    inputs = shared.inputs
    if ceilings is not None:
        roofline.floor(inputs.work, ceilings)  # refuses what has no ceiling, before the work
    laps = Laps()
    prepared = ready(inputs, implementation, clock)
    laps("first calls")
    library = row.backend == peers.NAME
    oracle = shared.known if library else shared.oracle  # now: a call that changes its inputs changes no oracle
    laps("reference")
    if library:
        _prove(prepared.call, prepared.copies, implementation, oracle)
    _require_own_work(prepared.call, inputs, row.backend)
    fresh = None if library else Exchange(prepared.arguments[-1], registered.laid_out(shared.fresh, implementation))
    laps("before the samples")
    timing = _sampled(prepared, fresh, benchmark, options, inputs)
    laps("rest and samples")
    on_gpu = inputs.call.device.type == "cuda"
    held = on_gpu and not options.brief
    state = _held(prepared.call, prepared.sample.stopwatch, timing) if held else DeviceState()
    if on_gpu and not inputs.call.spec.hosted:
        untimed_work.require_none(prepared.call)
    laps("held, host, other streams")
    checked = _checked(prepared, inputs, implementation, oracle, peers.SLACK if library else 1.0)
    own = registered.package(row.backend).startswith("kernelmux.backends.") and not elsewhere.whose(row.op, row.variant)
    if not library and not own:
        _keeps_nothing(row, prepared, inputs, implementation)
    laps("check")
    timed = _timed(row, implementation.idea, timing, checked, inputs.work)
    timed = replace(timed, first_s=prepared.first_s, copies=prepared.copies, parts=laps.seconds, **vars(state))
    return timed if ceilings is None else _placed(timed, prepared.call, inputs, options, ceilings)


def _sampled(prepared: Ready, fresh: Exchange | None, benchmark: Any, options: PerfOptions, inputs: Inputs) -> Timing:
    """Time the samples, on a GPU after a rest. fresh: gives the inputs of the last sample, and of it alone, new values."""
    prepared.call(-1)  # so that the last timed call is not the first on its tensors: what was remembered for them shows
    if fresh:
        prepared.sample.before_last = fresh.put
    if inputs.call.device.type == "cuda":
        rest(options.rest)
    timing = rounds(prepared.sample, benchmark, options, prepared.copies)
    if fresh:
        fresh.take_back()
    return timing


def _checked(prepared: Ready, inputs: Inputs, implementation: Implementation, oracle: Oracle, slack: float) -> Checked:
    """The last timed output, held to `slack` times its bound and then given back; WrongOutput if it is further off."""
    sample, last = prepared.sample, prepared.copies - 1
    try:
        checked = oracle.check(sample.result, implementation, slack)
    except WrongOutput as error:
        raise with_explanation(
            error, sample.result, partial(prepared.call, last), inputs, last, implementation, oracle.limit
        ) from None
    sample.result = None
    return checked


def _placed(
    timed: Timed, call: Callable[[int], Any], inputs: Inputs, options: PerfOptions, ceilings: Ceilings
) -> Timed:
    """The row with its point on the roofline and its time in a CUDA graph."""
    point = against(timed, inputs.work, ceilings)
    graph_us, note = (None, "") if options.brief else _replayed(call, inputs, timed.median_us)
    untimed_work.require_captured(graph_us, note, point)
    return replace(timed, point=point, graph_us=graph_us, graph_note=note)


def ready(inputs: Inputs, implementation: Implementation, clock: VirtualClock) -> Ready:
    """Call a row, which compiles it, and choose how it is timed; WrongOutput if it hands out memory of its inputs."""
    arguments = inputs.arguments(implementation)
    copies = len(arguments)

    def call(i: int) -> Any:
        return implementation.fn(*arguments[i % copies])

    on_gpu = inputs.call.device.type == "cuda"
    first_s = _compile(call, arguments[0])
    for i in range(1, copies):  # what calls remember by address, such as tensor maps, is not made within the samples
        call(i)
    stopwatch = _stopwatch(inputs, _issue_us(call) if on_gpu else _host_us(call))
    return Ready(call, arguments, Sample(call, stopwatch, clock), first_s)


def _require_own_work(call: Callable[[int], Any], inputs: Inputs, backend: str) -> None:
    """WrongOutput if a call computes by calling what it is compared with."""
    with tamper_guard.Alarm(inputs.call.spec, backend) as alarm:
        call(0)
    if alarm.heard:
        raise WrongOutput(alarm.heard)


def _keeps_nothing(row: Row, prepared: Ready, inputs: Inputs, implementation: Implementation) -> None:
    """WrongOutput if a function from elsewhere is faster on values that it knows: its samples were of those."""
    device, last = inputs.call.device.type, prepared.copies - 1
    drawn = (registered.laid_out(draw(row, device), implementation) for _ in range(NEW))
    exchanges = (Exchange(prepared.arguments[last], values) for values in drawn)
    stopwatch = prepared.sample.stopwatch if device == "cuda" else WallStopwatch()
    require_nothing_kept(partial(prepared.call, last), exchanges, stopwatch)


def _held(call: Callable[[int], Any], stopwatch: Stopwatch, timing: Timing) -> DeviceState:
    """The clock of the samples so far, the host time, and time and clock under the load that it took."""
    mhz = getattr(stopwatch, "mhz", None)
    host_us = _host_us(call, on_gpu=True)
    count = max(1, min(HELD, int(HELD_SECONDS * 1e6 / timing.median_us)))
    seconds = [stopwatch(partial(call, i))[0] for i in range(count)]
    return DeviceState(host_us, mhz, statistics.median(seconds) * 1e6, getattr(stopwatch, "mhz", None))


def _compile(call: Callable[[int], Any], arguments: tuple[Any, ...]) -> float:
    """Seconds of the first call, which compiles; WrongOutput if it hands out memory of its inputs."""
    start = time.perf_counter()
    result = call(0)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    owned = {t.untyped_storage().data_ptr() for t in arguments if isinstance(t, torch.Tensor)}
    for out in result if isinstance(result, tuple) else (result,):
        if out.numel() and out.untyped_storage().data_ptr() in owned:
            raise WrongOutput("the output shares memory with an input")
    return seconds


def _prove(call: Callable[[int], Any], copies: int, implementation: Implementation, oracle: Oracle) -> None:
    """WrongOutput if another library computes something else: it is checked before it is timed.

    It gets every set of inputs, for some libraries keep what they convert.
    """
    for i in range(copies):
        result = call(i)
    oracle.check(result, implementation, peers.SLACK)


def _issue_us(call: Callable[[int], Any]) -> float:
    """Microseconds of single Python calls, few enough to leave the GPU cool."""
    return statistics.median(_batch(call, 1, on_gpu=True) for _ in range(ISSUES)) * 1e6


def _host_us(call: Callable[[int], Any], on_gpu: bool = False) -> float:
    """Microseconds of the Python call, with the device left to work on its own for HOLD_SECONDS."""
    began = time.perf_counter()
    issued = _batch(call, 1, on_gpu)
    whole = time.perf_counter() - began
    count = max(1, min(HOST_CALLS, int(HOST_SECONDS / max(whole, 1e-7))))
    times = [_batch(call, count, on_gpu) for _ in range(3)] if count > 3 else [issued]
    while on_gpu and time.perf_counter() - began < HOLD_SECONDS:
        times.append(_batch(call, count, on_gpu))
    return statistics.median(times) * 1e6


def _batch(call: Callable[[int], Any], count: int, on_gpu: bool) -> float:
    start = time.perf_counter()
    for i in range(count):
        call(i)
    seconds = time.perf_counter() - start
    if on_gpu:
        torch.cuda.synchronize()
    return seconds / count


def _stopwatch(inputs: Inputs, host_us: float) -> Stopwatch:
    if inputs.call.device.type != "cuda":
        return WallStopwatch(max(1, int(ROUND_SECONDS / max(host_us * 1e-6, 1e-7))))
    return SynchronousStopwatch() if inputs.call.spec.hosted else CudaStopwatch(host_us)


def rounds(sample: Sample, benchmark: Any, options: PerfOptions, copies: int = 1) -> Timing:
    """As many rounds as the time budget of a row allows, through pytest-benchmark."""
    sample()
    if options.until_known:
        return until_known(sample, benchmark, copies)
    started = time.perf_counter()
    sample()
    seconds = max(time.perf_counter() - started, 1e-9)
    count = max(FEWEST, min(options.samples, int(options.budget / seconds)))
    sample.end_on(copies - 1, WARMUP + count, copies)
    benchmark.pedantic(sample, rounds=count, iterations=1, warmup_rounds=WARMUP)
    return timing_of(benchmark, count)


def _timed(row: Row, idea: str, timing: Timing, checked: Checked, work: Work) -> Timed:
    return Timed(
        **row.identity,
        **vars(timing),
        **vars(checked),
        idea=idea,
        spec=catalog.spec(row.op).hash,
        source=registered.source_hash(row.backend, row.op, row.variant),
        bytes=work.bytes,
        flops=work.flops,
        unit=work.matrix_format,
        link=work.link,
    )


def against(timed: Timed, work: Work, ceilings: Ceilings) -> RooflinePoint:
    """The row against its roofs; AboveCeiling if it is faster than they allow."""
    seconds = timed.median_us / 1e6
    if reason := roofline.above(seconds, work, ceilings):
        raise AboveCeiling(reason)
    return roofline.point(seconds, work, ceilings)


def _replayed(call: Callable[[int], Any], inputs: Inputs, median_us: float) -> tuple[float | None, str]:
    """Microseconds per call inside a CUDA graph, or None and why the call cannot be captured."""
    if inputs.call.spec.hosted:
        return None, "the host takes part"
    rest()
    return replay_us(call, len(inputs.calls), median_us)
