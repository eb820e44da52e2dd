"""Estimated bounds: sound results of every kind pass, wrong ones do not; the survey, its reports and its command."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.candidate import sandbox
from kernelmux.judge.formats import block_scaled, cli, modes, report
from kernelmux.judge.formats.bounds import calibration, expected
from kernelmux.judge.formats.bounds.estimated_bound import estimate
from kernelmux.judge.formats.judging import TaskVerdict
from kernelmux.judge.formats.reduced_sizes import shortened
from kernelmux.judge.formats.reference import survey
from kernelmux.judge.formats.task import Task
from kernelmux.judge.formats.trial import TaskTrial
from kernelmux.registry import numerics

TASK = Task("t", "python", Path("t.py"), "f")


def estimated(function, *leaves, seed=0):
    def evaluate(given, exactly):
        result = function(*given)
        return result if isinstance(result, tuple) else (result,)

    return estimate(evaluate, list(leaves), seed)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def passes(estimate, got):
    return numerics.compare(got, estimate.value, estimate.bound).passed


@pytest.mark.parametrize("seed", range(5))
def test_a_product_summed_in_another_order_passes_and_one_of_tf32_does_not(seed):
    a, b = normal(33, 700, seed=seed), normal(700, 17, seed=seed + 100)
    (made,) = estimated(torch.matmul, a, b, seed=seed)
    total = torch.zeros(33, 17)
    for k in range(700):  # one long chain
        total = total + a[:, k : k + 1] * b[k]
    assert passes(made, total)
    assert passes(made, (a.flip(1) @ b.flip(0)))

    def cut(x):
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)

    assert not passes(made, cut(a) @ cut(b))
    assert not passes(made, a[:, :-1] @ b[:-1])


@pytest.mark.parametrize("name", ["softmax", "matmul", "gelu", "rms_norm", "reduce_sum"])
def test_torch_is_within_the_estimate_that_has_not_seen_its_error(name):
    for row in calibration.rows(range(4), (name,)):
        assert row.used <= 1, row
        assert 0.05 <= row.ratio <= 10, row


def test_rounding_to_16_bits_on_the_way_is_seen_where_the_reference_does_it():
    x = normal(64, 100, dtype=torch.bfloat16)

    def twice(x):
        return (x.sigmoid() * x) if x.dtype == torch.float64 else (x.sigmoid().to(x.dtype) * x)

    (loose,) = estimated(twice, x)
    (tight,) = estimated(lambda x: torch.nn.functional.silu(x), x)
    assert passes(loose, x.sigmoid() * x) and passes(loose, torch.nn.functional.silu(x))
    assert passes(tight, torch.nn.functional.silu(x))
    assert float((loose.bound / tight.bound).median()) > 1.5


def test_a_step_is_allowed_on_either_side_only_where_inputs_are_near_it():
    x = torch.tensor([0.5, 1.0, 1.0 + 2**-22, 2.0])
    (made,) = estimated(lambda x: (x > 1).to(x.dtype) * 5, x)
    assert passes(made, torch.tensor([0.0, 0.0, 5.0, 5.0]))
    assert not passes(made, torch.tensor([5.0, 0.0, 5.0, 5.0]))
    assert not passes(made, torch.tensor([0.0, 0.0, 5.0, 0.0]))


def test_integers_must_be_equal_but_where_rounding_decides():
    x = torch.tensor([[0.0, 1.0, 2.0], [3.0, 3.0 + 2**-22, 0.0]])
    trial = TaskTrial(TASK, (x,), lambda args, kwargs, parameters: args[0].argsort(1))
    found = expected.of(trial, 0)
    assert found.wrong((torch.tensor([[0, 1, 2], [2, 1, 0]]),)) == ""
    assert "must be equal" in found.wrong((torch.tensor([[1, 0, 2], [2, 0, 1]]),))


def test_references_that_say_cuda_and_float32_run_on_a_cpu_in_float64():
    def reference(args, kwargs, parameters):
        x = args[0].cuda().to(torch.float32)
        noise = torch.zeros(3, device="cuda", dtype=torch.float32)
        return (x.half() + noise.float()).bfloat16() + torch.tensor(0.1)

    trial = TaskTrial(TASK, (torch.full((3,), 0.2, dtype=torch.float16),), reference)
    exact = trial.evaluate(exactly=True)[0]
    assert exact.dtype == torch.float64
    assert torch.equal(exact, trial.args[0].double() + 0.1)
    assert trial.evaluate()[0].dtype == torch.bfloat16
    with modes.placed(torch.device("cpu")):
        assert torch.Generator(device="cuda").device.type == "cpu"
        assert torch.Generator | None
    assert torch.Generator().device.type == "cpu"


def test_a_reference_that_writes_into_its_inputs_leaves_the_trial_as_it_was():
    x = normal(5)
    before = x.clone()
    trial = TaskTrial(TASK, (x,), lambda args, kwargs, parameters: args[0].mul_(2))
    assert torch.equal(trial.evaluate()[0], before * 2)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x * 0, "zeros would pass"),
        (lambda x: x * 0 + 3, "one number everywhere would pass"),
        (lambda x: x * 0 + torch.arange(8.0), "a result that ignores the inputs would pass"),
        (lambda x: x[:0], "output 0: it has no elements"),
        (lambda x: x * 2, ""),
        (lambda x: x.sum(), ""),
    ],
)
def test_vacuous(function, said):
    trials = [TaskTrial(TASK, (normal(8, seed=s),), lambda args, k, p: function(args[0])) for s in (0, 1)]
    assert expected.vacuous([expected.of(t, 0) for t in trials]) == said


def test_numbers_of_four_bits_with_scales():
    packed = torch.tensor([[0x21, 0xF7] * 8] * 3, dtype=torch.uint8).view(block_scaled.FLOAT4)
    scales = torch.ones(128 * 4, dtype=torch.float8_e4m3fn)
    plain = block_scaled.numbers(packed, scales)
    assert plain.shape == (3, 32)
    assert plain[0, :4].tolist() == [0.5, 1.0, 6.0, -6.0]
    blocks = torch.arange(128 * 4).reshape(128, 4)
    laid = blocks.reshape(4, 32, 4).transpose(0, 1).reshape(32, 16)  # as cuBLAS has one block
    assert torch.equal(block_scaled.unblocked(laid.flatten(), 100, 3), blocks[:100, :3])
    product = block_scaled.product(packed, packed.t(), scales, scales, out_dtype=torch.float32)
    assert torch.equal(product, (plain @ plain.t()).float())


def test_sizes_of_a_case_are_halved_and_its_seed_is_not():
    found = shortened({"batch": 64, "n": 1024, "seed": 4000}, lambda s: float(s["batch"] * s["n"]), 2048)
    assert found == {"batch": 2, "n": 1024, "seed": 4000}


ROWS = [
    survey.TaskRow("a/one", "kernelbench", survey.OK, "softmax", 3_000_000, budget=0.25, seconds=1.0),
    survey.TaskRow("a/two", "kernelbench", survey.OUT, reason="several GPUs"),
    survey.TaskRow("a/three", "kernelbench", survey.FAILED, reason="\x00 no"),
    survey.TaskRow("a/four", "kernelbench", survey.EMPTY, "differential", reason="zeros would pass"),
]


def test_reports(tmp_path):
    run = "2 run: 1 by a spec, 1 differentially, 0 by their own check"
    assert report.counts(ROWS) == f"4 tasks; {run}; 1 of them tell nothing; 1 out of scope; 1 failed"
    assert report.table(ROWS).row_count == 4
    assert report.size(3_000_000) == "3 MB"
    report.write_json(tmp_path / "rows.json", ROWS)
    assert json.loads((tmp_path / "rows.json").read_text())[0]["judged"] == "softmax"
    report.write_junit(tmp_path / "rows.xml", ROWS, 2.0)
    suite = ElementTree.parse(tmp_path / "rows.xml").getroot().find("testsuite")
    assert suite.get("tests") == "4" and suite.get("skipped") == "1" and suite.get("failures") == "2"


PROBLEM = """
import os, torch
{body}
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

