"""GPU MODE's reference-kernels: a folder with task.yml, reference.py and a submission with custom_kernel(data).

task.yml lists the files, the tests, the benchmarks and sometimes the GPUs; reference.py has generate_input(**case), and
ref_kernel(data) or a check_implementation(data, output) of its own. A competition's yaml beside the folders names the GPUs
of its problems. Where results are compared with ref_kernel's, they are judged against it in float64; where any result with
some property is right (a factorisation), by the task's own check. A file with reference_forward and reference_backward is
one task for each of them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelmux.judge.formats import modes, reduced_sizes, sources
from kernelmux.judge.formats.task import Case, FormatError, Solution, Task, read
from kernelmux.judge.formats.trial import CPU, Problem, TaskTrial, first_line

NAME = "gpu_mode"
FILE, SUBMISSION = "task.yml", "@SUBMISSION@"
ENTRY, SUBMITTED = "custom_kernel", "submission.py"
OTHERS = ("eval.py", "reference.py", "task.py", "utils.py")  # that lie in the folder of a task
AMD = ("MI", "AMD", "RADEON")


def find(folder: Path) -> list[Task]:
    """The tasks of every task.yml in a folder and those below. FormatError where PyYAML is not installed."""
    gpus = _competitions(folder)
    return [task for path in sorted(folder.rglob(FILE)) for task in _tasks(folder, path, gpus)]


def _tasks(folder: Path, path: Path, gpus: Mapping[Path, list[str]]) -> Iterator[Task]:
    told, home = _yaml(path), path.parent
    name = str(home.relative_to(folder)) if home != folder else home.resolve().name
    files = {f["name"]: str(f["source"]) for f in told.get("files", [])}
    beside = {n: (home / s).resolve() for n, s in files.items() if s != SUBMISSION and n.endswith(".py")}
    source = beside.pop("reference.py", home / "reference.py")
    beside.pop("eval.py", None)
    cases, benchmarks = _cases(told, "tests"), (*_cases(told, "benchmarks"), *_cases(told, "ranked_benchmarks"))
    common: dict[str, Any] = {
        "format": NAME,
        "source": source,
        "cases": _different((*cases, *benchmarks)),
        "benchmarks": benchmarks,
        "scope": _scope(told, [*told.get("gpus", []), *gpus.get(home.resolve(), [])]),
        "beside": beside,
        "tolerance": _tolerance(source),
    }
    defined = sources.names(source) if source.is_file() else {}
    parts = [n.removeprefix("reference_") for n in defined if n.startswith("reference_")]
    if "ref_kernel" in defined or not parts:
        yield Task(name, reference="ref_kernel", **common)
        return
    for part in parts:
        yield Task(f"{name}:{part}", reference=f"reference_{part}", **common)


def solutions(tasks: Sequence[Task], folder: Path) -> dict[str, list[Solution]]:
    """The files with custom_kernel, or with forward and backward of such a task, in the folder of each task and below.

    In another folder than that of the tasks: in one of the name of the task, or a file of its name; of one task also beside
    each other. Templates are no solutions.
    """
    return {task.name: list(_solutions(task, folder.resolve(), len(tasks) == 1)) for task in tasks}


def _solutions(task: Task, folder: Path, single: bool) -> Iterator[Solution]:
    name, _, part = task.name.partition(":")
    home = task.source.parent.resolve()
    places = [home] if home.is_relative_to(folder) else [folder / name, folder / home.name]
    found = [path for place in places for path in sorted(place.rglob("*.py"))]
    found += [*(sorted(folder.glob("*.py")) if single else ()), folder / f"{name}.py", folder / f"{home.name}.py"]
    known = {task.source.name, *task.beside, *OTHERS}
    for path in dict.fromkeys(found):
        if (
            path.name in known
            or path.stem.startswith("template")
            or not path.is_file()
            or _task_of(path) not in (home, None)
        ):
            continue
        if entry := _entry(path, part):
            files = {SUBMITTED: read(path)} | {n: read(other) for n, other in task.beside.items() if n != SUBMITTED}
            yield Solution(path, entry, files)


def _task_of(path: Path) -> Path | None:
    """The folder of the task that a file lies in, if it lies in one."""
    return next((parent for parent in path.parents if (parent / FILE).is_file()), None)


def _entry(path: Path, part: str) -> str:
    """The name of what a file submits, "" where it submits nothing."""
    if not part:
        return ENTRY if sources.defines(path, ENTRY) else ""
    try:
        return next((n for n in sources.names(path) if n == part or n.endswith(f"_{part}")), "")
    except FormatError:
        return ""


def _cases(told: Mapping[str, Any], key: str) -> tuple[Case, ...]:
    return tuple(dict(case) for case in told.get(key) or ())


def _different(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The cases without those that differ in their seed alone, which is not used; benchmarks must be right, too."""
    found: dict[str, Case] = {}
    for case in cases:
        found.setdefault(repr({name: value for name, value in case.items() if name != "seed"}), case)
    return tuple(found.values())


