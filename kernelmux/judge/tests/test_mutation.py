"""Broken kernels made by a program: each kind of change, what is thrown away and reported, the same list for a seed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import kernelmux
from kernelmux.conformance.source_constants import python_files
from kernelmux.conformance.source_constants.python_files import Reached
from kernelmux.judge import cli
from kernelmux.judge.mutation import added_paths, cuda_changes, forks, population, python_changes
from kernelmux.judge.mutation.change import KINDS, Edit, TextChange, from_dict, integers
from kernelmux.judge.mutation.command import command
from kernelmux.judge.mutation.population import MutatedKernel, Population
from kernelmux.judge.mutation.trial import MutationLimits
from kernelmux.registry.backend import lookup as registered

PYTHON = '''
import torch
import triton.language as tl


def kernel(x: torch.Tensor, n, m, scale: float):
    """No change of 7 < 8."""
    i = tl.program_id(0) * 128
    inside = (i < n) & (i > 3)
    value = tl.load(x + i, mask=inside, other=0.0).to(tl.float32)
    top = tl.maximum(value, m)
    total = tl.zeros((4,), tl.float32)
    total += value - scale
    tl.debug_barrier()
    out = torch.zeros(4)
    if n > 5 and m:
        return x.shape[0] // n
    raise ValueError(f"{n + 1}")
'''
CUDA = """
#include "other.cuh"
#define TWICE(x) (x + 2)  // a macro
// if (i < n) is a comment
__global__ void kernel(const float* x, float* y, int n) {
    float top = -INFINITY, unused;
    float total = 0.0f;
    const int i = blockIdx.x * 256 + threadIdx.x;
    for (int k = 0; k < n; ++k) {
        total += x[k] * 0.5f;
    }
    __syncthreads();
    total = fmaxf(total, top);
    if (i < n) y[i] = i > 3 ? total - top : top;
    store(i, n);
}
__device__ int unnamed(int n) { return n + 1; }
"""


def of_python(folder: Path, text: str = PYTHON, name: str = "kernel") -> dict[str, set[str]]:
    """The lines after each change, by kind."""
    path = folder / "kernel.py"
    path.write_text(text)
    file = python_files.read(path)
    assert file is not None
    reached = Reached(file, file.definitions[name][0], 0)
    return by_kind([*python_changes.changes(reached, path.name, 1.0), *added_paths.changes(reached, path.name)])


def by_kind(found: list[TextChange]) -> dict[str, set[str]]:
    kinds: dict[str, set[str]] = {}
    for change in found:
        kinds.setdefault(change.kind, set()).add(change.after)
    return kinds


def of_cuda() -> dict[str, set[str]]:
    return by_kind([c for b in cuda_changes.blocks(CUDA) for c in cuda_changes.changes("a.cu", CUDA, b, 1.0)])


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("constant", "i = tl.program_id(0) * 129"),
        ("constant", "i = tl.program_id(0) * 64"),
        ("term", "i = (tl.program_id(0))"),
        ("term", "if (m):"),
        ("order", "total += ((scale) - (value))"),
        ("order", "return x.shape[1] // n"),
        ("order", "top = tl.maximum(m, value)"),
        ("mask", "value = tl.load(x + i, mask=(inside) | True, other=0.0).to(tl.float32)"),
        ("mask", "inside = (i < (n + 1)) & (i > 3)"),
        ("mask", "inside = (i > 3)"),
        ("mask", "if True or (n > 5 and m):"),
        ("comparison", "inside = (i <= n) & (i > 3)"),
        ("comparison", "if n >= 5 and m:"),
        ("barrier", "None"),
        ("accumulator", "total = (total + (value - scale)).to(tl.bfloat16).to(tl.float32)"),
        ("accumulator", "value = tl.load(x + i, mask=inside, other=0.0)"),
        ("initial value", "total = (tl.zeros((4,), tl.float32) + 1)"),
        ("initial value", "out = torch.empty(4)"),
        ("special values", "top = (value)"),
    ],
)
def test_python_changes(kind: str, line: str, tmp_path: Path) -> None:
    assert line in of_python(tmp_path)[kind]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("constant", "const int i = blockIdx.x * 255 + threadIdx.x;"),
        ("constant", "#define TWICE(x) (x + 3) // a macro"),
        ("term", "const int i = blockIdx.x + threadIdx.x;"),
        ("order", "const int i = blockIdx.y * 256 + threadIdx.x;"),
        ("order", "store(n, i);"),
        ("mask", "if (true || (i < n)) y[i] = i > 3 ? total - top : top;"),
        ("mask", "if (i < n + 1) y[i] = i > 3 ? total - top : top;"),
        ("comparison", "for (int k = 0; k <= n; ++k) {"),
        ("comparison", "if (i < n) y[i] = i >= 3 ? total - top : top;"),
        ("barrier", ";"),
        ("accumulator", "total = __uint_as_float(__float_as_uint(total + (x[k] * 0.5f)) & 0xffff0000u);"),
        ("initial value", "float top = 0.0f, unused;"),
        ("initial value", "float total = 0.0f + 1;"),
        ("special values", "total = (total);"),
        ("special values", "if (i < n) y[i] = top;"),
        ("fast path", "if (n != 96) total = fmaxf(total, top);"),
    ],
)
def test_cuda_changes(kind: str, line: str) -> None:
    assert line in of_cuda()[kind]


def test_what_is_no_code_is_left_alone(tmp_path: Path) -> None:
    every = {line for lines in of_python(tmp_path).values() for line in lines}
    assert not any("No change of" in line or "raise" in line or "def kernel" in line for line in every)
    assert not any(line.startswith(("//", "#include")) for lines in of_cuda().values() for line in lines)


def test_every_kind_has_changes_of_ours() -> None:
    found = [
        c for op, b, v in (("softmax", "triton", "online"), ("matmul", "cuda", "tiled")) for c in changes(op, b, v)
    ]
    assert {c.kind for c in found} == set(KINDS)
    for change in found[::50]:
        assert from_dict(json.loads(json.dumps(change.as_dict()))) == change


def changes(op: str, backend: str, variant: str) -> list[TextChange]:
    return list(population.changes(op, backend, variant))


def test_headers_count_by_what_is_used() -> None:
    texts = [
        ("a.cu", '#include "b.cuh"\nvoid k() { one(); }', True),
        ("b.cuh", "int one() { return two; }\nint two = 2;\nint six() { return 6; }", False),
    ]
    used = [text[block.start : block.end].strip() for _, text, block in cuda_changes.used(texts)]
    assert "int two = 2;" in used and not any("six" in part for part in used)


def test_integers_have_neighbours() -> None:
    assert integers(0) == [1] and integers(7) == [8, 6] and integers(64) == [65, 63, 128, 32]


@pytest.mark.parametrize("kind", ["fast path", "state"])
def test_added_paths_are_python_that_runs(kind: str) -> None:
    """Each text of a function with one can be compiled, and answers."""
    (folder,) = {registered.folder("torch_ref")}
    assert folder is not None
    found = [c for c in changes("softmax", "torch_ref", "exact") if c.kind == kind]
    text = (folder / "softmax.py").read_text()
    assert len(found) > 4
    for change in found:
        names: dict[str, object] = {}
        exec(compile(change.applied(text).partition("\nVARIANTS")[0], "softmax.py", "exec"), names)
        assert names["exact"]


def test_a_seed_gives_the_same_list() -> None:
    ops, backends = ("softmax", "add"), ("torch_ref", "cuda")
    one, same, other = (Population(ops, backends, seed) for seed in (5, 5, 6))
    drawn = [one.draw(n, a) for n in range(12) for a in range(2)]
    assert drawn == [same.draw(n, a) for n in range(12) for a in range(2)]
    assert drawn != [other.draw(n, a) for n in range(12) for a in range(2)]
    assert {kernel.backend for kernel in drawn} == {"torch_ref", "cuda"}


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (lambda send, folder: send(1), [("said", 1), ("ended", "")]),
        (
            lambda send, folder: __import__("os").kill(__import__("os").getpid(), 9),
            [("ended", "its process ended by SIGKILL")],
        ),
        (lambda send, folder: __import__("time").sleep(60), [("hangs", "it said nothing for 0.5 s")]),
    ],
    ids=["says", "dies", "hangs"],
)
def test_a_forked_process_is_heard_until_its_end(work: Callable[..., None], told: list[tuple[str, object]]) -> None:
    assert list(forks.messages(work, 30.0, 0.5 if told[0][0] == "hangs" else 20.0)) == told


# --- whole runs, with changes that are given ----------------------------------------------------------------

FILE = "softmax.py"


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Changes of `softmax[torch_ref/exact]`, one mutant after the other: what its first result is instead of RESULT.

    One that begins with "raise" is a statement that every call comes to.
    """

    def draws(results: list[str]) -> None:
        text = registered_text()
        start = text.index("return ", text.index("def exact(")) + len("return ")
        end = text.index("\n", start)

        def draw(self: Population, number: int, attempt: int) -> MutatedKernel:
            result = results[number + attempt]
            begin = text.index("if scale", text.index("def exact("))
            if result.startswith("raise"):
                return of([(begin, begin, f"{result}\n    ")], number, attempt)
            new = result.replace("RESULT", text[start:end].partition("  #")[0])
            return of([(start, end, new)], number, attempt)

        def of(edits: list[Edit], number: int, attempt: int) -> MutatedKernel:
            change = TextChange.of("term", FILE, text, edits)
            return MutatedKernel(number, attempt, "softmax", "torch_ref", "exact", change)

        monkeypatch.setattr(Population, "draw", draw)

    return draws


