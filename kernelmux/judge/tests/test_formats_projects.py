"""Definitions, operators and functions with a reference, written here; what crosses between processes; errors."""

import json
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
from kernelmux.judge.tests.task_files import answers, imports_undone, only, solved, written


@pytest.fixture(autouse=True)
def _imports_undone():
    with imports_undone():
        yield


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
    task, _ = python_function.pair(f"{tmp_path}/mine.py:ref", f"{tmp_path}/mine.py:ref", ["x=5x70:bf16 y=70x6"])
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
    with pytest.raises(FormatError, match=r"got a file; one function is judged by .* --reference FILE:FUNCTION"):
        formats.find("python", Path(__file__))
    with pytest.raises(ValueError, match="inside of the candidate's folder"):
        candidate_side.write(tmp_path, {"../out.py": ""})
    assert kernelbench.SOLUTION == "ModelNew"
