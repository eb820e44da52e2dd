"""Tasks of the published formats, written here: each is found, run, and told right from wrong."""

import copy
from pathlib import Path

import pytest
import torch

from kernelmux.judge import formats
from kernelmux.judge.formats import candidate_side, modes
from kernelmux.judge.formats.bounds import expected
from kernelmux.judge.formats.projects import kernelbench
from kernelmux.judge.formats.task import FormatError
from kernelmux.judge.tests.task_files import answers, imports_undone, only, solved, written

SCALED_LINEAR = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features, outputs, factor):
        super().__init__()
        self.layer = nn.Linear(features, outputs)
        self.factor = factor

    def forward(self, x):
        return torch.sigmoid(self.layer(x)) * self.factor

batch_size = 64
features = 32
outputs = 48

def get_inputs():
    return [torch.rand(batch_size, features)]

def get_init_inputs():
    return [features, outputs, 2.5]
"""
SOLUTION = SCALED_LINEAR.replace("class Model(", "class ModelNew(").split("batch_size")[0]
ROW_SOFTMAX = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

rows = 1 << 14
columns = 1 << 14

def get_inputs():
    return [torch.rand(rows, columns)]

def get_init_inputs():
    return []
"""
CANCELS = ROW_SOFTMAX.replace("return torch.softmax(x, dim=1)", "return (x - x.mean()) * 0 + 1").replace(
    "1 << 14", "32"
)


@pytest.fixture(autouse=True)
def _imports_undone():
    with imports_undone():
        yield


def test_kernelbench_solution_gets_the_parameters_and_passes(tmp_path):
    folder = written(
        tmp_path, tasks__level1__1_Scaled_py=SCALED_LINEAR, tasks__runs__level_1_problem_1_sample_0_py=SOLUTION
    )
    task = only("kernelbench", folder / "tasks")
    solution = solved(task, folder / "tasks")
    assert solution.style == "module" and "problem_1_" in solution.path.name
    trial = formats.problem(task).trial(7, model_seed=70)
    right = expected.of(trial, 7)
    got = answers(trial, solution, tmp_path / "run")
    assert right.bound == "estimated"
    assert right.wrong(got) == ""
    assert "off" in right.wrong((got[0] + 1e-4,))
    assert "output 0: dtype" in right.wrong((got[0].half(),))


def test_kernelbench_solutions_by_level_and_number_or_by_name(tmp_path):
    problems = {
        "t__level1__1_a_py": SCALED_LINEAR,
        "t__level1__11_b_py": SCALED_LINEAR,
        "t__level2__1_c_py": SCALED_LINEAR,
    }
    names = (
        "level_1_problem_11_sample_0_kernel",
        "level_1_problem_11_sample_1_kernel",
        "level2__1_mine",
        "1_a",
        "other",
    )
    folder = written(
        tmp_path, **problems, **{f"s__{name}_py": SOLUTION for name in names}, s__broken__1_a_py="class ModelNew("
    )
    tasks = formats.find("kernelbench", folder / "t")
    solutions = formats.solutions(tasks, folder / "s")
    assert {name: [str(s.path.relative_to(folder / "s")) for s in found] for name, found in solutions.items()} == {
        "level1/1_a": ["1_a.py", "broken/1_a.py"],
        "level1/11_b": ["level_1_problem_11_sample_0_kernel.py", "level_1_problem_11_sample_1_kernel.py"],
        "level2/1_c": ["level2/1_mine.py"],
    }
    both = written(tmp_path, u__level1__1_a_py=SCALED_LINEAR + SOLUTION)
    assert formats.find("kernelbench", both / "u") == []  # its candidate would run with the reference


@pytest.mark.parametrize(
    "change",
    [
        ("self.layer", "self.renamed"),
        ("self.factor = factor", "self.factor = factor; self.register_buffer('more', torch.zeros(3))"),
    ],
    ids=["by order", "by seed"],
)
def test_kernelbench_parameters_of_a_solution_with_other_names(tmp_path, change):
    folder = written(tmp_path, a__1_Scaled_py=SCALED_LINEAR, b__1_Scaled_py=SOLUTION.replace(*change))
    task = only("kernelbench", folder / "a")
    trial = formats.problem(task).trial(3, model_seed=4)
    got = answers(trial, solved(task, folder / "b"), tmp_path / "run")
    assert expected.of(trial, 3).wrong(got) == ""
    other = formats.problem(task).trial(3, model_seed=5)
    assert torch.equal(other.args[0], trial.args[0]) and "off" in expected.of(other, 3).wrong(got)


