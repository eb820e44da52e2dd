"""What tests of tasks need: files that are written, and solutions that run in the test's own process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from kernelmux.judge import formats
from kernelmux.judge.formats import candidate_side


@contextmanager
def imports_undone() -> Iterator[None]:
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
