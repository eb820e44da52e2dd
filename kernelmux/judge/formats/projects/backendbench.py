"""BackendBench: a folder of operators by their aten names, each a folder with <op>_implementation*.py and <op>_kernel_impl.

add__Tensor stands for aten.add.Tensor. The reference is torch's own operator in float64. What it is called with comes from
a trace, a text file of lines "Operator: aten.add.Tensor" and "cnt: 1, ((T([5, 7], f32), ...), {})" in the folder; for an
operator without one, from torch's own tests of operators, where they are installed (`operator_samples`).
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelmux.judge.formats import sources
from kernelmux.judge.formats.candidate_side import SparseParts, whole
from kernelmux.judge.formats.projects import operator_samples
from kernelmux.judge.formats.task import FormatError, Solution, Task, read
from kernelmux.judge.formats.trial import CPU, Problem, TaskTrial, first_line

NAME = "backendbench"
TOLERANCE = "1e-2 relative and absolute"
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "c64": torch.complex64,
    "c128": torch.complex128,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "b8": torch.bool,
}
RANDOM = re.compile(r"rand|bernoulli|dropout|normal_|multinomial|exponential|cauchy_|geometric|uniform|poisson")
# Which share of the numbers is another one, so that the answer is not the same for all.
QUESTIONS = {
    **{"isnan": (0.5, math.nan), "isinf": (0.5, math.inf), "isposinf": (0.5, math.inf), "isneginf": (0.5, -math.inf)},
    **dict.fromkeys(("logical_not", "logical_and", "logical_or", "logical_xor", "count_nonzero"), (0.5, 0.0)),
    **{"any": (0.9, 0.0), "all": (0.1, 0.0)},
}
COMPARED = ("ge", "gt", "le", "lt")  # with numbers on both sides of a scalar
CREATES = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "resize_")


def find(folder: Path) -> list[Task]:
    """The operators of a folder: those of its folders whose names are operators of torch, sorted."""
    traced = traces(folder)
    tasks = []
    for home in sorted(p for p in folder.iterdir() if p.is_dir()):
        name = operator_name(home.name)
        if operator(name) is None:
            continue
        cases = tuple({"args": text} for text in traced.get(name, traced.get(f"{name}.default", ())))
        tasks.append(
            Task(
                name,
                NAME,
                home,
                f"aten.{name}",
                cases=cases,
                tolerance=TOLERANCE,
                scope=_scope(name),
            )
        )
    return tasks


def solutions(tasks: Sequence[Task], folder: Path) -> dict[str, list[Solution]]:
    """The implementations in the folder of each operator: add__Tensor/add__Tensor_implementation_v1.py."""
    return {task.name: list(_solutions(task, folder / task.source.name)) for task in tasks}


def _solutions(task: Task, home: Path) -> Iterator[Solution]:
    files = sorted(home.glob(f"{home.name}_implementation*.py")) or sorted(home.glob(f"{home.name}*.py"))
    for path in files:
        yield Solution(path, f"{home.name}_kernel_impl", {sources.file_name(path): read(path)})


def _scope(name: str) -> str:
    base = name.partition(".")[0]
    if RANDOM.search(base):
        return "random: its result is no function of its inputs"
    return "its result is memory without values" if base in CREATES else ""


def operator_name(folder: str) -> str:
    """The operator of a folder's name: the last "__" is the dot before the overload, as in add___Tensor for add_.Tensor."""
    head, mark, tail = folder.rpartition("__")
    return f"{head}.{tail}" if mark and head and tail else folder


def operator(name: str) -> Any:
    """torch's operator of a name such as add.Tensor, the default overload without one; None where there is none."""
    base, _, overload = name.removeprefix("aten.").partition(".")
    packet = getattr(torch.ops.aten, base, None) if base.isidentifier() else None
    return getattr(packet, overload or "default", None)