def _scope(told: Mapping[str, Any], gpus: list[str]) -> str:
    """Why a task is not for one GPU of NVIDIA, or ""."""
    if told.get("multi_gpu"):
        return "several GPUs"
    if gpus and all(gpu.upper().startswith(AMD) for gpu in gpus):
        return f"AMD: {', '.join(dict.fromkeys(gpus))}"
    return ""


def _competitions(folder: Path) -> dict[Path, list[str]]:
    """The GPUs of each problem's folder, from the competitions' files in a folder, its parents and those below."""
    found: dict[Path, list[str]] = {}
    for home in (folder, *folder.resolve().parents[:3], *(p for p in folder.iterdir() if p.is_dir())):
        for path in sorted(home.glob("*.yaml")):
            told = _yaml(path)
            for problem in told.get("problems") or () if isinstance(told, dict) else ():
                place = (home / str(problem.get("directory", ""))).resolve()
                found.setdefault(place, []).extend(map(str, problem.get("gpus") or ()))
    return found


def _yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise FormatError("files of GPU MODE are YAML: pip install PyYAML") from None
    try:
        told = yaml.safe_load(read(path))
    except yaml.YAMLError as error:
        raise FormatError(f"{path}: {first_line(error)}") from error
    return told if isinstance(told, dict) else {}


def _tolerance(source: Path) -> str:
    """The tolerances that a reference's file says as numbers, as they stand there."""
    if not source.is_file():
        return ""
    found: dict[str, None] = {}
    for node in ast.walk(sources.tree(source)):
        if isinstance(node, ast.keyword) and node.arg in ("rtol", "atol"):
            found[f"{node.arg} {ast.unparse(node.value)}"] = None
    return ", ".join(found)


