"""Solutions of other projects' tasks, judged by the command: what is right passes, and what only seems so does not."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from kernelmux.candidate import sandbox
from kernelmux.judge import cli

Verdicts = dict[str, dict[str, Any]]

ROWS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.rand(6, 40)]

def get_init_inputs():
    return []
"""
LINEAR = """
import torch

class Model(torch.nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.layer = torch.nn.Linear(features, outputs)

    def forward(self, x):
        return torch.sigmoid(self.layer(x)) * 2.5

def get_inputs():
    return [torch.rand(5, 32)]

def get_init_inputs():
    return [32, 24]
"""
# Nothing of the input is left behind its layers as torch draws them.
DEEP = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.Sequential(*[part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())])
        self.more = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return self.layers(x) + self.more

def get_inputs():
    return [torch.rand(5, 64)]

def get_init_inputs():
    return [64, 20]
"""
ONES = ROWS.replace("torch.softmax(x, dim=1)", "torch.softmax(x, dim=1) * 0 + 1")
BROKEN = "raise ValueError('on purpose')\n" + ROWS


def new(body: str, before: str = "") -> str:
    """A solution whose forward has this body."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"import os, torch\n{before}\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n{lines}\n"


TRITON = new(
    "assert x.is_cuda and x.device.type == 'cuda' and x.get_device() == torch.cuda.current_device() == 0\n"
    "y = torch.empty(x.shape, device=x.device)\nrows[(len(x),)](x.cuda(), y, x.shape[1], 64)\nreturn y",
    """
import triton
import triton.language as tl

@triton.jit
def rows(x, y, n, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + k, mask=k < n, other=-float("inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + tl.program_id(0) * n + k, v / tl.sum(v, 0), mask=k < n)
""",
)
ONCE = "key = {key}\nif key not in kept:\n    kept[key] = torch.softmax(x, 1)\nreturn kept[key]"
SUBCLASS = "class Later(torch.Tensor):\n    pass\n"
LAYER = LINEAR.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
SHARED_LAYER = LAYER.replace("class ModelNew", "kept = []\nclass ModelNew").replace(
    "return torch.sigmoid(self.layer(x))",
    "kept or kept.append(self.layer)\n        return torch.sigmoid(kept[0](x))",
)
SOFTMAX: dict[str, tuple[str, str]] = {  # solution, and how its verdict reads
    "triton": (TRITON, "passed: launched rows (3 times)"),
    "torch": (
        new("return torch.softmax(x, 1)"),
        "passed: no kernel of its own was launched: torch computed aten::_softmax",
    ),
    "wrong": (
        new("return torch.softmax(x, 1) * 1.001"),
        "failed: case 1, call 1 of 3: output 0: 240 of 240 elements off",
    ),
    "by_shape": (new(ONCE.format(key="x.shape"), "kept = {}"), "failed: case 1, call 2 of 3: output 0: "),
    "by_address": (new(ONCE.format(key="x.data_ptr()"), "kept = {}"), "failed: case 1, call 3 of 3: output 0: "),
    "unwritten": (
        new("y = torch.empty_like(x)\ny[:, 1:] = torch.softmax(x, 1)[:, 1:]\nreturn y"),
        "failed: case 1, call ",
    ),
    "in_place": (new("return x.copy_(torch.softmax(x, 1))"), "failed: case 1, call 1 of 3: input 0 was changed"),
    "beside": (
        new("x.as_strided((1,), (1,), x.storage_offset() + 240).zero_()\nreturn torch.softmax(x, 1)"),
        "failed: case 1, call 1 of 3: input 0: 4 bytes behind its end were overwritten",
    ),
    "subclass": (
        new("return torch.softmax(x, 1).as_subclass(Later)", SUBCLASS),
        "failed: case 1, call 1 of 3: expected tensors, got ",
    ),
    "aborts": (new("os.abort()"), "failed: in the call: its process ended by SIGABRT"),
}
LAYERS = {
    "linear": (LAYER, "passed: "),
    "kept_layer": (SHARED_LAYER, "failed: case 1, call 4 of 4: output 0: "),
}


def judged(folder: Path, *words: str) -> tuple[int, Verdicts]:
    """Exit status and verdicts, by the name of the solution's file or of a task without one; "more/" stays with it."""
    out = folder / "out.json"
    status = cli.main([str(folder / "tasks"), "--device", "cpu", "--seed", "5", "--json", str(out), *words])
    told = json.loads(out.read_text())
    assert told["seed"] == 5 and told["schema"] == 1
    paths = [Path(verdict["solution"]) for verdict in told["verdicts"]]
    names = [f"more/{path.stem}" if path.parent.name == "more" else path.stem for path in paths]
    return status, {name or v["task"]: v for name, v in zip(names, told["verdicts"], strict=True)}


def line(verdict: dict[str, Any]) -> str:
    return f"{verdict['status']}: {'; '.join(filter(None, (verdict['reason'], *verdict['remarks'])))}"


