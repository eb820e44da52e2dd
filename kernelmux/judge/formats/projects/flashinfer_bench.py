"""flashinfer-bench: a definition is JSON with axes, inputs, outputs and the text of a reference; workloads are lines of
JSON with the lengths of variable axes; a solution is JSON with its sources.

Inputs that a workload calls random are drawn; those that it has in a file of safetensors are read from there, and drawn
lawfully where the file is not at hand: offsets (`*_indptr`) rise from 0 to the axis that a constraint names, indices stay
below the number of pages.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelmux.judge.formats import sources
from kernelmux.judge.formats.candidate_side import tensors
from kernelmux.judge.formats.task import DESTINATION, FUNCTION, FormatError, Solution, Task, read
from kernelmux.judge.formats.trial import CPU, Problem, TaskTrial, first_line

NAME = "flashinfer_bench"
TOLERANCE = "1e-2 relative or absolute"
LANGUAGES = ("python", "triton")
DEFAULT = 64  # the length of a variable axis that no workload gives
INTERFACE = ("axes", "inputs", "outputs", "reference")
LAST = re.compile(r"^\s*(\w+)\s*==\s*(\w+)\[-1\](?:\.item\(\))?\s*$")
PLUS_ONE = re.compile(r"^\s*(\w+)\s*==\s*(\w+)\s*\+\s*1\s*$")


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
        Task(name, NAME, path, "run", tuple(workloads.get(name, ())), tuple(workloads.get(name, ())), TOLERANCE)
        for name, (path, _) in sorted(definitions.items())
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
        self.function = sources.of_text(self.told["reference"], "run", f"{task.name}: reference", device)
        self.lasts = {m[2]: m[1] for c in self.told.get("constraints") or () if (m := LAST.match(c))}

    def trial(self, seed: int, case: int = 0, limit: int | None = None, model_seed: int = 0) -> TaskTrial:
        workload = self.task.cases[case] if self.task.cases else {}
        axes = self._axes(workload.get("axes") or {})
        variable = [n for n, axis in self.told["axes"].items() if axis.get("type") == "var"]
        whole = dict(axes)
        while limit and self._bytes(axes) > limit and (longest := max((axes[n] for n in variable), default=1)) > 1:
            axes = self._axes({n: max(1, axes[n] // 2) if axes[n] == longest else axes[n] for n in variable})
        reduced = [f"{n} {whole[n]} -> {axes[n]}" for n in variable if axes[n] != whole[n]]
        rng = torch.Generator().manual_seed(seed)
        drawn: dict[str, Any] = {}
        notes = [f"reduced: {', '.join(reduced)}"] if reduced else []
        for name, tensor in self.told["inputs"].items():
            source = (workload.get("inputs") or {}).get(name) or {"type": "random"}
            drawn[name], note = self._input(name, tensor, source, axes, rng, drawn, workload, bool(reduced))
            notes += [note] if note else []
        return TaskTrial(
            self.task,
            tuple(drawn.values()),
            self._reference,
            note="; ".join(notes),
            device=self.device,
        )

    def _reference(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Any) -> Any:
        given = self.function(*args)
        if isinstance(given, Mapping):
            return tuple(given[name] for name in self.told["outputs"])
        return tensors(given)

    def _axes(self, given: Mapping[str, int]) -> dict[str, int]:
        """The length of every axis; those that a constraint makes one more than another follow it."""
        found = {
            n: int(a["value"]) if a.get("type") == "const" else int(given.get(n, DEFAULT))
            for n, a in self.told["axes"].items()
        }
        for constraint in self.told.get("constraints") or ():
            if (m := PLUS_ONE.match(constraint)) and m[1] in found and m[2] in found:
                found[m[1]] = found[m[2]] + 1
        return found

    def _bytes(self, axes: Mapping[str, int]) -> int:
        everything = [*self.told["inputs"].values(), *self.told["outputs"].values()]
        return sum(torch.Size(_shape(t, axes) or ()).numel() * _dtype(t).itemsize for t in everything)

    def _input(
        self,
        name: str,
        tensor: Mapping[str, Any],
        source: Mapping[str, Any],
        axes: Mapping[str, int],
        rng: torch.Generator,
        before: Mapping[str, Any],
        workload: Mapping[str, Any],
        reduced: bool,
    ) -> tuple[Any, str]:
        """An input's value, and what is to be said of it."""
        if source.get("type") == "scalar":
            return source["value"], ""
        if source.get("type") == "safetensors" and not reduced:
            path = Path(workload.get("base", "."), str(source["path"]))
            if path.is_file() and not read_head(path).startswith(b"version https://git-lfs"):
                return _stored(path, str(source["tensor_key"]), name).to(self.device), ""
        shape, dtype = _shape(tensor, axes), _dtype(tensor)
        value = self._drawn(name, shape, dtype, axes, rng, before)
        said = f"{name} drawn" if source.get("type") == "safetensors" else ""
        return (value.to(self.device) if isinstance(value, torch.Tensor) else value), said

    def _drawn(
        self,
        name: str,
        shape: tuple[int, ...] | None,
        dtype: torch.dtype,
        axes: Mapping[str, int],
        rng: torch.Generator,
        before: Mapping[str, Any],
    ) -> Any:
        if not shape:
            if dtype.is_floating_point:
                value = axes.get("head_dim", axes.get("head_dim_qk", 1)) ** -0.5 if "scale" in name else 1.0
                return value if shape is None else torch.tensor(value, dtype=dtype)
            return 0 if shape is None else torch.tensor(0, dtype=dtype)
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=rng).bool()
        if not dtype.is_floating_point:
            return self._integers(name, shape, axes, rng).to(dtype)
        value = torch.randn(shape, generator=rng, dtype=torch.float32)
        if name == "probs" and self.told.get("op_type") == "sampling":
            value = value.softmax(-1)
        return (value if dtype.itemsize > 1 else value.clamp(-2, 2)).to(dtype)

    def _integers(
        self, name: str, shape: tuple[int, ...], axes: Mapping[str, int], rng: torch.Generator
    ) -> torch.Tensor:
        if name.endswith("indptr"):
            last = axes.get(self.lasts.get(name, ""), axes.get("total_kv", DEFAULT))
            inner = torch.randint(0, last + 1, (max(0, shape[0] - 2),), generator=rng).sort().values
            ends = [torch.zeros(1, dtype=torch.int64), inner, torch.full((1,), last)]
            return torch.cat(ends)[-shape[0] :]
        if "ind" in name or "table" in name:
            return torch.randint(0, max(1, axes.get("num_pages", DEFAULT)), shape, generator=rng)
        if "len" in name:
            return torch.full(shape, max(1, axes.get("page_size", axes.get("max_seq_len", 1))))
        return torch.randint(0, 64, shape, generator=rng)


def _shape(tensor: Mapping[str, Any], axes: Mapping[str, int]) -> tuple[int, ...] | None:
    return None if tensor.get("shape") is None else tuple(axes[name] for name in tensor["shape"])


def _dtype(tensor: Mapping[str, Any]) -> torch.dtype:
    found = getattr(torch, str(tensor["dtype"]), None)
    if not isinstance(found, torch.dtype):
        raise FormatError(f"dtype: torch has no tensors of {tensor['dtype']} that it can compute with")
    return found


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
