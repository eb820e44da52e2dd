"""The counters of ncu that say most about a kernel, in one table with what they mean and a verdict each."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmux.perf.emulated import ncu
from kernelmux.perf.emulated.ncu import NcuLaunch
from kernelmux.perf.profile.subject import MODULE, Subject
from kernelmux.perf.rows.thresholds import (
    BANDWIDTH,
    COMPUTE,
    CONFLICTS,
    GOOD,
    LAST_WAVE,
    OCCUPANCY,
    POOR,
    SPILLED,
    TRAFFIC,
    USED,
    Level,
)

TIME = "gpu__time_duration.sum"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
MULTIPROCESSORS = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2 = "lts__t_sector_hit_rate.pct"
WAVES, REGISTERS = "launch__waves_per_multiprocessor", "launch__registers_per_thread"
WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
LOCAL = tuple(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st"))
SECTORS = {op: f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st")}
REQUESTS = {op: f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st")}
SHARE_USED = {op: f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.pct" for op in ("ld", "st")}
PASSES = tuple(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in ("ld", "st"))
EXTRA = tuple(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ld", "st"))
METRICS = (
    TIME,
    MEMORY,
    MULTIPROCESSORS,
    TENSOR,
    READ,
    WRITTEN,
    L2,
    WAVES,
    REGISTERS,
    WARPS,
    *LOCAL,
    *SECTORS.values(),
    *REQUESTS.values(),
    *SHARE_USED.values(),
    *PASSES,
    *EXTRA,
)


@dataclass(frozen=True)
class CounterRow:
    """A line of the table. verdict: good, fair, poor, or "" where a number alone says neither."""

    name: str
    value: str
    verdict: str
    meaning: str


def measure(one: Subject, folder: Path) -> list[NcuLaunch] | str:
    """What ncu says of one call, or why it says nothing; its table stays in the folder."""
    tool = ncu.find()
    if tool is None:
        return ncu.MISSING
    known = ncu.known(tool)
    metrics = [m for m in METRICS if m.startswith("launch__") or m.split(".")[0] in known or not known]
    child = [sys.executable, "-m", MODULE, "--launch", *one.words]
    table = folder / f"{one.stem}.ncu.csv"
    problem = ncu.run(tool, child, metrics, table, "--profile-from-start", "off")
    return problem or ncu.read(table.read_text()) or "ncu saw no kernel"


def counters(seen: NcuLaunch, needed: float) -> list[CounterRow]:
    """The lines for one kernel; needed: bytes that the call has to move. What ncu did not measure is left out."""
    made: list[CounterRow] = []
    for line in LINES:
        try:
            made += line(seen.metrics, needed)
        except KeyError:
            continue
    return made


ADVICE = {  # of the lines of the table where they are poor
    "loads: used": "uncoalesced loads: neighbouring threads should read neighbouring elements, or through shared memory",
    "stores: used": "uncoalesced stores: neighbouring threads should write neighbouring elements, or through shared memory",
    "spilled": "registers are spilled to local memory: fewer values per thread, smaller tiles, or a looser launch bound",
    "bank conflicts": "threads of a warp wait for the same bank of shared memory: pad or swizzle its rows",
    "bytes moved": "the same bytes are moved again and again: keep them in shared memory or registers",
    "waves": "the last wave of blocks leaves much of the GPU empty: other sizes of blocks, or as many blocks as fit",
}


def advice(found: Sequence[CounterRow]) -> Iterator[str]:
    """What to look at, in the order of the table."""
    for one in found:
        if one.verdict == POOR and one.name in ADVICE:
            yield f"{one.name} {one.value}: {ADVICE[one.name]}"


Metrics = Mapping[str, float]
Lines = Iterator[CounterRow]


def _time(m: Metrics, needed: float) -> Lines:
    yield CounterRow(
        "time", f"{m[TIME] / 1e3:.1f} us", "", "of the kernel alone, with an empty L2 cache, at the clock as it is"
    )


def _rates(m: Metrics, needed: float) -> Lines:
    """Only what binds a kernel has to be near its peak."""
    memory, compute = m[MEMORY] / 100, m[MULTIPROCESSORS] / 100
    verdicts, where = (BANDWIDTH.verdict(memory), COMPUTE.verdict(compute)), "where it binds"
    told = [v if v == GOOD or GOOD not in verdicts else "" for v in verdicts]
    meaning = f"rate of device memory: {_steps(BANDWIDTH)}, {where}"
    yield CounterRow("memory", f"{memory:.0%} of peak", told[0], meaning)
    meaning = f"busiest unit of the multiprocessors: {_steps(COMPUTE)}, {where}"
    yield CounterRow("compute", f"{compute:.0%} of peak", told[1], meaning)
    if verdicts == (POOR, POOR):
        yield CounterRow(
            "neither", "", POOR, "latency binds: too few loads in flight, too few blocks, or waits at barriers"
        )


def _tensor(m: Metrics, needed: float) -> Lines:
    if m[TENSOR] > 0:
        yield CounterRow(
            "tensor cores", f"{m[TENSOR] / 100:.0%} busy", "", "of the cycles in which the multiprocessors work"
        )


def _moved(m: Metrics, needed: float) -> Lines:
    moved = m[READ] + m[WRITTEN]
    if needed > 0:
        times = moved / needed
        meaning = f"{_mega(moved)} for {_mega(needed)} that the call has to move; what is written may stay in L2"
        yield CounterRow("bytes moved", f"{times:.2f} x", TRAFFIC.verdict(times), meaning)


def _l2(m: Metrics, needed: float) -> Lines:
    yield CounterRow(
        "L2 hits", f"{m[L2]:.0f}%", "", "of the sectors that were asked of L2; of data read once there are none"
    )


def _waves(m: Metrics, needed: float) -> Lines:
    waves = m[WAVES]
    share = waves / math.ceil(waves) if waves else 0.0
    meaning = (
        f"blocks over those that fit at a time; rounded up, {share:.0%} of the places are used: {_steps(LAST_WAVE)}"
    )
    yield CounterRow("waves", f"{waves:.2f}", LAST_WAVE.verdict(share), meaning)


def _occupancy(m: Metrics, needed: float) -> Lines:
    share = m[WARPS] / 100
    verdict = OCCUPANCY.verdict(share)
    meaning = (
        f"warps at work, of those that a multiprocessor holds: {_steps(OCCUPANCY)}, unless each has much in flight"
    )
    yield CounterRow("occupancy", f"{share:.0%}", "" if verdict == POOR and _binds(m) else verdict, meaning)


def _binds(m: Metrics) -> bool:
    """Whether memory or compute is near its peak, so that more warps could not help."""
    return GOOD in (BANDWIDTH.verdict(m[MEMORY] / 100), COMPUTE.verdict(m[MULTIPROCESSORS] / 100))


def _registers(m: Metrics, needed: float) -> Lines:
    yield CounterRow(
        "registers", f"{m[REGISTERS]:.0f}", "", "per thread; 65536 of a multiprocessor are shared by its threads"
    )


def _spills(m: Metrics, needed: float) -> Lines:
    moved = 32 * sum(m[name] for name in LOCAL)
    meaning = "local memory: registers that were spilled, or arrays that are indexed by a variable"
    yield CounterRow("spilled", _mega(moved) if moved else "0", SPILLED.verdict(moved), meaning)


def _sectors(op: str, name: str) -> Callable[[Metrics, float], Lines]:
    def line(m: Metrics, needed: float) -> Lines:
        if not m[REQUESTS[op]]:
            return
        meaning = "32-byte sectors of a warp's request: 4, 8 or 16 are the least for 4, 8 or 16 bytes a lane"
        yield CounterRow(f"{name}: sectors per request", f"{m[SECTORS[op]] / m[REQUESTS[op]]:.1f}", "", meaning)
        if SHARE_USED[op] in m:
            used = m[SHARE_USED[op]] / 100
            meaning = f"share of the bytes of these sectors that some lane asked for: {_steps(USED)}"
            yield CounterRow(f"{name}: used", f"{used:.0%}", USED.verdict(used), meaning)

    return line


def _conflicts(m: Metrics, needed: float) -> Lines:
    passes, extra = (sum(m[name] for name in names) for names in (PASSES, EXTRA))
    if passes:
        share = extra / max(1.0, passes - extra)
        meaning = f"passes over the banks of shared memory above the least ({extra:,.0f} of {passes:,.0f} passes)"
        yield CounterRow("bank conflicts", f"{share:.2f} per pass", CONFLICTS.verdict(share), meaning)


LINES: tuple[Callable[[Metrics, float], Lines], ...] = (
    _time,
    _rates,
    _tensor,
    _moved,
    _l2,
    _waves,
    _occupancy,
    _registers,
    _spills,
    _sectors("ld", "loads"),
    _sectors("st", "stores"),
    _conflicts,
)


def _steps(level: Level) -> str:
    return f"good from {level.good:.0%}, poor below {level.poor:.0%}"


def _mega(count: float) -> str:
    return f"{count / 1e6:.3g} MB"
