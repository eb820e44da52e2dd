"""Tasks of other projects: their files are read as they are, and become calls that the judge can make.

`find(format, folder)` and `solutions(tasks, folder)` read files and run nothing of them. `problem(task)` imports the
reference of a task, in a process behind walls (`reference`); its `trial(seed)` has the inputs and the reference,
`expected.of(trial)` the right results and how far a candidate's may be off (`bounds`). `candidate_side` is what runs in a
candidate's process, and imports nothing from here. `judging` asks both processes and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from kernelmux.judge.formats.projects import backendbench, flashinfer_bench, gpu_mode, kernelbench, python_function
from kernelmux.judge.formats.task import Case, FormatError, Solution, Task
from kernelmux.judge.formats.trial import CPU, Problem, TaskTrial

__all__ = [
    "FORMATS",
    "Case",
    "Format",
    "FormatError",
    "Problem",
    "Solution",
    "Task",
    "TaskTrial",
    "find",
    "problem",
    "solutions",
]


class Format(NamedTuple):
    """How the tasks of a project are found, and how one of them is run."""

    find: Callable[[Path], list[Task]]
    solutions: Callable[[Sequence[Task], Path], dict[str, list[Solution]]]
    problem: Callable[[Task, torch.device], Problem]


FORMATS = {
    kernelbench.NAME: Format(kernelbench.find, kernelbench.solutions, kernelbench.KernelBench),
    backendbench.NAME: Format(backendbench.find, backendbench.solutions, backendbench.BackendBench),
    gpu_mode.NAME: Format(gpu_mode.find, gpu_mode.solutions, gpu_mode.GpuMode),
    flashinfer_bench.NAME: Format(flashinfer_bench.find, flashinfer_bench.solutions, flashinfer_bench.FlashInferBench),
    python_function.NAME: Format(python_function.find, python_function.solutions, python_function.PythonFunction),
}


def find(name: str, folder: Path) -> list[Task]:
    """The tasks of a format in a folder; FormatError for an unknown format, or a folder that is not there."""
    if name not in FORMATS:
        raise FormatError(f"--format: expected one of {', '.join(FORMATS)}, got {name!r}")
    if folder.is_file():
        one = "one function is judged by `kernelmux judge FILE:FUNCTION --reference FILE:FUNCTION`"
        raise FormatError(f"{folder}: expected a folder with tasks of {name}, got a file; {one}")
    if not folder.is_dir():
        raise FormatError(f"{folder}: expected a folder")
    return FORMATS[name].find(folder)


def solutions(tasks: Sequence[Task], folder: Path) -> dict[str, list[Solution]]:
    """The solutions in a folder for tasks of one format, by the task's name; FormatError for a folder that is not there."""
    if not folder.is_dir():
        raise FormatError(f"{folder}: expected a folder")
    return FORMATS[tasks[0].format].solutions(tasks, folder) if tasks else {}


def problem(task: Task, device: torch.device = CPU) -> Problem:
    """The task with its reference imported, which runs the reference's file; FormatError where that fails."""
    return FORMATS[task.format].problem(task, device)
