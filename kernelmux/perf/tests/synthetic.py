"""Rows and results as a GPU run would give them, with times chosen by the tests."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from kernelmux.perf.record.run_file import Results
from kernelmux.perf.rows import roofline
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.roofline import Ceilings, Work
from kernelmux.perf.rows.row_result import NotTimed, Timed
from kernelmux.perf.sweeps.curve import Curve, Point
from kernelmux.perf.timing import noise_floor
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered

H200 = Ceilings(
    copy=4.278e12,
    read=4.39e12,
    host=55e9,
    matmul={"bf16": 792e12, "fp16": 788e12, "tf32": 400e12, "fp32": 51e12},
    gap=1e-6,
    l2=60 << 20,
)
GPU = MeasuringMachine(name="NVIDIA H200", kind="cuda", driver="580.1", versions={"torch": "2.11.0", "triton": "3.6.0"})
SOFTMAX = Work(bytes=2 * 16384 * 8192 * 2, flops=5 * 16384 * 8192, written=16384 * 8192 * 2, dtype="bf16")
PRODUCT = Work(bytes=3 * 8192**2 * 2, flops=2 * 8192**3, written=8192**2 * 2, unit="tensor", dtype="bf16")


def row(op="softmax", backend="cuda", variant="online", us=150.0, work=SOFTMAX, **more):
    """A good row; `more` overrides fields."""
    made = Timed(
        op=op,
        workload="x=16384x8192",
        dtype="bf16",
        backend=backend,
        variant=variant,
        idea="an idea",
        spec=catalog.spec(op).hash,
        source=registered.source_hash(backend, op),
        median_us=us,
        spread=0.01,
        least_us=us * 0.98,
        rounds=50,
        mhz=1590.0,
        held_us=us * 1.1,
        held_mhz=1350.0,
        host_us=12.0,
        graph_us=us * 0.97,
        bytes=work.bytes,
        flops=work.flops,
        unit=work.matrix_format,
        link=work.link,
        budget=0.5,
        point=roofline.point(us / 1e6, work, H200),
    )
    return replace(made, **more)


def failed(error="WrongOutput: y: wrong at [0, 3]", **fields):
    return NotTimed(**row(**fields).identity, status="failed", error=error)


def skipped(error="N > 65536", **fields):
    return NotTimed(**row(**fields).identity, status="skipped", error=error)


def ladder():
    """torch, two CUDA rungs and one of Triton."""
    return [
        row(backend="torch_ref", variant="plain", us=300.0),
        row(backend="triton", variant="resident", us=150.0),
        row(backend="cuda", variant="naive", us=600.0),
        row(backend="cuda", variant="registers", us=130.0),
    ]


def pair(first, second, **fields):
    """Two rows as a run with A/A gives them."""
    return [row(us=first, **fields), row(us=second, again=True, **fields)]


def with_aa():
    """The ladder, each variant 2 % slower the second time."""
    rows = ladder()
    return noise_floor.fold([*rows, *(replace(row, again=True, median_us=row.median_us * 1.02) for row in rows)])


def results(rows, date="2026-11-20", **more):
    command = "python -m kernelmux.perf"
    made = Results(date=date, command=command, machine=GPU, ceilings=H200, rows=tuple(rows))
    return replace(made, **more)


LINES = {
    ("torch_ref", "plain"): 0.6,
    ("triton", "resident"): 0.9,
    ("cuda", "registers"): 0.95,
    ("peers", "torch_compile"): 0.88,
}


def curve(lengths=(256, 512, 1000, 1024, 4096, 50257, 65536), rows=4096, lines=tuple(LINES), **more):
    """A sweep of softmax over the columns, whose kernels need 3 us beside a share of the ceiling."""
    points = []
    for n in lengths:
        work = Work(bytes=2 * rows * n * 2, flops=5 * rows * n, written=rows * n * 2, dtype="bf16")
        for backend, variant in lines:
            us = 3 + work.bytes / (H200.copy * LINES[backend, variant]) * 1e6 * (1 if n % 8 == 0 else 1.3)
            made = row(backend="cuda" if backend == "peers" else backend, variant=variant, us=us, work=work)
            points.append(Point(n, replace(made, workload=f"x={rows}x{n}", backend=backend)))
    told = "python -m kernelmux.perf --sweep softmax:N=256..65536 --record"
    made = Curve("N", f"x={rows}xN", "2026-11-21", told, GPU, H200, tuple(points))
    return replace(made, **more)


def backend_of_their_own(folder: Path, backend: str, add: str) -> dict[str, str]:
    """Install the backend "theirs" in a folder, with these sources; the environment in which it is found."""
    (folder / "their_backend").mkdir()
    (folder / "their_backend" / "__init__.py").write_text(backend)
    (folder / "their_backend" / "add.py").write_text(add)
    (folder / "their-1.0.dist-info").mkdir()
    (folder / "their-1.0.dist-info" / "METADATA").write_text("Name: their\nVersion: 1.0\n")
    (folder / "their-1.0.dist-info" / "entry_points.txt").write_text("[kernelmux.backends]\ntheirs = their_backend\n")
    env = environment()
    return env | {"PYTHONPATH": f"{folder}:{env['PYTHONPATH']}"}


def environment() -> dict[str, str]:
    """The caller's, with its import path: under Bazel or an editable install a child would not find us.

    Without what pytest-xdist left there, if the caller is a worker of it: pytest-benchmark would measure nothing.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    return own | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
