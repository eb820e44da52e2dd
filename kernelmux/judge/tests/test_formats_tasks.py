"""Tasks of the published formats, written here: each is found, run, and told right from wrong."""

import json
import sys
from pathlib import Path

import pytest
import torch

from kernelmux.candidate.memory import MisplacedTensor
from kernelmux.judge import formats
from kernelmux.judge.formats import candidate_side
from kernelmux.judge.formats.bounds import expected
from kernelmux.judge.formats.projects import backendbench, flashinfer_bench, kernelbench, python_function
from kernelmux.judge.formats.reference import packing
from kernelmux.judge.formats.task import FormatError

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
    """What a candidate's process imports stays out of this one."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in ("task", "utils", "helper", "main", "submission", "solution"):
        if name not in modules:
            sys.modules.pop(name, None)


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_yml", ".yml").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def only(name: str, folder: Path) -> formats.Task:
    (task,) = formats.find(name, folder)
    return task


def solved(task: formats.Task, folder: Path) -> formats.Solution:
    (solution,) = formats.solutions([task], folder)[task.name]
    return solution


def answers(trial: formats.TaskTrial, solution: formats.Solution, folder: Path, *more: torch.Tensor):
    """What the candidate's process would give for a trial; more: tensors for its outputs."""
    text, leaves = trial.spelled()
    call = candidate_side.serving(folder, solution.files, solution.entry, solution.style, "cpu")
    with torch.no_grad():
        return candidate_side.tensors(call(text, *[x.clone() for x in leaves], *more))


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


def test_a_case_that_an_answer_without_inputs_would_pass_is_named(tmp_path):
    problem = formats.problem(only("kernelbench", written(tmp_path, a__3_Ones_py=CANCELS) / "a"))
    found = [expected.of(problem.trial(seed), seed) for seed in (0, 1)]
    assert expected.vacuous(found) == "one number everywhere would pass"
    problem = formats.problem(only("kernelbench", written(tmp_path, b__1_Scaled_py=SCALED_LINEAR) / "b"))
    assert expected.vacuous([expected.of(problem.trial(seed), seed) for seed in (0, 1)]) == ""


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


DEFINITION = {
    "name": "rmsnorm_h64",
    "op_type": "rmsnorm",
    "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 64}},
    "inputs": {
        "x": {"shape": ["rows", "hidden"], "dtype": "bfloat16"},
        "weight": {"shape": ["hidden"], "dtype": "bfloat16"},
    },
    "outputs": {"y": {"shape": ["rows", "hidden"], "dtype": "bfloat16"}},
    "reference": "import torch\n\ndef run(x, weight):\n    z = x.to(torch.float32)\n"
    "    s = torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6)\n"
    "    return (z * s * weight.to(torch.float32)).to(x.dtype)\n",
}
WORKLOAD = {
    "definition": "rmsnorm_h64",
    "workload": {"uuid": "a", "axes": {"rows": 19}, "inputs": {"x": {"type": "random"}, "weight": {"type": "random"}}},
}
DPS = {
    "name": "mine",
    "definition": "rmsnorm_h64",
    "spec": {"language": "python", "entry_point": "src/main.py::run", "destination_passing_style": True},
    "sources": [
        {"path": "src/helper.py", "content": "EPS = 1e-6\n"},
        {
            "path": "src/main.py",
            "content": "import torch\nfrom helper import EPS\n\ndef run(x, weight, y):\n"
            "    y.copy_(torch.nn.functional.rms_norm(x.float(), (64,), weight.float(), EPS))\n",
        },
    ],
}


