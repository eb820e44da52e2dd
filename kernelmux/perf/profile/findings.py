"""What a timeline shows: pauses of the GPU, stretches that wait for launches, tiny and top kernels, copies, operators."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

from kernelmux.perf.profile.timeline import COPY, FILL, KERNEL, OPERATOR, OURS, PYTHON, RANGE, RUNTIME, Span, Timeline
from kernelmux.perf.rows.thresholds import BUSY, IDLE_US, TINY_US

FEWEST = 10  # kernels of a stretch
STEP = "ProfilerStep"  # the range of a step of the schedule
WAITS = ("Synchronize", "cudaMemcpy", "cuMemcpy", "_local_scalar_dense", "aten::item", "aten::nonzero")


@dataclass(frozen=True)
class Pause:
    """Time in which a GPU had nothing to do, between two pieces of work."""

    duration: float
    before: Span
    after: Span


@dataclass(frozen=True)
class Stretch:
    """Kernels one after the other, each of which the GPU had to wait for. busy: share of the stretch with work."""

    start: float
    duration: float
    kernels: int
    busy: float
    median_us: float
    names: tuple[str, ...]


@dataclass(frozen=True)
class Sum:
    """Spans of one name. facts: of the longest of them."""

    name: str
    count: int
    total_us: float
    longest: Span

    @property
    def mean_us(self) -> float:
        return self.total_us / self.count


@dataclass(frozen=True)
class Copies:
    """Copies of one kind, such as "Memcpy HtoD (Pageable -> Device)"; bytes are 0 where the trace has none."""

    name: str
    count: int
    total_us: float
    bytes: int

    @property
    def rate(self) -> float:
        """GB/s."""
        return self.bytes / self.total_us / 1e3 if self.total_us else 0.0


@dataclass(frozen=True)
class Operator:
    """Calls of one range of kernelmux: time on the host, and of the kernels that they launched."""

    name: str
    calls: int
    host_us: float
    kernels: int
    gpu_us: float


@dataclass(frozen=True)
class Gpu:
    """What one GPU did. window_us: from the beginning of its first work to the end of its last."""

    device: int
    name: str
    window_us: float
    busy_us: float
    pauses: tuple[Pause, ...]
    stretches: tuple[Stretch, ...]
    kernels: tuple[Sum, ...]
    tiny: tuple[Sum, ...]
    copies: tuple[Copies, ...]

    @property
    def busy(self) -> float:
        return self.busy_us / self.window_us if self.window_us else 0.0


def gpus(line: Timeline) -> list[Gpu]:
    """One for each GPU with work."""
    return [_gpu(line, device) for device in line.devices]


def _gpu(line: Timeline, device: int) -> Gpu:
    work = line.on(device)
    kernels = [s for s in work if s.kind == KERNEL]
    blocks = _merged(work)
    return Gpu(
        device=device,
        name=line.gpus.get(device, ""),
        window_us=blocks[-1][1] - blocks[0][0],
        busy_us=sum(end - start for start, end, _, _ in blocks),
        pauses=tuple(_pauses(blocks)),
        stretches=tuple(_stretches(line, blocks)),
        kernels=sums(kernels),
        tiny=sums(s for s in kernels if s.duration < TINY_US),
        copies=_copies(s for s in work if s.kind in (COPY, FILL)),
    )


Block = tuple[float, float, Span, Span]  # start, end, its first span, the span that ends last


def _merged(work: Sequence[Span]) -> list[Block]:
    """The times in which any stream has work, one after the other."""
    blocks: list[Block] = []
    for span in work:
        if blocks and span.start <= blocks[-1][1]:
            start, end, first, last = blocks[-1]
            blocks[-1] = (start, max(end, span.end), first, span if span.end > end else last)
        else:
            blocks.append((span.start, span.end, span, span))
    return blocks


def _pauses(blocks: Sequence[Block]) -> list[Pause]:
    """The pauses from `IDLE_US` on, the longest first."""
    pairs = pairwise(blocks)
    found = [Pause(b[0] - a[1], a[3], b[2]) for a, b in pairs if b[0] - a[1] >= IDLE_US]
    return sorted(found, key=lambda p: -p.duration)


def why(line: Timeline, pause: Pause) -> str:
    """Why nothing ran: what the host did, as far as the trace knows."""
    start, after = pause.before.end, pause.after
    launch = line.launched(after)
    if launch and launch.end < start:
        return "the next work was queued before: it waited for another stream, an event or a copy"
    end = launch.start if launch else after.start
    share = [(min(s.end, end) - max(s.start, start), s) for s in line.host if s.start < end and s.end > start]
    waited = [s for _, s in share if _waits(s) and s.start <= start + 0.1 * (end - start)]
    drained = f"the queue had run empty at {max(waited, key=lambda s: s.start).name}; then " if waited else ""
    around = {s for _, s in share if s.name.startswith(STEP) or (s.kind == RANGE and s.start <= start)}
    inside = [(part, s) for part, s in share if not _waits(s) and s not in around]
    long = [(part, s) for part, s in inside if part >= 0.5 * (end - start)]
    if not long:
        return f"{drained}the host launched nothing, and no operator ran: Python, input data, or a sleep"
    longest = min(long, key=lambda pair: pair[1].duration)[1]
    return f"{drained}the host was in {longest.name}"


def _waits(span: Span) -> bool:
    return span.kind in (*RUNTIME, OPERATOR) and any(text in span.name for text in WAITS)


def _stretches(line: Timeline, blocks: Sequence[Block]) -> list[Stretch]:
    """Runs of short blocks with a gap before each, whose launch came after the work before had ended; longest first."""
    runs: list[list[Block]] = [[]]
    for before, block in pairwise(blocks):
        gap = block[0] - before[1]
        if gap < IDLE_US and _starved(line, before, block):
            runs[-1].append(block)
        else:
            runs.append([block] if gap >= IDLE_US else [])
    found = [_stretch(run) for run in runs if len(run) >= FEWEST]
    return sorted((s for s in found if s.busy < BUSY.poor), key=lambda s: -s.duration)


def _starved(line: Timeline, before: Block, block: Block) -> bool:
    """Whether the GPU waited for the launch of a block; where the trace has no launches, any gap counts."""
    launch = line.launched(block[2])
    return launch.end > before[1] if launch else block[0] > before[1]


def _stretch(run: Sequence[Block]) -> Stretch:
    start, end = run[0][0], run[-1][1]
    times = [b[1] - b[0] for b in run]
    names = [s.name for s in sums(b[2] for b in run)]
    busy = sum(times) / (end - start) if end > start else 1.0
    return Stretch(start, end - start, len(run), busy, statistics.median(times), tuple(names[:3]))


def sums(spans: Iterable[Span]) -> tuple[Sum, ...]:
    """Spans by name, the largest total first."""
    groups: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        groups[span.name].append(span)
    made = (Sum(n, len(g), sum(s.duration for s in g), max(g, key=lambda s: s.duration)) for n, g in groups.items())
    return tuple(sorted(made, key=lambda s: -s.total_us))


def _copies(spans: Iterable[Span]) -> tuple[Copies, ...]:
    groups: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        groups[span.name].append(span)
    made = (
        Copies(name, len(group), sum(s.duration for s in group), sum(int(s.facts.get("bytes", 0)) for s in group))
        for name, group in groups.items()
    )
    return tuple(sorted(made, key=lambda c: -c.total_us))


_at = itemgetter(0)


def operators(line: Timeline) -> tuple[Operator, ...]:
    """The ranges `op[backend/variant]` with the work that was launched inside of them, the longest on the GPU first."""
    ranges = [s for s in line.host if s.kind == RANGE and OURS.fullmatch(s.name)]
    by_lane: dict[str, list[tuple[float, Span]]] = defaultdict(list)
    for work in line.work:
        if launch := line.launched(work):
            by_lane[launch.lane].append((launch.start, work))
    for pairs in by_lane.values():
        pairs.sort(key=_at)
    groups: dict[str, list[tuple[Span, list[Span]]]] = defaultdict(list)
    for span in ranges:
        pairs = by_lane[span.lane]
        first, end = bisect_left(pairs, span.start, key=_at), bisect_right(pairs, span.end, key=_at)
        groups[span.name].append((span, [work for _, work in pairs[first:end]]))
    made = [_operator(name, group) for name, group in groups.items()]
    return tuple(sorted(made, key=lambda o: (-o.gpu_us, -o.host_us)))


def _operator(name: str, group: Sequence[tuple[Span, list[Span]]]) -> Operator:
    work = [w for _, inside in group for w in inside]
    host = sum(span.duration for span, _ in group)
    return Operator(name, len(group), host, len(work), sum(w.duration for w in work))


def own_times(line: Timeline) -> tuple[Sum, ...]:
    """Operators of torch by the time that is theirs alone, without what they call; for a trace without a GPU."""
    made: list[Span] = []
    for lane in {s.lane for s in line.host}:
        made += _own([s for s in line.host if s.lane == lane and s.kind not in (PYTHON, RANGE)])
    return sums(made)


def _own(spans: Sequence[Span]) -> list[Span]:
    """Nested spans of one thread, each without the time of those inside of it."""
    inner = [0.0] * len(spans)
    open_: list[int] = []
    for i, span in enumerate(spans):
        while open_ and spans[open_[-1]].end <= span.start:
            open_.pop()
        if open_:
            inner[open_[-1]] += span.duration
        open_.append(i)
    return [Span(s.name, s.kind, s.start, max(0.0, s.duration - t), s.lane) for s, t in zip(spans, inner, strict=True)]
