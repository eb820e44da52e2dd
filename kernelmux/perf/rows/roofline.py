"""The arithmetic of a row: floor, share of the floor, what binds it, and what a practitioner would look at next.

    floor = max(bytes / memory ceiling, flops / compute ceiling)      seconds
    share = floor / median

Ceilings are measured in the process that measures the rows, because a ceiling of another machine says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelmux.perf.rows.row_result import RooflinePoint
from kernelmux.perf.rows.thresholds import BANDWIDTH, COMPUTE, LAUNCH_US
from kernelmux.registry.errors import UnsupportedError

ABOVE = 1.05  # a rate beyond this share of its ceiling is a wrong measurement
# Products in a shorter format that one of fp32 takes on tensor cores: six of three pieces in bf16, three of two in tf32.
OF_PIECES = {"bf16": 6, "tf32": 3}
FP32_UNITS = ("fp32", "fp16", "bf16", "e4m3", "e5m2")  # dtypes whose plain arithmetic is that of the fp32 units
MOSTLY_READ = 0.1  # share of written bytes below which the one-way read ceiling counts


@dataclass(frozen=True)
class Ceilings:
    """What this machine reaches at most; bytes/s and flop/s.

    copy: device memory, read + write. read: device memory, one way. host: pinned host memory to the device.
    matmul: by "bf16", "fp16", "tf32", "fp32", "e4m3", "e5m2" and "i8". held: bf16 once power and clock have settled
    under it.
    gap: seconds between two events with nothing in between. noise: how far the same call twice lies apart, relative.
    """

    copy: float
    read: float
    host: float
    matmul: dict[str, float] = field(default_factory=dict)
    held: float = 0.0
    gap: float = 0.0
    noise: float = 0.0
    l2: int = 0


@dataclass(frozen=True)
class Work:
    """What a call must do at least; `written` of its `bytes` are outputs; unit and dtype pick the compute ceiling."""

    bytes: int
    flops: int
    written: int
    unit: str = "fma"
    dtype: str = "fp32"
    link: str = "device"

    @property
    def matrix_format(self) -> str:
        """The key of the compute ceiling; fp32 on tensor cores is tf32, and small floats without them meet fp32 units."""
        if self.unit == "tensor":
            return "tf32" if self.dtype == "fp32" else self.dtype
        return "fp32" if self.dtype in FP32_UNITS else self.dtype

    @property
    def products_of(self) -> dict[str, int]:
        """The compute ceilings that it may meet, and how many products by each make one of its own."""
        pieces = OF_PIECES if self.unit != "tensor" and self.dtype == "fp32" else {}
        return {self.matrix_format: 1, **pieces}


@dataclass(frozen=True)
class Floor:
    """The least time of a call in seconds, by memory and by arithmetic."""

    memory: float
    compute: float

    @property
    def seconds(self) -> float:
        return max(self.memory, self.compute)

    @property
    def binds(self) -> str:
        return "compute" if self.compute > self.memory else "memory"


def bandwidth(work: Work, ceilings: Ceilings) -> float:
    """The memory ceiling that a call meets."""
    if work.link == "host":
        return ceilings.host
    return ceilings.read if work.written < MOSTLY_READ * work.bytes else ceilings.copy


def floor(work: Work, ceilings: Ceilings) -> Floor:
    """No version of a call is much faster than this; UnsupportedError for arithmetic without a ceiling."""
    return Floor(work.bytes / bandwidth(work, ceilings), work.flops / peak(work, ceilings) if work.flops else 0.0)


def peak(work: Work, ceilings: Ceilings) -> float:
    """The compute ceiling that a call meets. Without one, the call cannot be called bound by memory or by arithmetic.

    Of fp32 it is that of the fp32 units, or of products of pieces on tensor cores where these are faster.
    """
    if ceilings.matmul.get(work.matrix_format, 0.0) <= 0:
        raise UnsupportedError(
            f"no ceiling for arithmetic in {work.matrix_format} (unit {work.unit}) was measured, so no floor is known;"
            f" expected one of {', '.join(ceilings.matmul) or 'none'}: measure it in kernelmux/perf/timing/ceilings.py"
        )
    return max(ceilings.matmul.get(name, 0.0) / count for name, count in work.products_of.items())


def bound_by(seconds: float, least: Floor, link: str = "device") -> str:
    """What limits a call of this duration: launch, host link, memory or compute."""
    if link == "host":
        return "link"
    return "launch" if seconds * 1e6 < LAUNCH_US else least.binds


def above(seconds: float, work: Work, ceilings: Ceilings) -> str | None:
    """Why a time cannot be true, or None. Writes up to the size of the L2 cache may still be in it when a call ends."""
    must = work.bytes - min(work.written, ceilings.l2)
    checked = Floor(must / bandwidth(work, ceilings), floor(work, ceilings).compute)
    if checked.seconds <= ABOVE * seconds:
        return None
    least = f"{checked.seconds * 1e6:.2f} us by {checked.binds}"
    return f"{seconds * 1e6:.2f} us is {checked.seconds / seconds:.2f} times faster than the ceilings allow ({least})"


def rate(seconds: float, work: Work, least: Floor) -> tuple[float, str]:
    """The achieved rate in the unit of what binds the call: TFLOP/s or GB/s."""
    if least.binds == "compute":
        return work.flops / seconds / 1e12, "TFLOP/s"
    return work.bytes / seconds / 1e9, "GB/s"


# Share of the floor from which each hint holds, by what binds the call; hints fit a table column. A time alone does not
# say how a kernel accesses memory, so these do not either: a trace does (`kernelmux emulate`), or ncu (`perf.profile`).
HINTS: dict[str, tuple[tuple[float, str], ...]] = {
    "memory": (
        (0.92, "at the roof"),
        (0.85, "tail blocks? size of grid?"),
        (BANDWIDTH.good, "more, wider loads in flight"),
        (BANDWIDTH.poor, "see its accesses"),
        (0.0, "poor: see its accesses"),
    ),
    "compute": (
        (0.90, "at the roof"),
        (COMPUTE.good, "pipeline depth, tile order"),
        (COMPUTE.poor, "larger tiles, async copies"),
        (0.0, "poor: matrix units in use?"),
    ),
    "link": ((0.80, "at the link's rate"), (0.0, "fewer, larger transfers")),
}
NOISY = 0.2


def advice(bound: str, share: float, spread: float, device_us: float, host_us: float) -> str:
    """What to look at next, with the thresholds of common practice; share of the floor, spread = IQR / median."""
    if spread > NOISY:
        return "noisy: is the GPU shared?"
    if bound == "launch":
        return "fuse it, or a CUDA graph"
    if not bound:
        return ""
    if bound != "link" and host_us > device_us:
        return "host is slower: CUDA graph"
    hints = HINTS.get(bound, ())
    return next((text for least, text in hints if share >= least), "")  # a record may say what nothing here knows


def point(seconds: float, work: Work, ceilings: Ceilings) -> RooflinePoint:
    """A time against its ceilings, as reports show it."""
    least = floor(work, ceilings)
    bound, share = bound_by(seconds, least, work.link), least.seconds / seconds
    achieved, unit = rate(seconds, work, least)
    return RooflinePoint(
        floor_us=least.seconds * 1e6,
        floor_by=least.binds,
        share=share,
        rate=achieved,
        rate_unit=unit,
        bound=bound,
    )