def test_flashinfer_bench_definition_workload_and_solution_in_destination_style(tmp_path):
    folder = written(tmp_path, d__definitions__one_json=json.dumps(DEFINITION), d__solutions__mine_json=json.dumps(DPS))
    (tmp_path / "d" / "workloads").mkdir()
    (tmp_path / "d" / "workloads" / "one.jsonl").write_text(json.dumps(WORKLOAD) + "\n")
    task = only("flashinfer_bench", folder / "d")
    solution = solved(task, folder / "d")
    assert solution.style == "destination" and len(task.cases) == 1
    trial = formats.problem(task).trial(5)
    assert [tuple(x.shape) for x in trial.leaves] == [(19, 64), (64,)]
    right = expected.of(trial, 5)
    assert right.op == "rms_norm"
    given = torch.full((19, 64), torch.nan, dtype=torch.bfloat16)
    assert answers(trial, solution, tmp_path / "run", given) == ()
    assert right.wrong((given,)) == ""
    assert "off" in right.wrong((torch.zeros_like(given),))


def test_flashinfer_bench_offsets_are_lawful(tmp_path):
    definition = {
        **DEFINITION,
        "name": "ragged",
        "axes": {"batch": {"type": "var"}, "len": {"type": "var"}, "total": {"type": "var"}},
        "inputs": {"x": {"shape": ["total"], "dtype": "float32"}, "kv_indptr": {"shape": ["len"], "dtype": "int32"}},
        "constraints": ["len == batch + 1", "total == kv_indptr[-1].item()"],
    }
    (tmp_path / "one.json").write_text(json.dumps(definition))
    trial = formats.problem(only("flashinfer_bench", tmp_path)).trial(0)
    x, offsets = trial.args
    assert offsets[0] == 0 and offsets[-1] == len(x) and bool((offsets.diff() >= 0).all()) and len(offsets) == 65
    assert flashinfer_bench._style(None, "def run(a):\n    return a\n", "run") == "function"
    assert flashinfer_bench._style(None, "def run(a, b):\n    b.copy_(a)\n", "run") == "destination"


def test_backendbench_folder_with_a_trace(tmp_path):
    kernel = "def add__Tensor_kernel_impl(x, y, *, alpha=1):\n    return x + alpha * y\n"
    home = tmp_path / "o" / "add__Tensor"
    home.mkdir(parents=True)
    (home / "add__Tensor_implementation_v1.py").write_text(kernel)
    (tmp_path / "o" / "no_such_operator").mkdir()
    (tmp_path / "o" / "trace.txt").write_text(
        "Operator: aten.add.Tensor\ncnt: 3, ((T([5, 7], f32, [1, 5]), T([7], f32)), {'alpha': 2})\n"
    )
    task = only("backendbench", tmp_path / "o")
    assert task.name == "add.Tensor" and task.reference == "aten.add.Tensor"
    trial = formats.problem(task).trial(2)
    assert trial.args[0].stride() == (1, 5) and trial.kwargs == {"alpha": 2}
    right = expected.of(trial, 2)
    got = answers(trial, solved(task, tmp_path / "o"), tmp_path / "run")
    assert right.wrong(got) == ""
    assert right.wrong((got[0] - trial.args[1],)) != ""


@pytest.mark.parametrize("text", ["((__import__('os').getcwd(),), {})", "T([2], f32)", "((T([2], f99),), {})", "(("])
def test_backendbench_arguments_are_literals_and_nothing_runs(text):
    with pytest.raises(FormatError):
        backendbench.arguments(text, 0)


def test_backendbench_names():
    assert backendbench.operator_name("add__Tensor") == "add.Tensor"
    assert backendbench.operator_name("add___Tensor") == "add_.Tensor"
    assert backendbench.operator_name("_softmax") == "_softmax"
    assert backendbench.operator("relu") is torch.ops.aten.relu.default
    assert backendbench.operator("no_such") is None


MINE = """
import torch

def inputs(seed):
    return {"x": torch.randn(37, 50, generator=torch.Generator().manual_seed(seed)), "power": 3}

def ref(x, power):
    return x.cumsum(1) ** power

def reference(x, power):
    return ref(x, power)
"""


