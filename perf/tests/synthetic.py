"""Rows and results as a GPU run would give them, with times chosen by the tests."""

from kernelmux.perf import roofline
from kernelmux.perf.roofline import Ceilings, Work
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog

H200 = Ceilings(
    copy=4.278e12,
    read=4.39e12,
    host=55e9,
    matmul={"bf16": 792e12, "fp16": 788e12, "tf32": 400e12, "fp32": 51e12},
    gap=1e-6,
    l2=60 << 20,
)
GPU = {"name": "NVIDIA H200", "kind": "cuda", "driver": "580.1", "versions": {"torch": "2.11.0", "triton": "3.6.0"}}
SOFTMAX = Work(bytes=2 * 16384 * 8192 * 2, flops=5 * 16384 * 8192, written=16384 * 8192 * 2, dtype="bf16")
PRODUCT = Work(bytes=3 * 8192**2 * 2, flops=2 * 8192**3, written=8192**2 * 2, unit="tensor", dtype="bf16")


def row(op="softmax", backend="cuda", variant="online", us=150.0, work=SOFTMAX, **more):
    """A good row; `more` overrides or adds fields."""
    least = roofline.floor(work, H200)
    bound = roofline.bound_by(us / 1e6, least, work.link)
    rate, unit = roofline.rate(us / 1e6, work, least)
    share = least.seconds * 1e6 / us
    fields = {"op": op, "workload": "x=16384x8192", "dtype": "bf16", "backend": backend, "variant": variant, "id": "id"}
    fields |= {"status": "ok", "spec": catalog.spec(op).hash, "source": registered.source_hash(backend, op)}
    fields |= {
        "median_us": us,
        "spread": 0.01,
        "least_us": us * 0.98,
        "rounds": 50,
        "mhz": 1590.0,
        "held_us": us * 1.1,
        "held_mhz": 1350.0,
        "host_us": 12.0,
        "graph_us": us * 0.97,
    }
    fields |= {"bytes": work.bytes, "flops": work.flops, "unit": work.matrix_format, "link": work.link, "bound": bound}
    fields |= {
        "floor_us": least.seconds * 1e6,
        "floor_by": least.binds,
        "share": share,
        "rate": rate,
        "rate_unit": unit,
    }
    fields |= {"idea": "an idea", "budget": 0.5, "sampled": "", "advice": roofline.advice(bound, share, 0.01, us, 12.0)}
    return fields | more


def failed(**fields):
    return {**row(), "status": "failed", "error": "WrongOutput: y: wrong at [0, 3]", **fields}


def ladder():
    """torch, two CUDA rungs and one of Triton."""
    return [
        row(backend="torch_ref", variant="eager", us=300.0),
        row(backend="triton", variant="resident", us=150.0),
        row(backend="cuda", variant="naive", us=600.0),
        row(backend="cuda", variant="registers", us=130.0),
    ]


def results(rows, date="2026-11-20", **more):
    found = {"schema": 1, "kind": "kernelmux.perf", "date": date, "command": "python -m kernelmux.perf", "machine": GPU}
    return {**found, "ceilings": H200.as_dict(), "rows": rows, "errors": [], **more}