def get_inputs():
    return [torch.rand(8, 40)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("confine", [True, False])
def test_the_command_survives_what_task_files_do(tmp_path, capsys, confine):
    if confine and sandbox.not_held():
        pytest.skip("bubblewrap makes no sandbox here")
    victim = tmp_path / "victim"
    bodies = {
        "1_fine": "",
        "2_ends": "os._exit(0)",
        "3_hangs": "while True: pass",
        "4_writes": f"open({str(victim)!r}, 'w').write('x')" if confine else "raise OSError('no')",
        "5_raises": "raise ValueError('on purpose')",
    }
    for name, body in bodies.items():
        (tmp_path / f"{name}.py").write_text(PROBLEM.format(body=body))
    out = tmp_path / "rows.json"
    given = [str(tmp_path), "--format", "kernelbench", "--json", str(out)] + ([] if confine else ["--unconfined"])
    rows: dict[str, Any] = {}
    for which, seconds in (("3*", "5"), ("[1245]*", "500")):
        assert cli.main([*given, "--only", which, "--seconds", seconds]) == 1
        rows |= {row["task"]: row for row in json.loads(out.read_text())}
    assert rows["1_fine"]["status"] == "ok" and rows["1_fine"]["judged"] == "softmax"
    assert "the process ended with status 0" in rows["2_ends"]["reason"]
    assert "no end within 5 s" in rows["3_hangs"]["reason"]
    assert "OSError" in rows["4_writes"]["reason"] and not victim.exists()
    assert "ValueError: on purpose" in rows["5_raises"]["reason"]
    assert "4 tasks; 1 run: 1 by a spec" in capsys.readouterr().out


def test_the_command_checks_a_task_and_refuses_what_it_cannot_do(tmp_path, capsys):
    (tmp_path / "1_fine.py").write_text(PROBLEM.format(body=""))
    assert cli.main([str(tmp_path), "--format", "kernelbench", "--check", "--unconfined", "--seconds", "500"]) == 0
    told = capsys.readouterr()
    assert "1 by a spec" in told.out and "[1/1] ok: 1_fine" in told.err
    assert cli.main([str(tmp_path), "--format", "gpu_mode", "--unconfined"]) == 2
    assert "no task of gpu_mode" in capsys.readouterr().err
    assert cli.main([]) == 2


def test_a_solution_is_named_from_the_folder_that_was_given_or_by_its_file(tmp_path):
    one = tmp_path / "level1" / "mine.py"
    for folder, name in ((tmp_path, "level1/mine.py"), (one, "mine.py"), (tmp_path / "other", "mine.py")):
        made = report.verdicts([TaskVerdict("t", "python", solution=str(one))], folder)
        assert list(made.columns[2].cells) == [name]