def registered_text() -> str:
    folder = registered.folder("torch_ref")
    assert folder is not None
    return (folder / FILE).read_text()


def test_a_run_reports_what_dies_and_what_is_no_mutant(
    given: Callable[[list[str]], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given(["(RESULT)", "raise OSError", "(RESULT", "(RESULT) * 1.125"])
    path = tmp_path / "run.json"
    assert command(1, 1, ("softmax",), ("torch_ref",), 1, str(path)) == 0
    told = json.loads(path.read_text())
    assert [row["outcome"] for row in told["rows"]] == ["not shown wrong", "no kernel", "no kernel", "killed"]
    assert told["killed"] == 1 and told["thrown away"] == {"not shown wrong": 1, "no kernel": 2}
    killed = told["rows"][-1]
    assert killed["check"] == "accuracy" and killed["witness"] and "budget used" in killed["found"]
    out = capfd.readouterr().out
    assert (
        "torch_ref: 1 of 1 killed" in out
        and "killed by: accuracy 1" in out
        and "1 of 1 broken kernels killed (100.0%), 3 thrown away, seed 1" in out
    )


def test_a_hang_is_killed_and_a_survivor_is_listed(
    given: Callable[[list[str]], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second is wrong where this test says so: from its second process on, which is the suite's, it is right."""
    mark = tmp_path / "searched"
    search = f"__import__('os').getppid() and __import__('pathlib').Path({str(mark)!r})"
    hang = "(RESULT) if x.shape[axis] < 2 else exec('while True: pass')"
    once = f"(RESULT) if ({search}).exists() else ((RESULT) * ({search}).touch() or (RESULT) * 2)"
    given([hang, once.replace("(RESULT) * (", "(").replace(" or (RESULT) * 2", " or (RESULT) * 2")])
    path = tmp_path / "run.json"
    limits = MutationLimits(search=60.0, call=6.0, suite=240.0, item=20.0)
    assert command(2, 1, ("softmax",), ("torch_ref",), 1, str(path), limits) == 1
    rows = json.loads(path.read_text())["rows"]
    assert rows[0]["outcome"] == "killed" and rows[0]["check"] == "hang" and "hang" in rows[0]["found"]
    assert rows[1]["outcome"] == "survived" and rows[1]["asked"] > 10
    out = capfd.readouterr().out
    assert "survived: softmax[torch_ref/exact] term softmax.py:" in out and "shown by x=" in out
    assert "1 of 2 broken kernels killed (50.0%)" in out


def test_ctrl_c_ends_with_a_report(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    given = ["--mutate", "100", "--op", "softmax", "--backend", "torch_ref", "-n", "1", "--json", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(kernelmux.__file__).parents[1])}
    words = [sys.executable, "-m", "kernelmux.judge", *given]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what runs in the background may ignore it
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment, preexec_fn=heard
    ) as program:
        assert program.stdout and program.stdout.readline().startswith("[1/100] ")
        program.send_signal(signal.SIGINT)
        rest = program.stdout.read()
    assert program.returncode == 130 and "broken kernels killed (" in rest
    told = json.loads(path.read_text())
    assert told["killed"] + told["survived"] >= 1 and "--mutate 100 --seed 0" in told["run"]["command"]


@pytest.mark.parametrize(
    ("given_arguments", "said"),
    [
        (["--mutate", "0"], "expected 1 or more, got 0"),
        (["--mutate", "1", "--backend", "tritn"], '"triton"'),
        (["--mutate", "1", "--op", "sofmax"], "softmax"),
    ],
)
def test_wrong_commands(given_arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(given_arguments) == 2
    assert said in capsys.readouterr().err