def test_kernelbench_reduced_until_it_fits_and_judged_by_the_spec_of_softmax(tmp_path):
    task = only("kernelbench", written(tmp_path, a__2_Softmax_py=ROW_SOFTMAX) / "a")
    trial = formats.problem(task).trial(1, limit=1 << 17)
    assert trial.size <= 1 << 17
    assert trial.note.startswith("reduced: ") and "16384 ->" in trial.note
    right = expected.of(trial, 1)
    assert right.op == "softmax" and right.bound == "derived: the spec of softmax"
    y = torch.softmax(trial.args[0], 1)
    assert right.wrong((y,)) == ""
    assert "times its bound" in right.wrong((y * (1 + 2**-15),))


def test_kernelbench_is_reduced_by_what_lies_between_inputs_and_outputs(tmp_path):
    text = ROW_SOFTMAX.replace("torch.softmax(x, dim=1)", "(x[:, :1] * x[:, :1].T).sum(1)").replace(
        "columns = 1 << 14", "columns = 2"
    )
    task = only("kernelbench", written(tmp_path, a__4_Outer_py=text) / "a")
    trial = formats.problem(task).trial(1, limit=1 << 18)
    assert trial.args[0].shape == (256, 2)  # of 2^14 rows: 256 by 256 numbers between


def test_kernelbench_sizes_that_must_be_equal_are_reduced_together_and_those_that_cannot_be_are_refused(tmp_path):
    square = ROW_SOFTMAX.replace("torch.softmax(x, dim=1)", "x @ x")
    whole = square.replace("torch.rand(rows, columns)", "torch.rand(1 << 14, 1 << 14)")
    folder = written(tmp_path, a__1_Square_py=square, b__2_Whole_py=whole)
    trial = formats.problem(only("kernelbench", folder / "a")).trial(1, limit=1 << 18)
    assert trial.args[0].shape[0] == trial.args[0].shape[1] <= 256
    with pytest.raises(FormatError, match=r"2_Whole: no sizes below .* bytes run"):
        formats.problem(only("kernelbench", folder / "b")).trial(1, limit=1 << 18)


def test_a_case_that_an_answer_without_inputs_would_pass_is_named(tmp_path):
    problem = formats.problem(only("kernelbench", written(tmp_path, a__3_Ones_py=CANCELS) / "a"))
    found = [expected.of(problem.trial(seed), seed) for seed in (0, 1)]
    assert expected.vacuous(found) == "one number everywhere would pass"
    problem = formats.problem(only("kernelbench", written(tmp_path, b__1_Scaled_py=SCALED_LINEAR) / "b"))
    assert expected.vacuous([expected.of(problem.trial(seed), seed) for seed in (0, 1)]) == ""


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_kernelbench_recurrent_layers_have_their_sizes_without_steps(kind):
    layer = getattr(torch.nn, kind)(24, 40, 3, batch_first=True, bidirectional=True, device="meta")
    x = torch.empty(5, 77, 24, device="meta")
    with kernelbench.Shapes(), modes.FewCalls(60):
        output, after = layer(x)
        assert torch.zeros(3, device="meta").sum().item() == 0  # a rate that a network reads from a tensor
    sizes = [(2 * 3, 5, 40)] * (2 if kind == "LSTM" else 1)
    assert output.shape == (5, 77, 80) and [h.shape for h in (after if kind == "LSTM" else (after,))] == sizes


def test_what_was_copied_before_is_not_looked_through_for_each_tensor(monkeypatch):
    """A DenseNet took 20 s for a copy of its buffers, and 0.1 s for its work."""
    network = torch.nn.Sequential(*[torch.nn.BatchNorm1d(3) for _ in range(50)])
    looked = []

    def kept(function, tree):
        looked.append(tree)
        return tree

    monkeypatch.setattr(candidate_side, "mapped", kept)
    with modes.placed(torch.device("cpu")), modes.exactly(), modes.NotedCall() as noted:
        copy.deepcopy(network)
    assert not any(isinstance(one, dict) and one for tree in looked for one in tree[0])
    assert "__deepcopy__" not in [name for name, *_ in noted.calls]


def test_kernelbench_finds_by_names_and_runs_nothing(tmp_path):
    text = "raise SystemExit('run')\n" + SCALED_LINEAR
    task = only("kernelbench", written(tmp_path, a__1_Scaled_py=text, a__broken_py="def (", a__other_py="x = 1") / "a")
    with pytest.raises(FormatError, match=r"1_Scaled.py: SystemExit: run"):
        formats.problem(task)


