"""flashinfer-bench: a definition is JSON with axes, inputs, outputs and the text of a reference; workloads are lines of
JSON with the lengths of variable axes; a solution is JSON with its sources.

Inputs that a workload calls random are drawn; those that it has in a file of safetensors are read from there, and drawn
where the file is not at hand, or lengths are reduced (`flashinfer_inputs`).
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelmux.judge.formats import modes, sources
from kernelmux.judge.formats.candidate_side import resized, tensors
from kernelmux.judge.formats.projects import flashinfer_constants
from kernelmux.judge.formats.projects.flashinfer_inputs import DefinitionAxes, DrawnInputs, Lengths, dtype_of, shape_of
from kernelmux.judge.formats.task import DESTINATION, FUNCTION, Case, FormatError, Solution, Task, read
from kernelmux.judge.formats.trial import CPU, Problem, TaskTrial, first_line

NAME = "flashinfer_bench"
TOLERANCE = "1e-2 relative or absolute"
LANGUAGES = ("python", "triton")
BEYOND = 64  # times the limit: what lengths that cannot be reduced may take
CALLS = 1024  # of torch in a reference, which runs some 40 times for a bound
RANDOM = re.compile(r"torch\.(multinomial|rand\w*|bernoulli|normal)\b|\.(multinomial|(exponential|uniform|normal)_)\(")
INTERFACE = ("axes", "inputs", "outputs", "reference")


def find(folder: Path) -> list[Task]:
    """The definitions in a folder and those below, each with its workloads."""
    definitions: dict[str, tuple[Path, dict[str, Any]]] = {}
    workloads: dict[str, list[dict[str, Any]]] = {}
    for path, told in _objects(folder):
        if all(part in told for part in INTERFACE):
            definitions.setdefault(str(told["name"]), (path, told))
        elif isinstance(told.get("workload"), dict):
            line = {**told["workload"], "base": str(_root(path))}
            known = workloads.setdefault(str(told.get("definition")), [])
            if line.get("uuid") is None or line["uuid"] not in [w.get("uuid") for w in known]:
                known.append(line)
    return [
        Task(
            name,
            NAME,
            path,
            "run",
            tuple(workloads.get(name, ())),
            tuple(workloads.get(name, ())),
            TOLERANCE,
            "random: its result is no function of its inputs" if RANDOM.search(str(told["reference"])) else "",
        )
        for name, (path, told) in sorted(definitions.items())
    ]


def solutions(tasks: Sequence[Task], folder: Path) -> dict[str, list[Solution]]:
    """The solutions in a folder and those below, by the definition that they name."""
    found: dict[str, list[Solution]] = {task.name: [] for task in tasks}
    for path, told in _objects(folder):
        if "sources" in told and "spec" in told and (known := found.get(str(told.get("definition")))) is not None:
            known.append(_solution(path, told))
    return found


def _solution(path: Path, told: Mapping[str, Any]) -> Solution:
    try:
        spec = told["spec"]
        main, _, entry = str(spec.get("entry_point", "main.py::run")).partition("::")
        texts = {str(s["path"]): str(s["content"]) for s in told["sources"]}
        language = str(spec.get("language") or ", ".join(spec.get("languages") or ())).lower()
    except (KeyError, TypeError, AttributeError) as error:
        return Solution(path, "run", {}, scope=f"expected a solution with spec and sources: {error!r}")
    if language not in LANGUAGES:
        return Solution(path, entry, texts, scope=f"its language is {language}: {' and '.join(LANGUAGES)} are run")
    if main not in texts:
        return Solution(path, entry, texts, scope=f"entry_point: expected a file of sources, got {main!r}")
    style = _style(spec.get("destination_passing_style"), texts[main], entry)
    return Solution(path, entry, {main: texts[main], **texts}, style)


def _objects(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted([*folder.rglob("*.json"), *folder.rglob("*.jsonl")]):
        text = read(path)
        if '"definition"' not in text and '"axes"' not in text:
            continue
        for part in text.splitlines() if path.suffix == ".jsonl" else [text]:
            try:
                told = json.loads(part)
            except ValueError:
                continue
            if isinstance(told, dict):
                yield path, told


def _root(path: Path) -> Path:
    """The folder of a data set, to which the paths of its workloads are relative: that of "workloads" or "traces"."""
    above = [p for p in path.parents if p.name in ("workloads", "traces")]
    return above[-1].parent if above else path.parent


def _style(said: bool | None, text: str, entry: str) -> str:
    """Whether a solution is given its outputs: as it says, and for an old one that does not, if it returns none."""
    if said is not None:
        return DESTINATION if said else FUNCTION
    try:
        function = sources.defined(ast.parse(text)).get(entry)
    except SyntaxError:
        return FUNCTION
    returns = function and any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))
    return FUNCTION if returns else DESTINATION


class FlashInferBench(Problem):
    """A definition whose reference has run."""

    def __init__(self, task: Task, device: torch.device = CPU) -> None:
        super().__init__(task, device)
        self.told = json.loads(read(task.source))
        if missing := [part for part in INTERFACE if part not in self.told]:
            raise FormatError(f"{task.name}: expected {', '.join(INTERFACE)}, got none for {', '.join(missing)}")
        self.whole, self.sizes = self.told["axes"], dict[str, tuple[int, int]]()
        self._take(self.told)
        self.reduced: dict[tuple[int, int], Lengths] = {}

    def _take(self, told: dict[str, Any]) -> None:
        """Read a definition, this one or one with smaller constants, and run the text of its reference."""
        self.told, self.axes = told, DefinitionAxes(told)
        self.function = sources.of_text(told["reference"], "run", f"{self.task.name}: reference", self.device)

    def trial(self, seed: int, case: int = 0, limit: int | None = None, model_seed: int = 0) -> TaskTrial:
        workload = self.task.cases[case] if self.task.cases else {}
        if limit:
            self._shrink(limit)
        whole = self.axes.lengths(workload.get("axes") or {})
        axes = self._fit(case, whole, workload, limit) if limit else whole
        changed = [f"{n} {whole[n]} -> {axes[n]}" for n in self.axes.variable if axes[n] != whole[n]]
        changed += [
            f"{n} {a['value']} -> {axes[n]}" for n, a in self.whole.items() if a.get("value", axes[n]) != axes[n]
        ]
        args, drawn = self._drawn(axes, seed, workload, bool(changed))
        notes = [f"reduced: {', '.join(changed)}"] if changed else []
        notes += [f"{', '.join(drawn)} drawn"] if drawn else []
        note = "; ".join(notes)
        return TaskTrial(self.task, args, self._reference, note=note, sizes=self.sizes, device=self.device)

    def _reference(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Any) -> Any:
        given = self.function(*args)
        if isinstance(given, Mapping):
            return tuple(given[name] for name in self.told["outputs"])
        return tensors(given)

    def _shrink(self, limit: int) -> None:
        """Reduce constant axes where they alone take `BEYOND` times a limit, with the numbers of the reference's text."""
        if self._bytes(self._shortest(self.axes, {})) <= BEYOND * limit:
            return

        def fits(axes: dict[str, Any]) -> bool:
            return self._bytes(self._shortest(DefinitionAxes({**self.told, "axes": axes}), {})) <= limit

        axes, self.sizes = flashinfer_constants.smaller(self.whole, fits)
        text = resized(self.told["reference"], self.sizes)
        self._take({**self.told, "axes": axes, "reference": text})

    def _shortest(self, axes: DefinitionAxes, given: Mapping[str, int]) -> Lengths:
        """The least lengths of variable axes."""
        least = axes.lengths(given)
        while (shorter := axes.halved(least)) is not None:
            least = shorter
        return least

    def _fit(self, case: int, whole: Lengths, workload: Case, limit: int) -> Lengths:
        """Lengths of variable axes that take a number of bytes at most, and let the reference make `CALLS` calls at most.

        Where constant axes take more by themselves, variable ones may add an eighth of the limit. FormatError where they
        take `BEYOND` times the limit.
        """
        if (case, limit) not in self.reduced:
            axes = whole
            if (floor := self._bytes(self._shortest(self.axes, whole))) > BEYOND * limit:
                raise FormatError(f"{self.task.name}: no lengths below {floor} bytes run, and the limit is {limit}")
            most = max(limit, floor + limit // 8)
            while self._bytes(axes) > most or self._busy(axes, workload, axes != whole):
                if (shorter := self.axes.halved(axes)) is None:
                    break
                axes = shorter
            self.reduced[case, limit] = axes
        return self.reduced[case, limit]

    def _busy(self, axes: Lengths, workload: Case, reduced: bool) -> bool:
        """Whether the reference makes more than `CALLS` calls of torch, as one does that goes from token to token."""
        args, _ = self._drawn(axes, 0, workload, reduced)
        try:
            with torch.no_grad(), modes.placed(self.device), modes.FewCalls(CALLS):
                self.function(*args)
        except modes.TooManyCalls:
            return True
        except Exception:
            return False  # the trial says what is wrong
        return False

    def _bytes(self, axes: Lengths) -> int:
        everything = [*self.told["inputs"].values(), *self.told["outputs"].values()]
        return sum(torch.Size(shape_of(t, axes) or ()).numel() * dtype_of(t).itemsize for t in everything)

    def _drawn(self, axes: Lengths, seed: int, workload: Case, reduced: bool) -> tuple[tuple[Any, ...], list[str]]:
        """The arguments of a call, and the names of those that were drawn though a file has them."""
        inputs, found, drawn = DrawnInputs(self.told, axes, seed), dict[str, Any](), list[str]()
        for name in self.told["inputs"]:
            source = (workload.get("inputs") or {}).get(name) or {"type": "random"}
            value = self._stored(name, source, workload, reduced)
            if value is None:
                value = inputs.draw(name)
                drawn += [name] if source.get("type") == "safetensors" else []
            found[name] = value.to(self.device) if isinstance(value, torch.Tensor) else value
        return tuple(found[name] for name in self._order()), drawn

    def _order(self) -> list[str]:
        """The inputs in the order of the reference's arguments: in some definitions they are listed in another one."""
        listed, named = list(self.told["inputs"]), list(inspect.signature(self.function).parameters)
        return named if sorted(named) == sorted(listed) else listed

    def _stored(self, name: str, source: Mapping[str, Any], workload: Case, reduced: bool) -> Any:
        """The value that a workload gives, as a number or in a file that is at hand; else None."""
        if source.get("type") == "scalar":
            return source["value"]
        if source.get("type") != "safetensors" or reduced:
            return None
        path = Path(workload.get("base", "."), str(source["path"]))
        if not path.is_file() or read_head(path).startswith(b"version https://git-lfs"):
            return None
        return _stored(path, str(source["tensor_key"]), name)


def read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(32)


def _stored(path: Path, key: str, name: str) -> torch.Tensor:
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise FormatError(f"{name}: stored as safetensors: pip install safetensors") from None
    try:
        found: torch.Tensor = load_file(path)[key]
    except (OSError, KeyError, ValueError) as error:
        raise FormatError(f"{name}: {path}: {type(error).__name__}: {first_line(error)}") from error
    return found
