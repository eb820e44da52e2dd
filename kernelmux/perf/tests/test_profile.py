"""Timelines with something planted in each: the reading names it; the command line; ncu's table and its verdicts."""

from __future__ import annotations

import gzip
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.emulator import traces
from kernelmux.perf.emulated import ncu
from kernelmux.perf.profile import capture, cli, counters, findings, report, subject, timeline
from kernelmux.perf.rows import thresholds
from kernelmux.perf.tests.planted import Tape, busy
from kernelmux.registry.errors import ArgumentError

PLANTED = Path(__file__).parent / "planted_programs/planted.py"
GPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no GPU")


def test_a_timeline_without_anything_wrong_says_so() -> None:
    tape = Tape()
    busy(tape, 1000)
    assert "busy 500.0 of 500.0 us, 100%, good" in tape.text()
    assert "no pause of 200 us or more, no stretch that waits for launches, no kernel below 5 us" in tape.text()


def test_a_planted_pause_is_found_with_what_the_host_did() -> None:
    """A synchronisation, then nothing that a profiler sees: a sleep."""
    tape = Tape()
    end = busy(tape, 1000)
    tape.add("cuda_runtime", "cudaDeviceSynchronize", 1100, end - 1095)
    busy(tape, end + 2000)
    (gpu,) = findings.gpus(tape.line())
    (pause,) = gpu.pauses
    assert pause.duration == 2000 and gpu.busy == pytest.approx(1000 / 3000)
    assert (
        "idle for 2000 us between work and work: the queue had run empty at cudaDeviceSynchronize; then the host"
        in tape.text()
    )
    assert "input data, or a sleep" in tape.text() and "33%, poor" in tape.text()


def test_a_pause_names_the_operator_that_held_the_host() -> None:
    tape = Tape()
    end = busy(tape, 1000)
    tape.add("user_annotation", "epoch", 900, 9000)
    tape.add("user_annotation", "ProfilerStep#3", end + 1, 995)
    tape.add("cpu_op", "aten::sort", end - 10, 990)
    tape.add("cpu_op", "aten::add", end + 20, 5)
    busy(tape, end + 1000)
    assert "the host was in aten::sort" in tape.text()


def test_a_pause_behind_another_stream_is_not_the_hosts() -> None:
    tape = Tape()
    end = busy(tape, 1000)
    tape.kernel("later", end + 300, 10, launched=1000, stream=9)
    assert "the next work was queued before: it waited for another stream, an event or a copy" in tape.text()


def test_work_of_another_stream_fills_a_gap() -> None:
    tape = Tape()
    tape.kernel("a", 0, 100)
    tape.kernel("b", 90, 500, stream=9)
    tape.kernel("a", 580, 100)
    (gpu,) = findings.gpus(tape.line())
    assert gpu.pauses == () and gpu.busy == 1


def test_a_planted_launch_bound_stretch_is_found() -> None:
    """40 kernels of 8 us, each launched when the one before is long over."""
    tape = Tape()
    end = busy(tape, 1000)
    for i in range(40):
        tape.kernel("small", end + 25 * (i + 1), 8, launched=end + 25 * (i + 1) - 6)
    (gpu,) = findings.gpus(tape.line())
    (stretch,) = gpu.stretches
    assert stretch.kernels == 40 and stretch.median_us == 8 and 0.3 < stretch.busy < 0.5
    assert "launch bound: 40 kernels" in tape.text() and "CUDA graph (kernelmux.graphed)" in tape.text()


def test_kernels_that_were_queued_ahead_are_not_launch_bound() -> None:
    tape = Tape()
    for i in range(40):
        tape.kernel("small", 1000 + 9 * i, 8, launched=100 + 4 * i)
    assert findings.gpus(tape.line())[0].stretches == ()


def test_planted_tiny_kernels_are_counted() -> None:
    tape = Tape()
    end = busy(tape, 1000)
    for i in range(30):
        tape.kernel("void at::native::fill<float>(int)", end + 2 * i, 2, launched=900 + i)
    text = tape.text()
    assert "30 of 35 kernels take less than 5 us, 60.0 us together: at::native::fill 30 times" in text