REFERENCE = """
import torch
from task import input_t
from utils import make_match_reference

def generate_input(size: int, seed: int):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn(size, size, device="cuda", dtype=torch.float16, generator=gen)
    return x, torch.empty(size, device="cuda", dtype=torch.float32)

def ref_kernel(data):
    x, out = data
    out[...] = x.to(torch.float32).exp().sum(1).log()
    return out

check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-4)
"""
TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "task.py", "source": "task.py"}
  - {"name": "utils.py", "source": "../utils.py"}
  - {"name": "reference.py", "source": "reference.py"}
lang: "py"
tests:
  - {"size": 33, "seed": 4}
  - {"size": 64, "seed": 5}
benchmarks:
  - {"size": 4096, "seed": 6}
ranked_benchmarks:
  - {"size": 8192, "seed": 7}
"""
UTILS = "def make_match_reference(reference, **tolerances):\n    return lambda data, output: (True, '')\n"
SUBMISSION = """
import torch
from task import input_t

def custom_kernel(data):
    x, out = data
    out[...] = torch.logsumexp(x.float(), 1)
    return out
"""


def gpu_mode_folder(tmp_path: Path, reference: str = REFERENCE, task: str = TASK) -> Path:
    return written(
        tmp_path,
        p__utils_py=UTILS,
        p__one__task_py="input_t = object",
        p__one__reference_py=reference,
        p__one__submission_py=SUBMISSION,
        p__one__task_yml=task,
    )


def test_gpu_mode_task_with_modules_beside_it_on_a_cpu(tmp_path):
    task = only("gpu_mode", gpu_mode_folder(tmp_path) / "p")
    assert [c["size"] for c in task.cases] == [33, 64, 4096, 8192]
    assert [c["size"] for c in task.benchmarks] == [4096, 8192]
    assert task.tolerance == "rtol 0.001, atol 0.0001" and task.scope == ""
    solution = solved(task, tmp_path / "p")
    assert set(solution.files) == {"submission.py", "task.py", "utils.py"}
    trial = formats.problem(task).trial(11, 1)
    right = expected.of(trial, 11)
    got = answers(trial, solution, tmp_path / "run")
    assert trial.changes() == trial.ignored() == [False, True]
    assert right.outputs[0].value.dtype == torch.float64 and right.outputs[0].dtype == torch.float32
    assert right.wrong(got) == ""
    assert "off" in right.wrong((got[0] + 1e-3,))


def test_gpu_mode_result_in_the_dtype_of_the_memory_that_is_given_for_it(tmp_path):
    wide = REFERENCE.replace(
        "out[...] = x.to(torch.float32).exp().sum(1).log()\n    return out", "return x.double().sum(1)"
    )
    trial = formats.problem(only("gpu_mode", gpu_mode_folder(tmp_path, wide) / "p")).trial(11)
    assert trial.changes() == [False, False] and trial.ignored() == [False, True]
    right = expected.of(trial, 11)
    assert right.outputs[0].dtype == torch.float32
    assert right.wrong((trial.args[0][0].float().sum(1),)) == ""


def test_gpu_mode_inputs_follow_the_judges_seed_and_not_the_published_one(tmp_path):
    problem = formats.problem(only("gpu_mode", gpu_mode_folder(tmp_path) / "p"))
    first, again, other = (problem.trial(seed).args[0][0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_gpu_mode_property_is_judged_by_the_tasks_own_check(tmp_path):
    own = REFERENCE.split("check_implementation")[0] + (
        "def check_implementation(data, output):\n"
        "    good = bool((output >= data[0].max(1).values.float()).all())\n"
        "    return good, '' if good else 'below the largest'\n"
    )
    trial = formats.problem(only("gpu_mode", gpu_mode_folder(tmp_path, own) / "p")).trial(1)
    right = expected.of(trial, 1)
    assert right.bound == "the task's own check"
    assert right.wrong(trial.evaluate()) == ""
    assert right.wrong((torch.full((33,), -100.0),)) == "below the largest"


@pytest.mark.parametrize(
    ("more", "scope"),
    [("multi_gpu: true\n", "several GPUs"), ("gpus:\n  - MI300\n", "AMD: MI300"), ("gpus:\n  - MI300\n  - H100\n", "")],
)
def test_gpu_mode_scope(tmp_path, more, scope):
    assert only("gpu_mode", gpu_mode_folder(tmp_path, task=TASK + more) / "p").scope == scope
