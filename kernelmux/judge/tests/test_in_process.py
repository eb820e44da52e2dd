"""What got through other suites fails by name in the suite too, in one process with it, and under the timer."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import execute
from kernelmux.conformance.session.plan import Item
from kernelmux.judge import collection
from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.options import PerfOptions as PerfOptions
from kernelmux.perf.timing import inputs, measure, reseed
from kernelmux.perf.timing.clock import VirtualClock
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import tamper_guard
from kernelmux.registry.call import temporary_backends

PATHS = {entry.name: entry.path for entry in collection.attacks()}
NAMED = {  # the check that finds it, what it says, what perf says
    "zeros": ("accuracy", "all outputs are 0", "all outputs are 0"),
    "cached_by_shape": ("state", "the output is the one of an earlier call", "the one of an earlier call"),
    "cached_by_address": ("state", "the output is the one of an earlier call", "the one of an earlier call"),
    "cached_by_fingerprint": ("state", "the output is the one of an earlier call", "outputs are kept"),
    "zeroed_inputs": ("accuracy", "the input x was changed by the call", "an input was changed by the call"),
    "unwritten": ("memory", "they were never written", "wrong at"),
    "calls_reference": ("accuracy", "calls the reference", "calls the reference"),
    "calls_another_backend": ("accuracy", "calls another backend, torch_ref", "calls another backend, torch_ref"),
    "patched_comparison": ("accuracy", "kernelmux.registry.spec.numerics.compare, torch.equal", "numerics.compare"),
    "patched_timer": ("accuracy", "patches time.perf_counter, torch.cuda.Event.elapsed_time", "time.perf_counter"),
    "recognised_inputs": ("state", "it recognises inputs", "it recognises inputs"),
}
ON_A_GPU = {"side_stream": ("streams", "work is on another stream", "work is on another stream")}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORKLOAD = {"cpu": "x=37x1000", "cuda": "x=4096x1024"}[DEVICE]  # one whose values recognised_inputs knows
LONG = {"cpu": "x=512x1000", "cuda": "x=16384x8192"}[DEVICE]  # longer than a copy, or than asking whether a GPU is idle


def given(cheat: str) -> str:
    return f"{PATHS[cheat]}:softmax"


@pytest.mark.parametrize("cheat", [*NAMED, *(ON_A_GPU if DEVICE == "cuda" else ())])
def test_it_fails_by_name_in_the_suite(cheat: str) -> None:
    check, told, _ = (NAMED | ON_A_GPU)[cheat]
    options = Options(ops=("softmax",), tier="smoke", impl=given(cheat), device=DEVICE)
    with tamper_guard.watched(), temporary_backends.joined(options.impl, "softmax"):
        outcome = execute(Item("softmax", temporary_backends.NAME, "softmax", check), options)
    assert outcome.status == "failed" and told in outcome.text, outcome.text


class Benchmark:
    """Of pytest-benchmark what a row uses: the tests run side by side, where it measures nothing."""

    def pedantic(self, sample: Any, rounds: int, iterations: int, warmup_rounds: int) -> None:
        times = []
        for _ in range(warmup_rounds + rounds):
            before = sample.clock()
            sample()
            times.append(sample.clock() - before)
        self.stats = SimpleNamespace(stats=SimpleNamespace(median=statistics.median(times), iqr=0.0, min=min(times)))


def timed(text: str, workload: str = WORKLOAD) -> str:
    """What perf says of a function: the error, or "" for one that was timed and right."""
    with tamper_guard.watched(), temporary_backends.joined(text, "softmax"):
        row = Row("softmax", workload, "fp32", temporary_backends.NAME, "softmax")
        implementation = registered.variants(row.backend, row.op)[row.variant]
        shared = measure.Shared(inputs.make(row, DEVICE), reseed.draw(row, DEVICE))
        error = ""
        try:
            options = PerfOptions(samples=3, budget=0.01, device=DEVICE)
            measure.time_row(row, implementation, shared, Benchmark(), VirtualClock(), options, None)
        except AssertionError as raised:
            error = str(raised)
        return " ".join([error, *tamper_guard.patched(row.backend)])


@pytest.mark.parametrize("cheat", [*NAMED, *(ON_A_GPU if DEVICE == "cuda" else ())])
def test_it_fails_by_name_under_the_timer(cheat: str) -> None:
    long = cheat in {"cached_by_fingerprint", *ON_A_GPU}
    assert (NAMED | ON_A_GPU)[cheat][2] in timed(given(cheat), LONG if long else WORKLOAD)


def test_perf_times_it_beside_torch_and_nothing_that_is_emulated() -> None:
    text = given("zeros")
    with tamper_guard.watched(), temporary_backends.joined(text, "softmax"):
        rows = plan.rows(PerfOptions(ops=("softmax",), dtypes=("fp32",), impl=text, device=DEVICE))
    found = [f"{row.backend}/{row.variant}" for row in rows if row.workload == rows[0].workload]
    assert {"impl/softmax", "torch_ref/exact"} <= set(found) and len(found) == len({f.partition("/")[0] for f in found})


def test_an_honest_function_passes_both(tmp_path: Path) -> None:
    text = "import torch\n\ndef softmax(x, axis, scale):\n    y = torch.softmax(x.float() * scale, axis)\n"
    (tmp_path / "mine.py").write_text(f"{text}    return y.to(x.dtype).contiguous()\n")
    path = f"{tmp_path / 'mine.py'}:softmax"
    options = Options(ops=("softmax",), tier="smoke", impl=path, device=DEVICE)
    with tamper_guard.watched(), temporary_backends.joined(path, "softmax"):
        for check in ("accuracy", "memory", "state"):
            outcome = execute(Item("softmax", temporary_backends.NAME, "softmax", check), options)
            assert outcome.status == "passed", outcome.text
    assert not timed(path).strip()