def test_copies_are_summed_and_pageable_ones_are_told() -> None:
    tape = Tape()
    end = busy(tape, 1000)
    for i in range(3):
        tape.copy("Memcpy HtoD (Pageable -> Device)", end + 100 * i, 100, 600_000)
    tape.copy("Memcpy DtoD (Device -> Device)", end + 300, 10, 1_000_000)
    (gpu,) = findings.gpus(tape.line())
    assert [(c.count, c.bytes, c.rate) for c in gpu.copies] == [(3, 1_800_000, 6.0), (1, 1_000_000, 100.0)]
    assert "3 copies from or to pageable memory, 6.0 GB/s" in tape.text()


def test_ranges_have_the_kernels_that_were_launched_inside() -> None:
    tape = Tape()
    for start in (0, 1000):
        tape.add("user_annotation", "softmax[cuda/rows]", start, 40)
        tape.kernel("softmax_rows", start + 50, 70, launched=start + 10)
        tape.kernel("other", start + 200, 30, launched=start + 100)
    (found,) = findings.operators(tape.line())
    assert found == findings.Operator("softmax[cuda/rows]", 2, 80, 2, 140)


def test_the_time_of_an_operator_of_torch_is_its_own() -> None:
    tape = Tape()
    tape.add("cpu_op", "aten::softmax", 0, 100)
    tape.add("cpu_op", "aten::_softmax", 10, 80)
    tape.add("cpu_op", "aten::add", 200, 7)
    own = {s.name: s.total_us for s in findings.own_times(tape.line())}
    assert own == {"aten::_softmax": 80, "aten::softmax": 20, "aten::add": 7}
    assert report.NO_GPU in tape.text()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_is_read_from_a_file(tmp_path: Path, capsys: Any, pack: Any) -> None:
    tape = Tape()
    busy(tape, 1000)
    tape.events += [{"ph": "M", "name": "process_name"}, {"ph": "X", "cat": "kernel", "name": "no time"}]
    path = tmp_path / "trace.json"
    path.write_bytes(pack(json.dumps(tape.content).encode()))
    assert cli.main(["--read", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "GPU 0 NVIDIA H200: busy 500.0" in printed and "132x1x1" in printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected a Chrome trace"),
        ("{}", '"traceEvents"'),
        ('{"traceEvents": 3}', "a list"),
        (None, "trace.json"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, capsys: Any, content: str | None, message: str) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content)
    assert cli.main(["--read", str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected one of --op OP, a script, and --read TRACE"),
        (["--op", "softmax", "--read", "x.json"], "expected one of"),
        (["--op", "nothing"], "unknown op"),
        (["--op", "softmax", "--dtype", "i8"], "--dtype: softmax"),
        (["--op", "softmax", "--workload", "y=4"], "unknown argument"),
        (["--launch", "missing.py"], "--launch: expected an operator"),
        (["missing.py"], "expected a Python file, got 'missing.py'"),
        (["--op", "softmax", "--launch"], "--launch: expected a machine with a GPU"),
        (["--impl", "mine.py:softmax", "script.py"], "--impl: expected the operator that it computes, --op"),
        (["--op", "softmax", "--impl", "missing.py:softmax"], "--impl: no such file: missing.py"),
    ],
)
@GPU_ONLY
def test_usage_errors_take_a_line(tmp_path: Path, capsys: Any, words: list[str], message: str) -> None:
    assert cli.main(["--out", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


@GPU_ONLY
def test_an_operator_on_the_cpu_is_torchs_and_the_commands_are_for_every_variant(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["--op", "softmax", "--backend", "triton", "--active", "3", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "no GPU here: kernels of triton cannot be timed: this is torch_ref on the CPU" in printed
    assert "softmax[torch_ref/exact]" in printed and report.NO_GPU in printed
    (line,) = [line for line in printed.splitlines() if line.strip().startswith("softmax[torch_ref/exact]")]
    assert line.split()[1] == "3"
    for one in subject.ladder("softmax", "", ""):
        for command in one.commands():
            assert command in printed
    assert len(list(tmp_path.glob("*.json"))) == 1


@GPU_ONLY
@pytest.mark.filterwarnings("ignore:backend .* runs its GPU kernels on the emulator")
def test_a_kernel_from_a_file_is_not_timed_where_it_would_be_emulated(tmp_path: Path, capsys: Any) -> None:
    words = ["--op", "square", "--impl", f"{PLANTED}:spilled", "--active", "3", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "no GPU here: kernels of impl cannot be timed: this is torch_ref on the CPU" in printed
    assert "square[impl/" not in printed and "square[cuda/vectorized]" in printed


SCRIPT = """
    import sys
    import torch
    import kernelmux
    weights = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(weights.parameters())
    for _ in range(int(sys.argv[1])):
        kernelmux.softmax(weights(torch.ones(4, 8)), backend="torch_ref").sum().backward()
        optimizer.step()
    {end}
"""


def script(folder: Path, end: str = "") -> str:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(SCRIPT.format(end=end)))
    return str(path)


def calls(printed: str) -> int:
    (line,) = [line for line in printed.splitlines() if line.startswith("softmax[torch_ref/exact]")]
    return int(line.split()[1])


@GPU_ONLY
@pytest.mark.parametrize(("options", "count"), [([], 6), (["--wait", "1", "--warmup", "1", "--active", "3"], 3)])
def test_a_script_is_recorded_whole_or_by_optimizer_steps(
    tmp_path: Path, capsys: Any, options: Any, count: int
) -> None:
    assert cli.main(["--out", str(tmp_path), *options, script(tmp_path), "6"]) == 0
    assert calls(capsys.readouterr().out) == count


@GPU_ONLY
def test_a_script_that_raises_has_a_profile_too(tmp_path: Path, capsys: Any) -> None:
    end = "kernelmux.softmax(torch.ones(2), axis=7)"
    assert cli.main(["--out", str(tmp_path), script(tmp_path, end), "2"]) == 1
    told = capsys.readouterr()
    assert calls(told.out) == 2 and "Traceback" in told.err and "ArgumentError: softmax: axis" in told.err


@GPU_ONLY
def test_a_script_without_enough_steps_is_told(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["--out", str(tmp_path), "--active", "3", script(tmp_path), "2"]) == 2
    assert "ended after 2 steps, before one was recorded (wait 1, warm-up 3)" in capsys.readouterr().err
    capture.step()  # outside of a profile: nothing


# --- ncu ------------------------------------------------------------------------------------------------------

NAIVE_TRANSPOSE = {
    counters.TIME: 960e3,
    counters.MEMORY: 22.0,
    counters.MULTIPROCESSORS: 9.0,
    counters.TENSOR: 0.0,
    counters.READ: 270e6,
    counters.WRITTEN: 1200e6,
    counters.L2: 60.0,
    counters.WAVES: 248.2,
    counters.REGISTERS: 30,
    counters.WARPS: 92.0,
    counters.LOCAL[0]: 0,
    counters.LOCAL[1]: 4096.0,
    counters.SECTORS["ld"]: 4e6,
    counters.REQUESTS["ld"]: 1e6,
    counters.SECTORS["st"]: 32e6,
    counters.REQUESTS["st"]: 1e6,
    counters.SHARE_USED["ld"]: 100.0,
    counters.SHARE_USED["st"]: 12.5,
    counters.PASSES[0]: 0,
    counters.PASSES[1]: 0,
    counters.EXTRA[0]: 0,
    counters.EXTRA[1]: 0,
}


def verdicts(change: dict[str, float], needed: float = 2 * 268e6) -> dict[str, str]:
    seen = ncu.NcuLaunch("k", metrics=NAIVE_TRANSPOSE | change)
    return {c.name: c.verdict for c in counters.counters(seen, needed)}


def test_each_counter_has_the_verdict_of_the_thresholds() -> None:
    found = verdicts({})
    assert found["memory"] == found["compute"] == found["neither"] == "poor"
    assert found["stores: used"] == "poor" and found["loads: used"] == "good" and found["bytes moved"] == "fair"
    assert found["waves"] == "good" and found["occupancy"] == "good" and found["spilled"] == "poor"
    assert "tensor cores" not in found and "bank conflicts" not in found


def test_only_what_binds_has_to_be_near_its_peak() -> None:
    found = verdicts({counters.MEMORY: 88.0, counters.WARPS: 12.0})
    assert (found["memory"], found["compute"], found["occupancy"]) == ("good", "", "")
    assert verdicts({counters.WARPS: 12.0})["occupancy"] == "poor"


@pytest.mark.parametrize(
    ("waves", "verdict"), [(0.5, "poor"), (1.0, "good"), (1.1, "poor"), (1.8, "good"), (1.6, "fair")]
)
def test_a_last_wave_that_is_nearly_empty_is_poor(waves: float, verdict: str) -> None:
    assert verdicts({counters.WAVES: waves})["waves"] == verdict


def test_conflicts_are_judged_by_the_passes_that_were_needed() -> None:
    assert verdicts({counters.PASSES[0]: 32e3, counters.EXTRA[0]: 31e3})["bank conflicts"] == "poor"
    assert verdicts({counters.PASSES[0]: 32e3, counters.EXTRA[0]: 100})["bank conflicts"] == "good"


def test_advice_is_for_what_is_poor() -> None:
    def advice(change: dict[str, float]) -> list[str]:
        return list(counters.advice(counters.counters(ncu.NcuLaunch("k", metrics=NAIVE_TRANSPOSE | change), 536e6)))

    told = advice({})
    assert [text.split(":")[0] for text in told] == ["spilled 0.131 MB", "stores"]
    assert "stores: used 12%: uncoalesced stores" in told[1]
    assert advice({counters.LOCAL[1]: 0, counters.SHARE_USED["st"]: 100.0}) == []


def test_what_ncu_did_not_measure_is_left_out() -> None:
    seen = ncu.NcuLaunch("k", metrics={counters.TIME: 1e4, counters.REGISTERS: 40})
    assert [c.name for c in counters.counters(seen, 1)] == ["time", "registers"]


def test_a_machine_without_ncu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "find", lambda: None)
    assert counters.measure(subject.Subject("softmax", "cuda/rows", "x=4x4", "bf16", "cuda"), tmp_path) == ncu.MISSING


def test_ncu_runs_on_a_child_that_makes_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in its place, which writes down how it was called and answers with a table."""
    tool = tmp_path / "ncu"
    row = f'"0","softmax_rows(int)","{counters.REGISTERS}","register/thread","32"'
    head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    tool.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --query-metrics ]; then echo "{counters.TIME.partition(".")[0]}  time"; exit 0; fi\n'
        f'echo "$@" > {tmp_path}/words\n'
        'while [ "$1" != --log-file ]; do shift; done\n'
        f"printf '%s\\n' '{head}' '{row}' > \"$2\"\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(ncu, "find", lambda: str(tool))
    one = subject.Subject("softmax", "cuda/rows", "x=4x4", "bf16", "cuda")
    seen = counters.measure(one, tmp_path)
    assert seen == [ncu.NcuLaunch("softmax_rows", " ", {counters.REGISTERS: 32})]
    words = (tmp_path / "words").read_text()
    own = subject.Subject("square", "impl/spilled", "x=4", "fp32", "cuda", f"{PLANTED}:spilled")
    assert own.words[:4] == ["--op", "square", "--impl", f"{PLANTED}:spilled"]
    assert "--clock-control none" in words and "--profile-from-start off" in words and counters.MEMORY not in words
    assert "-m kernelmux.perf.profile --launch --op softmax --backend cuda/rows --workload x=4x4 --dtype bf16" in words


def test_levels_judge_both_ways() -> None:
    assert [thresholds.BANDWIDTH.verdict(v) for v in (0.6, 0.45, 0.3, 0.29)] == ["good", "fair", "fair", "poor"]
    assert [thresholds.TRAFFIC.verdict(v) for v in (1, 1.5, 2, 4, 9)] == ["good", "good", "fair", "poor", "poor"]
    assert [thresholds.SPILLED.verdict(v) for v in (0, 4)] == ["good", "poor"]
    assert (thresholds.TRAFFIC.good, thresholds.OCCUPANCY.good) == (
        traces.EXCESS,
        traces.OCCUPIED,
    )  # as pictures say it
    with pytest.raises(ArgumentError):
        timeline.timeline("no trace")