def write(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_solutions_of_kernelbench_in_one_command(tmp_path: Path) -> None:
    """One test for all: each solution has a process, and the command is what is shared."""
    problems = {"1_Softmax": ROWS, "2_Linear": LINEAR, "3_Ones": ONES, "4_Broken": BROKEN, "5_Unsolved": ROWS}
    problems["6_Deep"] = DEEP
    write(tmp_path, {f"tasks/level1/{name}.py": text for name, text in problems.items()})
    task = str(tmp_path / "tasks/level1/1_Softmax.py")
    reads = new(f"told = {{}}\nexec(open({task!r}).read(), told)\nreturn told['Model']()(x)")
    given = {name: text for name, (text, _) in SOFTMAX.items()} | {"reads_the_task": reads}
    write(tmp_path, {f"runs/level_1_problem_1/{name}.py": text for name, text in given.items()})
    write(tmp_path, {f"runs/level_1_problem_2/{name}.py": text for name, (text, _) in LAYERS.items()})
    write(tmp_path, {f"runs/level_1_problem_{n}_sample_0_kernel.py": SOFTMAX["torch"][0] for n in (3, 4)})
    deep = DEEP.partition("def get_inputs")[0].replace("class Model(", "class ModelNew(")
    write(tmp_path, {"runs/level_1_problem_6/deep.py": deep})
    write(tmp_path, {"runs/level_1_problem_6/off.py": deep.replace("+ self.more", "+ 1.01 * self.more")})
    words = ["--format", "kernelbench", "--solutions", str(tmp_path / "runs"), "--allow", "torch", "-n", "2"]
    status, found = judged(tmp_path, *words, "--junitxml", str(tmp_path / "out.xml"))

    asked = {name: start for name, (_, start) in {**SOFTMAX, **LAYERS}.items()}
    asked["level_1_problem_3_sample_0_kernel"] = "not judged: one number everywhere would pass"
    asked["level_1_problem_4_sample_0_kernel"] = "not judged: 4_Broken.py: ValueError: on purpose"
    asked["deep"] = "passed: weights times 2.45, as the result hardly depends on the inputs"
    asked["off"] = "failed: case 1, call 1 of 4: output 0: "
    asked["level1/5_Unsolved"] = "no solution: "
    if not sandbox.not_held():  # without walls it does read it
        asked["reads_the_task"] = "failed: raised FileNotFoundError"
    other = {name: line(found[name]) for name, start in asked.items() if not line(found[name]).startswith(start)}
    assert not other and status == 1
    for name in SOFTMAX:
        assert found[name]["judged"] == ("" if name == "aborts" else "softmax") or found[name]["trials"] == 0
    assert found["linear"]["judged"] == "estimated" and found["linear"]["trials"] == 4 and found["linear"]["worst"] <= 1
    passed = [name for name, verdict in found.items() if verdict["status"] == "passed"]
    assert {"triton", "torch", "linear"} <= set(passed) and all(found[name]["trials"] >= 3 for name in passed)

    suite = ElementTree.parse(tmp_path / "out.xml").getroot().find("testsuite")
    assert suite is not None
    counts = [int(suite.get(name, 0)) for name in ("tests", "skipped", "failures")]
    assert counts == [len(found), 1, len(found) - 1 - len(passed)]


def test_a_function_beside_a_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = "def slow(x, y):\n    return x @ y\n", "def fast(x, y):\n    return x.matmul(y)\n"
    write(tmp_path, {"slow.py": slow, "fast.py": fast})
    words = [f"{tmp_path}/fast.py:fast", "--reference", f"{tmp_path}/slow.py:slow", "--allow", "torch"]
    assert cli.main([*words, "--inputs", "x=5x70:bf16 y=70x6:bf16", "--device", "cpu"]) == 0
    assert "1 of 1 passed (1 by a spec); seed" in capsys.readouterr().out


GPU_MODE = {
    "task.yml": "files:\n  - {name: submission.py, source: '@SUBMISSION@'}\n  - {name: task.py, source: task.py}\n"
    "  - {name: reference.py, source: reference.py}\ntests:\n  - {size: 33, seed: 4}\n  - {size: 48, seed: 5}\n",
    "task.py": "input_t = object\n",
    "template.py": "def custom_kernel(data):\n    raise NotImplementedError\n",
    "reference.py": "import torch\nfrom task import input_t\n\ndef generate_input(size, seed):\n"
    "    gen = torch.Generator(device='cuda').manual_seed(seed)\n"
    "    x = torch.randn(size, size, device='cuda', generator=gen)\n    return x, torch.empty(size, device='cuda')\n\n"
    "def ref_kernel(data):\n    data[1][...] = data[0].exp().sum(1).log()\n    return data[1]\n\n"
    "def check_implementation(data, output):\n    return True, ref_kernel(data)\n",
}
SUBMISSION = "import torch\nfrom task import input_t\n\ndef custom_kernel(data):\n"
SUBMISSION += "    data[1][...] = torch.logsumexp(data[0].cuda(), 1)\n    return data[1]\n"
RMS = "    z = x.float()\n    s = torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6)\n"
RMS += "    return (z * s * weight.float()).to(x.dtype)\n"
DEFINITION = {
    "name": "rms",
    "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 64}},
    "inputs": {
        "x": {"shape": ["rows", "hidden"], "dtype": "bfloat16"},
        "weight": {"shape": ["hidden"], "dtype": "bfloat16"},
    },
    "outputs": {"y": {"shape": ["rows", "hidden"], "dtype": "bfloat16"}},
    "reference": f"import torch\n\ndef run(x, weight):\n{RMS}",
}


def flashinfer(name: str, text: str, **spec: Any) -> dict[str, str]:
    told = {
        "name": name,
        "definition": "rms",
        "spec": {"language": "python", "entry_point": "main.py::run", **spec},
        "sources": [{"path": "main.py", "content": f"import torch\nfrom helper import EPS\n{text}"}],
    }
    told["sources"].append({"path": "helper.py", "content": "EPS = 1e-6\n"})
    return {f"solutions/{name}.json": json.dumps(told)}


DESTINATION = (
    "def run(x, weight, y):\n    y.copy_(torch.nn.functional.rms_norm(x.float(), (64,), weight.float(), EPS))\n"
)
FLASHINFER = {
    "definitions/rms.json": json.dumps(DEFINITION),
    **flashinfer("right", DESTINATION, destination_passing_style=True),
    **flashinfer(
        "short", DESTINATION.replace("y.copy_", "y[1:].copy_").replace("x.f", "x[1:].f"), destination_passing_style=True
    ),
    **flashinfer("native", "", language="cuda"),
}
ADD = "def add__Tensor_kernel_impl(x, y, *, alpha=1):\n    return x + alpha * y\n"
BACKENDBENCH = {
    "trace.txt": "Operator: aten.add.Tensor\ncnt: 3, ((T([5, 7], f32, [1, 5]), T([7], f32)), {'alpha': 2})\n",
    "add__Tensor/add__Tensor_implementation_v1.py": ADD,
    "add__Tensor/add__Tensor_implementation_v2.py": ADD.replace("alpha *", "1.5 *"),
}
MINE = """
import torch

def inputs(seed):
    return {"x": torch.randn(9, 5, generator=torch.Generator().manual_seed(seed))}

def reference(x):
    return x.cumsum(1)

def kernel(x):
    return reference(x)
"""
PYTHON = {"mine.py": MINE, "more/mine.py": "def kernel(x):\n    return x.cumsum(1)\n"}


@pytest.mark.parametrize(
    ("name", "files", "told"),
    [
        (
            "gpu_mode",
            {f"one/{name}": text for name, text in GPU_MODE.items()}
            | {
                "one/submission.py": SUBMISSION,
                "one/submissions/other.py": SUBMISSION.replace("data[0].cuda()", "data[0][:, 1:]"),
            },
            {"submission": ("passed", "estimated", 6), "other": ("failed", "estimated", 0)},
        ),
        (
            "flashinfer_bench",
            FLASHINFER,
            {
                "right": ("passed", "rms_norm", 3),
                "short": ("failed", "rms_norm", 0),
                "native": ("not judged", "", 0),
            },
        ),
        (
            "backendbench",
            BACKENDBENCH,
            {
                "add__Tensor_implementation_v1": ("passed", "estimated", 3),
                "add__Tensor_implementation_v2": ("failed", "estimated", 0),
            },
        ),
    ],
)
def test_solutions_of_a_format(
    tmp_path: Path, name: str, files: dict[str, str], told: dict[str, tuple[str, str, int]]
) -> None:
    write(tmp_path / "tasks", files)
    status, found = judged(tmp_path, "--format", name, "--allow", "torch")
    assert status == 1
    assert {n: (v["status"], v["judged"], v["trials"]) for n, v in found.items()} == told, [
        line(v) for v in found.values()
    ]


def test_what_torch_computes_is_refused_and_a_file_with_its_reference_goes_without_it(tmp_path: Path) -> None:
    write(tmp_path / "tasks", PYTHON)
    status, found = judged(tmp_path, "--format", "python")
    same, other = (line(found[name]) for name in ("mine", "more/mine"))
    assert status == 1 and "NameError" in same and "into a file of its own" in same
    assert other.startswith("refused: torch computed it (--allow torch); no kernel of its own was launched")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--format", "kernelbench"], "no task of kernelbench"),
        (["--format", "kernelbench", "--only", "x"], "by the name of x"),
        (["--reference", "none.py:f"], "expected FILE.py:FUNCTION"),
        ([], "or FOLDER and --format"),
    ],
)
def test_what_is_no_question(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert cli.main([str(tmp_path), *words]) == 2
    assert told in capsys.readouterr().err