def traces(folder: Path) -> dict[str, list[str]]:
    """The arguments of each operator in the traces of a folder: the text files in it."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.txt")):
        name = ""
        for line in read(path).splitlines():
            if m := re.match(r"Operator: (?:aten\.)?(\S+)", line):
                name = m[1]
            elif (m := re.match(r"cnt: \d+, (.*)", line)) and name and m[1] not in found.get(name, ()):
                found.setdefault(name, []).append(m[1])
    return found


class BackendBench(Problem):
    """An operator of torch with arguments."""

    def __init__(self, task: Task, device: torch.device = CPU) -> None:
        super().__init__(task, device)
        self.function = operator(task.name)
        if self.function is None:
            raise FormatError(f"{task.name}: torch {torch.__version__} has no such operator")

    @property
    def cases(self) -> int:
        return len(self.task.cases) or len(self._samples) or 1

    @functools.cached_property
    def _samples(self) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return list(operator_samples.samples().get(str(self.function), ()))

    def trial(self, seed: int, case: int = 0, limit: int | None = None, model_seed: int = 0) -> TaskTrial:
        if self.task.cases:
            return self._called(arguments(str(self.task.cases[case]["args"]), seed), limit)
        if not self._samples:
            raise FormatError(f"{self.task.name}: no trace names its arguments, and {_without()}")
        sample = self._samples[case % len(self._samples)]
        trial = self._called(telling(self.task.name, operator_samples.anew(sample, seed), seed), limit)
        try:
            trial.evaluate()
        except FormatError:  # numbers that do not go with a scalar: the same ones in another order may
            return self._called(operator_samples.anew(sample, seed, same=True), limit)
        return trial

    def _called(self, given: operator_samples.Arguments, limit: int | None) -> TaskTrial:
        """A call with these arguments."""
        single = self.task.name.partition(".")[0]
        trial = TaskTrial(self.task, given[0], self._reference, given[1], single=single, device=self.device)
        if limit and trial.size > limit:
            raise FormatError(
                f"{self.task.name}: {trial.size} bytes of inputs, the limit is {limit}, and a trace is fixed"
            )
        return trial

    def _reference(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Any) -> Any:
        args, kwargs = pytree.tree_map(whole, (args, dict(kwargs)), is_leaf=lambda x: isinstance(x, SparseParts))
        if torch.get_default_dtype() == torch.float64:
            kwargs = {
                n: torch.float64 if v in (torch.float32, torch.float16, torch.bfloat16) else v
                for n, v in kwargs.items()
            }
        return self.function(*args, **kwargs)


def telling(name: str, given: operator_samples.Arguments, seed: int) -> operator_samples.Arguments:
    """Arguments of a question of truth with numbers that make it true and false.

    Torch's samples have no NaN for isnan, no zero for logical_not, and no number on the other side of a scalar.
    """
    args, base = given[0], name.partition(".")[0]
    share, value = QUESTIONS.get(base, (0.0, 0.0))
    rng = torch.Generator().manual_seed(seed)

    def other(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        chosen = torch.rand(x.shape, generator=rng) < share
        return x.masked_fill(chosen, value)

    if base in COMPARED and args[1:] and isinstance(args[1], int | float) and isinstance(args[0], torch.Tensor):
        above = torch.randint(0, 2, args[0].shape, generator=rng)
        return ((2 * above - 1 + args[1]).to(args[0].dtype), *args[1:]), given[1]
    return (tuple(map(other, args)), given[1]) if share else given


def arguments(text: str, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a line of a trace spells, tensors drawn; FormatError for a text of another form.

    The text is read as a literal, and nothing of it is run: T([5, 7], f32) or T([5, 7], f32, [7, 1]) with strides.
    """
    rng = torch.Generator().manual_seed(seed)
    try:
        whole = _value(ast.parse(text.strip().strip("'\""), mode="eval").body, rng)
    except (SyntaxError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FormatError(f"{text[:200]}: {type(error).__name__}: {first_line(error)}") from error
    if not (isinstance(whole, tuple) and len(whole) == 2 and isinstance(whole[0], tuple)):
        raise FormatError(f"{text[:200]}: expected ((arguments), {{named ones}})")
    return whole[0], dict(whole[1])


def _value(node: ast.expr, rng: torch.Generator) -> Any:
    match node:
        case ast.Tuple(elts=parts):
            return tuple(_value(p, rng) for p in parts)
        case ast.List(elts=parts):
            return [_value(p, rng) for p in parts]
        case ast.Dict(keys=keys, values=values):
            return {_value(k, rng): _value(v, rng) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.Call(func=ast.Name(id="T"), args=parts):
            return _tensor(*[_value(p, rng) for p in parts], rng=rng)
        case ast.Call(func=ast.Attribute(attr="device")):
            return torch.device("cpu")
        case ast.Name(id=name) if name in DTYPES:
            return DTYPES[name]
        case ast.Name(id="inf"):
            return float("inf")
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return getattr(torch, name)
        case _:
            return ast.literal_eval(node)


def _tensor(
    shape: list[int], dtype: torch.dtype, stride: list[int] | None = None, *, rng: torch.Generator
) -> torch.Tensor:
    """Numbers from 0 to 1, or small integers, of that shape and those strides."""
    extent = (
        shape
        if stride is None
        else [1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if all(shape) else 0]
    )
    return _numbers(extent, dtype, rng).as_strided(shape, stride) if stride is not None else _numbers(shape, dtype, rng)


def _numbers(shape: list[int], dtype: torch.dtype, rng: torch.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=rng).bool()
    if dtype.is_complex:
        return torch.randn(shape, generator=rng, dtype=dtype)
    if dtype.is_floating_point:
        return torch.rand(shape, generator=rng, dtype=torch.float32).to(dtype)
    return torch.randint(0, 10, shape, generator=rng).to(dtype)


def _without() -> str:
    """Why torch's tests give no arguments."""
    return (
        "torch's tests have no sample"
        if operator_samples.samples()
        else "torch's tests lack a package: pip install expecttest"
    )
