"""Sentences about a trace: what an access costs, what it would cost at best, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from kernelmux.emulator.texts import bytes_text, counted, number
from kernelmux.emulator.tracing.traffic import Traffic
from kernelmux.emulator.tracing.warp_requests import BANKS, NO_LANE, SECTOR, WORD

VERBS = {
    "load": "loads",
    "ldmatrix": "ldmatrix loads",
    "store": "stores",
    "atomic": "atomics",
    "reduction": "reductions",
    "copy": "copies",
}
PREPOSITIONS = {"load": "of", "ldmatrix": "of", "store": "to", "atomic": "on", "reduction": "on", "copy": "of"}
EXCESS = 1.5  # times the bytes that a call has to move: more are worth a sentence
FINE = "every access to global memory is coalesced, no access to shared memory waits for a bank"


@dataclass(frozen=True)
class Reading:
    """One sentence about a source line; wasted: sectors or passes over the banks above the least."""

    line: Any
    wasted: int
    verdict: str
    text: str

    def place(self, file: str) -> str:
        """ "line 34: ", with the name of a file that is not `file`; nothing for code without a line."""
        if not self.line.number:
            return ""
        return f"line {self.line.number}: " if self.line.file == file else f"{self.line.file}:{self.line.number}: "


def readings(launch: Any) -> list[Reading]:
    """What keeps a launch (a `LaunchTrace`) from the least traffic, the most wasteful first."""
    wasteful = [_reading(line, t) for line in launch.lines for t in line.traffic if t.cost > t.least]
    split = [
        Reading(line, 0, "divergence", f"{line.divergent:,} of {line.branches:,} branches split their warp")
        for line in launch.lines
        if line.divergent
    ]
    return sorted(wasteful, key=lambda r: -r.wasted) + split


def excess(launch: Any) -> str:
    """How many times the bytes that the call has to move a launch moves; "" if that is not known, or near the least."""
    times = launch.moved / launch.needed if launch.needed else 0.0
    if times <= EXCESS:
        return ""
    text = f"requests move {number(times)} times the bytes that the call has to move"
    text += f" ({bytes_text(launch.moved)} for {bytes_text(launch.needed)})"
    sectors, again = launch.total("sectors", "global"), launch.total("repeated", "global")
    if again:
        text += f"; {again / sectors:.0%} of the sectors the same block had touched before"
    return f"{text}: what is read again could stay in shared memory or registers"


def _reading(line: Any, traffic: Traffic) -> Reading:
    describe = _conflicts if traffic.space == "shared" else _sectors
    return Reading(line, traffic.cost - traffic.least, traffic.verdict, describe(traffic))


def subject(traffic: Traffic) -> str:
    """The kind of access and its target: "stores to y", "loads of shared memory"."""
    place = "shared memory" if traffic.space == "shared" else traffic.argument
    return f"{VERBS[traffic.operation]} {PREPOSITIONS[traffic.operation]} {place}"


def _sectors(traffic: Traffic) -> str:
    text = f"{subject(traffic)} touch {counted(traffic.per_request, 'sectors')} per request where "
    text += f"{number(traffic.least_per_request)} would do: {_why_sectors(traffic)}"
    if traffic.verdict == "cached":
        text += f"; {traffic.reuse:.0%} of them the block had touched before, which the L1 cache can serve"
    return text


def _why_sectors(traffic: Traffic) -> str:
    stride, share = spacing(traffic)
    if stride is None or share < 0.7:
        return "the addresses of a warp follow no single stride"
    if abs(stride) != traffic.size:
        return (
            f"consecutive threads {'write' if traffic.operation == 'store' else 'access'} {abs(stride):,} bytes apart"
        )
    if traffic.example is not None and (first := int(traffic.example[traffic.example != NO_LANE][0]) % SECTOR):
        return f"consecutive threads are side by side, but the first is {first} bytes past the start of a sector"
    return "consecutive threads are side by side, in rows that begin inside of a sector"


def _conflicts(traffic: Traffic) -> str:
    text = f"{subject(traffic)} take {counted(traffic.per_request, 'passes')} over the banks where "
    text += f"{number(traffic.least_per_request)} would do: "
    stride, share = spacing(traffic)
    if stride is None or share < 0.7:
        return text + "different words of one bank meet in a pass"
    if stride == 0:
        return text + "all threads update one word, one after another"
    period = BANKS * WORD
    if stride % period == 0:
        return text + f"consecutive threads are {abs(stride):,} bytes apart, all in the same bank"
    return text + f"consecutive threads are {abs(stride):,} bytes apart, and the banks repeat every {period}"


def spacing(traffic: Traffic) -> tuple[int | None, float]:
    """The most common distance of neighbouring lanes in the example, in bytes, and how many of them have it."""
    if traffic.example is None:
        return None, 0.0
    addresses = traffic.example
    pairs = (addresses[:-1] != NO_LANE) & (addresses[1:] != NO_LANE)
    steps = Counter((addresses[1:] - addresses[:-1])[pairs].tolist())
    if not steps:
        return None, 0.0
    stride, count = steps.most_common(1)[0]
    return int(stride), count / steps.total()
