"""A row against its ceilings, and what is known without a GPU."""

import json
import random
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelmux.perf.emulated import resources
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.record.run_file import Overhead
from kernelmux.perf.rows import roofline
from kernelmux.perf.rows.codec import decode, encode
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.row_result import RowResult
from kernelmux.perf.tests import synthetic
from kernelmux.perf.tests.synthetic import H200
from kernelmux.perf.timing import inputs, measure, overhead
from kernelmux.perf.timing.clock import VirtualClock
from kernelmux.perf.timing.measure import AboveCeiling
from kernelmux.perf.timing.stopping import Timing
from kernelmux.perf.timing.verify import Checked
from kernelmux.registry.backend import lookup as registered

ROW = Row("softmax", "x=64x4096", "bf16", "torch_ref", "plain")


def test_a_time_below_the_floor_is_an_error():
    work = inputs.make(ROW, "cpu").work
    point = measure.against(synthetic.row(us=20.0), work, H200)
    assert point.bound == "memory"
    assert point.share == pytest.approx(work.bytes / 4.278e12 / 20e-6)
    with pytest.raises(AboveCeiling, match="faster than the ceilings allow"):
        measure.against(synthetic.row(us=0.01), work, H200)


def test_inputs_are_random_and_the_same_every_time():
    first, again = inputs.make(ROW, "cpu").call, inputs.make(ROW, "cpu").call
    x = first.arguments["x"]
    assert torch.equal(x, again.arguments["x"])
    assert x.dtype == torch.bfloat16
    assert 0.9 < x.float().std() < 1.1
    assert not torch.equal(x, inputs.one(ROW, "cpu", copy=1).arguments["x"])


def test_the_work_of_a_call_counts_its_outputs():
    work = inputs.make(ROW, "cpu").work
    assert (work.bytes, work.written, work.dtype) == (2 * 64 * 4096 * 2, 64 * 4096 * 2, "bf16")


def test_the_dispatcher_is_timed_beside_the_implementation():
    (row,) = overhead.measure(("add",), ("torch_ref",), "cpu")
    assert row.label == "torch_ref/plain"
    assert 0 < row.direct_us < 1000
    assert 0 < row.through_us < 1000
    assert 0 < row.bound_us < 1000
    assert row.gradient_us is not None and 0 < row.gradient_us < 1000


def test_an_operator_without_a_gradient_has_no_time_of_one():
    (row,) = overhead.measure(("argmax",), ("torch_ref",), "cpu")
    assert row.through_us > 0 and row.gradient_us is None


def test_each_variant_that_a_dtype_picks_is_timed(monkeypatch):
    picked = {torch.float32: "cuda/plain", torch.float16: "cuda/fast", torch.bfloat16: "cuda/fast"}
    monkeypatch.setattr(overhead.dispatch, "which", lambda op, a, b, *rest, backend: picked[a.dtype])
    monkeypatch.setattr(overhead, "_row", lambda spec, values, label, device: Overhead(spec.name, label))
    assert [row.label for row in overhead.measure(("matmul",), ("cuda",), "cpu")] == ["cuda/plain", "cuda/fast"]