def test_python_function_with_a_reference_beside_it(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "fast.py").write_text("def go(x, power):\n    return x.cumsum(1) * x.cumsum(1) ** (power - 1)\n")
    task, solution = python_function.pair(f"{tmp_path}/fast.py:go", f"{tmp_path}/mine.py:ref")
    trial = formats.problem(task).trial(9)
    right = expected.of(trial, 9)
    got = answers(trial, solution, tmp_path / "run")
    assert right.bound == "estimated" and right.wrong(got) == ""
    assert "off" in right.wrong((trial.kwargs["x"].cumsum(1) ** 2,))
    with pytest.raises(FormatError, match="has no function nothing"):
        python_function.pair(f"{tmp_path}/fast.py:nothing", f"{tmp_path}/mine.py:ref")


def test_python_function_with_inputs_as_text(tmp_path):
    (tmp_path / "mine.py").write_text("def ref(x, y):\n    return x @ y\n")
    task, _ = python_function.pair(f"{tmp_path}/mine.py:ref", f"{tmp_path}/mine.py:ref", ["x=5x70:bf16 y=70x6:bf16"])
    trial = formats.problem(task).trial(0)
    assert [x.dtype for x in trial.args] == [torch.bfloat16, torch.bfloat16]
    assert expected.of(trial, 0).op == "matmul"


def test_python_function_in_the_file_of_its_reference_goes_without_it(tmp_path):
    (tmp_path / "mine.py").write_text(MINE + "\ndef kernel(x, power):\n    return ref(x, power)\n")
    task = only("python", tmp_path)
    solution = solved(task, tmp_path)
    text = solution.files["mine.py"]
    assert "def kernel" in text and "def ref(" in text and "def reference" not in text and "def inputs" not in text
    assert len(text.splitlines()) == len((tmp_path / "mine.py").read_text().splitlines())
    assert "into a file of its own" in solution.note


def test_a_call_crosses_as_text_and_tensors():
    x, y = torch.ones(2), torch.zeros(3, dtype=torch.complex64)
    whole = (
        [x, (y, None)],
        {"a": torch.float16, 3: 2.5, "c": 1 + 2j, "d": torch.device("cpu"), "x": x, "s": torch.strided},
    )
    leaves: list[torch.Tensor] = []
    told = json.loads(json.dumps(candidate_side.spelled(whole, leaves)))
    assert leaves[0] is x and leaves[1] is y and len(leaves) == 2
    again = candidate_side.value(told, leaves)
    assert again[0][0] is x and again[0][1] == (y, None) and again[1] == whole[1] and again[1]["x"] is x
    with pytest.raises(TypeError, match="of type set cannot be handed"):
        candidate_side.spelled({1, 2}, [])


@pytest.mark.parametrize("x", [torch.ones(0, 3), torch.arange(12.0).view(3, 4).t()[1:], torch.ones(1).expand(4, 5)])
def test_tensors_are_packed_with_their_strides(x):
    given = [torch.tensor(3), x, torch.ones(2, dtype=torch.bool), x.to(torch.complex64)]
    told, region = packing.packed(given)
    again = packing.unpacked(told, region.file, 1 << 20)
    assert all(
        torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype for a, b in zip(given, again, strict=True)
    )
    for wrong in ({"offset": 1 << 40}, {"shape": [1 << 40]}, {"strides": [-1] * x.dim()}, {"dtype": "none"}):
        with pytest.raises(MisplacedTensor):
            packing.unpacked([*told[:1], {**told[1], **wrong}], region.file, 1 << 20)
    region.close()


def test_errors_name_what_is_wrong(tmp_path):
    with pytest.raises(FormatError, match="expected one of kernelbench, backendbench"):
        formats.find("other", tmp_path)
    with pytest.raises(FormatError, match="expected a folder"):
        formats.find("kernelbench", tmp_path / "none")
    with pytest.raises(ValueError, match="inside of the candidate's folder"):
        candidate_side.write(tmp_path, {"../out.py": ""})
    assert kernelbench.SOLUTION == "ModelNew"
