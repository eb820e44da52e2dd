"""Any function in Python with a reference beside it: `candidate.py:function --reference mine.py:ref`.

The reference's file says what both are called with: a function `inputs(seed)` or `get_inputs()`, which returns a tuple, a
list, or a dict of named arguments. Without one, texts do, in the order of the arguments: "x=37x1000 y=37", "x=37x1000:bf16
y=37 n=scalar:fp32". One without a dtype has that of the one before it, the first fp32.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelmux.judge.formats import modes, sources
from kernelmux.judge.formats.task import FormatError, Solution, Task, read
from kernelmux.judge.formats.trial import CPU, Problem, TaskTrial, first_line
from kernelmux.registry import dtypes

NAME = "python"
REFERENCE, KERNEL = "reference", "kernel"
MAKERS = ("inputs", "get_inputs")
SHARED = "the process of the reference runs the candidate's file too: put the reference into a file of its own"
FORM = re.compile(r"(?:(\w+)=)?(\d+(?:x\d+)*|scalar)(?::(\w+))?")


def find(folder: Path) -> list[Task]:
    """The files of a folder that have a function `reference` and inputs."""
    return [
        Task(path.stem, NAME, path, REFERENCE)
        for path in sorted(folder.rglob("*.py"))
        if REFERENCE in (defined := sources.names(path)) and any(m in defined for m in MAKERS)
    ]


def solutions(tasks: Sequence[Task], folder: Path) -> dict[str, list[Solution]]:
    """The files of the tasks' names with a function `kernel`."""
    found: dict[str, list[Solution]] = {}
    for task in tasks:
        paths = [path for path in sorted(folder.rglob(task.source.name)) if sources.defines(path, KERNEL)]
        found[task.name] = [_solution(path, KERNEL, task) for path in paths]
    return found


def pair(candidate: str, reference: str, inputs: Sequence[str] = ()) -> tuple[Task, Solution]:
    """Task and solution of two texts FILE.py:FUNCTION; FormatError where a file or a function in it is not there."""
    (theirs, entry), (ours, name) = _place(candidate), _place(reference)
    task = Task(name, NAME, ours, name, cases=tuple({"text": text} for text in inputs))
    return task, _solution(theirs, entry, task)


def _solution(path: Path, entry: str, task: Task) -> Solution:
    """A function of a file. Where the reference lies in the same file, the candidate's process gets the rest of it."""
    text, note = read(path), ""
    if path.resolve() == task.source.resolve():
        text, note = sources.without(text, (task.reference, *MAKERS)), SHARED
    return Solution(path, entry, {sources.file_name(path): text}, note=note)


def _place(text: str) -> tuple[Path, str]:
    home, _, name = text.rpartition(":")
    path = Path(home).expanduser().absolute()
    if path.suffix != ".py" or not name.isidentifier():
        raise FormatError(f"expected FILE.py:FUNCTION, got {text!r}")
    if name not in sources.names(path):
        raise FormatError(f"{text}: {path} has no function {name}")
    return path, name


class PythonFunction(Problem):
    """A reference whose file has run."""

    def __init__(self, task: Task, device: torch.device = CPU) -> None:
        super().__init__(task, device)
        self.module = sources.module(task.source, device=device)
        self.function = getattr(self.module, task.reference)
        self.maker = next((m for name in MAKERS if callable(m := getattr(self.module, name, None))), None)
        if self.maker is None and not task.cases:
            wanted = " or ".join(f"{name}()" for name in MAKERS)
            raise FormatError(f"{task.source.name}: expected {wanted}, or inputs as texts such as x=37x1000")

    def trial(self, seed: int, case: int = 0, limit: int | None = None, model_seed: int = 0) -> TaskTrial:
        args, kwargs = self._drawn(seed) if not self.task.cases else _drawn(str(self.task.cases[case]["text"]), seed)
        return TaskTrial(self.task, args, self._reference, kwargs, device=self.device)

    def _reference(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Any) -> Any:
        return self.function(*args, **kwargs)

    def _drawn(self, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        torch.manual_seed(seed)
        asked = "seed" in inspect.signature(self.maker).parameters  # type: ignore[arg-type]
        try:
            with modes.placed(self.device):
                made = self.maker(seed) if asked else self.maker()  # type: ignore[misc]
        except Exception as error:
            raise FormatError(
                f"{self.task.source.name}: inputs: {type(error).__name__}: {first_line(error)}"
            ) from error
        if isinstance(made, dict):
            return (), made
        return (tuple(made) if isinstance(made, tuple | list) else (made,)), {}


def _drawn(text: str, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Normal numbers of the shapes of a text, such as "x=37x1000:bf16 y=37x1000", in its order: both are bf16."""
    rng, found, dtype = torch.Generator().manual_seed(seed), [], torch.float32
    for item in text.split():
        match = FORM.fullmatch(item)
        if match is None:
            raise FormatError(f"inputs: expected name=4x1000[:fp16], got {item!r}")
        shape = [] if match[2] == "scalar" else [int(n) for n in match[2].split("x")]
        dtype = dtypes.parse(match[3]) if match[3] else dtype
        found.append(torch.randn(shape, generator=rng).to(dtype))
    return tuple(found), {}