def test_what_is_added_to_a_call_is_compared_within_a_round(monkeypatch):
    """The host slows down meanwhile, which what is added does not show; no more rounds than it takes."""
    cost = {"direct_us": 6.0, "through_us": 8.0, "bound_us": 6.5, "unchecked_us": 6.1, "gradient_us": 17.0}
    clock, rounds = iter(range(10**6)), []

    def batch(call, count):
        rounds.append(call())
        return 1e-6 * (cost[call()] + next(clock) // len(cost))

    monkeypatch.setattr(overhead, "_batch", batch)
    monkeypatch.setattr(overhead, "_count", lambda call: 1)
    found = overhead._interleaved({name: partial(str, name) for name in cost}, overhead.LONGEST["cuda"])
    assert len(rounds) == overhead.ROUNDS * len(cost)
    added = {name: found[name] - found[base] for name, base in overhead.BASES.items()}
    assert added == pytest.approx({"through_us": 2.0, "bound_us": 0.5, "unchecked_us": 0.1, "gradient_us": 9.0})
    assert found["direct_us"] == pytest.approx(6.0 + overhead.ROUNDS // 2)


def test_times_that_go_on_scattering_end_with_their_seconds(monkeypatch):
    """On a CPU, where the kernel's own noise is in every difference, after fewer of them."""
    assert overhead.LONGEST["cpu"] < overhead.LONGEST["cuda"]
    now = [0.0]

    def batch(call, count):
        now[0] += 1e-3
        return call()

    monkeypatch.setattr(overhead, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(overhead, "_batch", batch)
    monkeypatch.setattr(overhead, "_count", lambda call: 1)
    wild = {name: partial(random.Random(name).uniform, 0.0, 1.0) for name in ("direct_us", *overhead.BASES)}
    overhead._interleaved(wild, 0.2)
    assert 0.2 < now[0] <= 0.2 + 1e-3 * (1 + len(wild))


def test_long_calls_are_timed_in_few_rounds(monkeypatch):
    rounds = []

    def batch(call, count):
        rounds.append(call)
        return 1.0

    monkeypatch.setattr(overhead, "_batch", batch)
    monkeypatch.setattr(overhead, "_count", lambda call: 1)
    overhead._interleaved(dict.fromkeys(("direct_us", *overhead.BASES), str), 0.0)
    assert len(rounds) == overhead.FEWEST * (1 + len(overhead.BASES))


def test_times_that_scatter_take_more_rounds():
    calm = [{"direct_us": 6.0, "bound_us": 6.5 + 0.1 * (i % 2)} for i in range(40)]
    wild = [{"direct_us": 6.0, "bound_us": 6.5 + 10.0 * (i % 2)} for i in range(40)]
    assert overhead._known(calm) and not overhead._known(wild)


def test_resources_of_kernels_are_known_without_running():
    pytest.importorskip("triton")
    (need,) = resources.needs(resources.InspectedVariant("softmax", "triton", "resident"), PerfOptions())
    assert not need.error
    assert need.workload == "x=32768x16384"  # far beyond what could be emulated
    assert 16 <= need.registers <= 255
    assert 0 < need.occupancy <= 1


def test_a_module_that_cannot_be_imported_is_a_row_with_an_error():
    (need,) = resources.needs(
        resources.InspectedVariant("softmax", "cuda", "", broken="ImportError: no"), PerfOptions()
    )
    assert need.error == "ImportError: no"


def test_every_set_of_inputs_is_seen_before_anything_is_timed():
    seen = []
    made = inputs.Inputs(tuple(inputs.one(ROW, "cpu", i) for i in range(3)))
    eager = registered.variants("torch_ref", "softmax")["plain"]

    def softmax(x, axis, scale):
        seen.append(x.data_ptr())
        return eager.fn(x, axis, scale)

    prepared = measure.ready(made, replace(eager, fn=softmax), VirtualClock())
    assert seen[:3] == [call.tensors["x"].data_ptr() for call in made.calls] and prepared.copies == 3


def test_the_samples_follow_a_rest_and_the_held_ones_follow_a_load(monkeypatch):
    """What was heated before the samples would be timed with them: the host time is measured after."""
    log: list[str] = []

    def told(name, value=None):
        def step(*rest):
            log.append(name)
            return value

        return step

    def stopwatch(call):
        log.append("sample")
        return 1e-3, call()

    def rounds(sample, *rest):
        sample()
        return Timing(1000.0, 0.01, 990.0, 1)

    made = inputs.make(ROW, "cpu")
    call = SimpleNamespace(arguments={}, device=torch.device("cuda"), spec=SimpleNamespace(hosted=False))
    oracle: Any = SimpleNamespace(check=lambda result, implementation, slack: Checked(0.5, ""))
    fake: Any = SimpleNamespace(arguments=made.arguments, call=call, calls=(call,), work=made.work)
    steps = {
        "_issue_us": told("issue", 10.0),
        "rest": told("rest"),
        "rounds": rounds,
        "_stopwatch": lambda *a: stopwatch,
        "_require_own_work": told("alone"),
        "replay_us": told("graph", (950.0, "")),
    }
    monkeypatch.setattr(measure.untimed_work, "require_none", told("all streams"))
    monkeypatch.setattr(measure, "Exchange", lambda *a: SimpleNamespace(put=None, take_back=told("inputs back")))
    for name, step in steps.items():
        monkeypatch.setattr(measure, name, step)
    monkeypatch.setattr(measure, "_host_us", lambda call, on_gpu: told("load", 12.0)())
    implementation = registered.variants("torch_ref", "softmax")["plain"]
    shared = measure.Shared(fake, made.call)
    vars(shared)["oracle"] = oracle
    found = measure.time_row(ROW, implementation, shared, None, VirtualClock(), PerfOptions(device="cuda"), H200)
    held = ["load", *["sample"] * measure.HELD]
    assert log == ["issue", "alone", "rest", "sample", "inputs back", *held, "all streams", "rest", "graph"]
    assert (found.host_us, found.held_us, found.mhz, found.graph_us) == (12.0, 1000.0, None, 950.0)
    assert (found.label, found.idea, found.budget, found.copies) == ("torch_ref/plain", implementation.idea, 0.5, 1)
    assert found.point == roofline.point(1e-3, made.work, H200)
    assert decode(RowResult, json.loads(json.dumps(encode(found))), "") == found
