"""Which rows a selection gives."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kernelmux.perf.planning import plan
from kernelmux.perf.record import history
from kernelmux.perf.rows.options import PerfOptions, from_dict
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError, SpecError, UnknownName


@pytest.fixture
def gpu(monkeypatch):
    """Plan as for a GPU: nothing is run."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(registered, "unavailable", lambda name, device: None)


def test_on_a_cpu_nothing_emulated_is_planned():
    rows = plan.rows(PerfOptions())
    assert {row.backend for row in rows} == {"torch_ref"}
    assert {row.op for row in rows} == set(catalog.names())


def test_on_a_gpu_every_variant_of_every_workload(gpu):
    rows = plan.rows(PerfOptions(ops=("softmax",), device="cuda"))
    spec = catalog.spec("softmax")
    assert {r.workload for r in rows} == {c.text for c in spec.workloads}
    assert {r.dtype for r in rows} == {"bf16", "fp32"}
    assert [r.label for r in rows][:2] == ["torch_ref/plain", "torch_ref/exact"] and rows[2].backend == "triton"
    assert len({r.id for r in rows}) == len(rows)


def test_one_variant_comes_with_torch_beside_it(gpu):
    rows = plan.rows(PerfOptions(ops=("softmax",), backends=("cuda/naive",), workloads=("large",), device="cuda"))
    assert [r.label for r in rows] == ["torch_ref/plain", "cuda/naive"] * 2
    assert {r.workload for r in rows} == {"x=32768x16384"}


def test_a_workload_by_name_by_pattern_and_by_shape(gpu):
    def chosen(text):
        return {r.workload for r in plan.rows(PerfOptions(ops=("softmax",), workloads=(text,), device="cuda"))}

    assert chosen("x16384x8192") == {"x=16384x8192"}
    assert chosen("x*8192") == {"x=16384x8192"}
    assert chosen("x=64x100 axis=0") == {"x=64x100 axis=0"}


def test_a_shape_that_the_operator_cannot_have_is_reported(gpu):
    with pytest.raises(ArgumentError, match="got none for b"):
        plan.rows(PerfOptions(ops=("matmul",), workloads=("a=4x4",), device="cuda"))


def test_the_largest_workload_is_that_with_the_most_work():
    assert plan.large(catalog.spec("matmul")).text == "a=8192x8192 b=8192x8192"
    assert plan.large(catalog.spec("transpose")).text == "x=8192x8192"


@pytest.mark.parametrize(
    "options", [PerfOptions(ops=("sofmax",)), PerfOptions(backends=("cud",)), PerfOptions(backends=("x/y",))]
)
def test_unknown_names_are_errors(options):
    with pytest.raises(UnknownName):
        plan.rows(options)


def test_an_unmet_condition_is_a_reason_and_a_broken_module_a_defect(gpu, monkeypatch):
    real = registered.variants

    def broken(name, op):
        if name == "cuda":
            raise ImportError("no such header")
        return real(name, op)

    monkeypatch.setattr(registered, "variants", broken)
    rows = plan.rows(PerfOptions(ops=("add",), workloads=("large",), device="cuda"))
    (row,) = [r for r in rows if r.backend == "cuda" and r.dtype == "bf16"]
    assert row.broken
    assert "no such header" in row.problem


def test_a_module_that_does_not_fit_its_spec_is_the_problem_of_its_rows_alone(gpu, monkeypatch):
    real = registered.variants

    def misfit(name, op):
        if (name, op) == ("cuda", "add"):
            raise SpecError("cuda/one registered add(y, x)")
        return real(name, op)

    monkeypatch.setattr(registered, "variants", misfit)
    options = PerfOptions(
        ops=("add", "square"), backends=("cuda",), workloads=("large",), dtypes=("bf16",), device="cuda"
    )
    rows = [r for r in plan.rows(options) if r.backend == "cuda"]
    assert [(r.op, r.problem) for r in rows if r.broken] == [
        ("add", "its module cannot be used: cuda/one registered add(y, x)")
    ]
    assert {r.op for r in rows if not r.broken} == {"square"}


def test_options_survive_json():
    options = PerfOptions(ops=("add",), quick=True, samples=3)
    assert from_dict({**options.as_dict(), "ops": ["add"]}) == options


@pytest.fixture
def record(gpu, monkeypatch):
    """A record in which one variant is stale, whatever the sources are; torch has the name of older records."""
    known = history.find("")
    rows = [replace(r, stale=r.label == "cuda/online") for r in known.rows if r.op == "softmax"]
    rows = [replace(r, variant="eager") if r.backend == "torch_ref" else r for r in rows]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: known.gpu)
    monkeypatch.setattr(
        history, "find", lambda name, shipped=False: SimpleNamespace(rows=tuple(rows)) if name == known.gpu else None
    )
    return rows


def test_what_is_stale_is_planned_with_torch_beside_it(record):
    groups = {row.group for row in record if row.stale}
    beside = [row for row in record if row.group in groups and row.label in ("cuda/online", "torch_ref/eager")]
    expected = [(*row.group, row.backend, row.variant.replace("eager", "plain")) for row in beside]
    assert len(groups) < len(expected) < len(record)
    assert [row.key for row in plan.stale(PerfOptions(device="cuda"))] == expected
    chosen = PerfOptions(("softmax",), ("cuda/online",), ("x=32768*",), ("bf16",), device="cuda")
    found = plan.stale(chosen)
    assert [(r.workload, r.dtype, r.label) for r in found] == [
        ("x=32768x16384", "bf16", label) for label in ("torch_ref/plain", "cuda/online")
    ]


@pytest.mark.parametrize(
    "other", [PerfOptions(("add",)), PerfOptions(backends=("triton",)), PerfOptions(dtypes=("i8",))]
)
def test_a_selection_that_has_no_stale_row_is_empty(record, other):
    assert plan.stale(replace(other, device="cuda")) == []