class GpuMode(Problem):
    """A task whose reference.py has run."""

    def __init__(self, task: Task, device: torch.device = CPU) -> None:
        super().__init__(task, device)
        if not task.source.is_file():
            raise FormatError(f"{task.name}: expected a file {task.source.name} beside {FILE}")
        self.module = sources.module(task.source, task.beside, device)
        self.generate = getattr(self.module, "generate_input", None) or getattr(self.module, "generate_inputs", None)
        self.function = getattr(self.module, task.reference, None)
        if self.generate is None:
            raise FormatError(f"{task.name}: expected generate_input in {task.source.name}")
        self.own_check = _property(task.source)
        self.fixed = _fixed(task.source.parent / "eval.py", list(inspect.signature(self.generate).parameters))
        self.reduced: dict[tuple[int, int], Case] = {}

    def trial(self, seed: int, case: int = 0, limit: int | None = None, model_seed: int = 0) -> TaskTrial:
        sizes = {**self.fixed, **(self.task.cases[case] if self.task.cases else {})}
        used = self._fit(case, sizes, limit) if limit else sizes
        data = self._drawn(used, seed)
        changed = [f"{n} {sizes[n]} -> {v}" for n, v in used.items() if v != sizes[n]]
        made = TaskTrial(
            self.task,
            self._arguments(data),
            self._reference,
            check=functools.partial(self._checked, used, seed) if self.own_check else None,
            note=f"reduced: {', '.join(changed)}" if changed else "",
            device=self.device,
        )
        return made if self.own_check else self._rounded(made)

    def _arguments(self, data: Any) -> tuple[Any, ...]:
        """What a candidate is called with: the data as one argument, or what one of several references takes of it."""
        if not isinstance(data, tuple) or self.task.reference == "ref_kernel":
            return (data,)
        return data[: len(inspect.signature(self.function).parameters)]  # type: ignore[arg-type]

    def _rounded(self, trial: TaskTrial) -> TaskTrial:
        """The trial, its result in the dtype of the memory that candidates are given for it, which the project allows."""
        (result, *more), leaves = trial.evaluate() or (None,), trial.leaves
        if result is None or more or not leaves or leaves[-1].shape != result.shape:
            return trial
        if leaves[-1].dtype == result.dtype or not trial.ignored()[-1]:
            return trial

        def reference(args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Any) -> Any:
            return self._reference(args, kwargs, parameters).to(pytree.tree_leaves(args)[-1].dtype)

        return dataclasses.replace(trial, reference=reference, also=result.dtype)

    def _reference(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Any) -> Any:
        if self.function is None:
            raise FormatError(f"expected {self.task.reference} in {self.task.source.name}")
        return self.function(*args)

    def _drawn(self, sizes: Case, seed: int) -> Any:
        """The inputs of a case, whose own seed is not used: it is known to everybody."""
        try:
            with modes.placed(self.device):
                return self._generated(sizes, seed)
        except Exception as error:
            raise FormatError(f"generate_input: {type(error).__name__}: {first_line(error)}") from error

    def _generated(self, sizes: Case, seed: int) -> Any:
        known = inspect.signature(self.generate).parameters  # type: ignore[arg-type]
        given: dict[str, Any] = {**sizes, "seed": seed % 2**31}
        if not any(p.kind == p.VAR_KEYWORD for p in known.values()):
            given = {name: value for name, value in given.items() if name in known}
        torch.manual_seed(seed % 2**31)
        return self.generate(**given)  # type: ignore[misc]

    def _fit(self, case: int, sizes: Case, limit: int) -> Case:
        key = (case, limit)
        if key not in self.reduced:
            cost = self._size if self._effort(sizes) is None else self._effort
            self.reduced[key] = reduced_sizes.shortened(sizes, cost, limit)
        return self.reduced[key]

    def _effort(self, sizes: Case) -> float | None:
        """The effort of a case and its reference on the meta device, without memory; None where they do not run."""
        with suppress(Exception), modes.on_meta():
            data = self._generated(sizes, 0)
            return reduced_sizes.effort(lambda: (data, self._reference(self._arguments(data), {}, {})))
        return None

    def _size(self, sizes: Case) -> float | None:
        """Bytes of a case's inputs, without memory where that goes; None where they cannot be made."""
        for where in (modes.on_meta(), modes.placed(self.device)):
            with suppress(Exception), where:
                data = pytree.tree_leaves(self._generated(sizes, 0))
                return float(sum(x.nbytes for x in data if isinstance(x, torch.Tensor)))
        return None

    def _checked(self, sizes: Case, seed: int, outputs: Any) -> str:
        """ "" or what the task's own check says of a result, on the inputs, drawn anew."""
        data = self._drawn(sizes, seed)
        given = outputs[0] if isinstance(outputs, tuple) and len(outputs) == 1 else outputs
        with modes.placed(self.device):
            said = self.module.check_implementation(data, given)
        good, text = said if isinstance(said, tuple) else (not said, said)
        return "" if good else str(text or "the task's own check fails")


def _fixed(script: Path, parameters: list[str]) -> dict[str, int]:
    """The arguments of generate_input that eval.py gives as constants of its own: batch_size in generate_inputs(B, n)."""
    if not script.is_file():
        return {}
    defined = sources.names(script)
    found: dict[str, int] = {}
    for call in (n for n in ast.walk(sources.tree(script)) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id in ("generate_input", "generate_inputs"):
            for name, given in zip(parameters, call.args, strict=False):
                constant = defined.get(given.id) if isinstance(given, ast.Name) else None
                if isinstance(constant, ast.Assign) and isinstance(constant.value, ast.Constant):
                    found[name] = int(constant.value.value)  # type: ignore[arg-type]
    return found


def _property(source: Path) -> bool:
    """Whether check_implementation asks for a property, and does not compare with what ref_kernel gives."""
    check = sources.names(source).get("check_implementation")
    if check is None:
        return False
    said = {node.id for node in ast.walk(check) if isinstance(node, ast.Name)}
    return not said & {"ref_kernel", "match_reference", "make_match_reference"}
