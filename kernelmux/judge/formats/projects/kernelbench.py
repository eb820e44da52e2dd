"""KernelBench: a problem is a file with a class Model, get_inputs() and get_init_inputs(); a solution has a class ModelNew.

Both classes are built with the same arguments after the same seed, and called on the same inputs; the reference's
parameters are handed to the candidate as tensors. Layers of dropout do nothing, as what they drop is no function of the
inputs; all else is in training mode, as there.
"""

from __future__ import annotations

import copy
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from kernelmux.judge.formats import modes, reduced_sizes, sources
from kernelmux.judge.formats.candidate_side import given
from kernelmux.judge.formats.task import MODULE, FormatError, Solution, Task, read
from kernelmux.judge.formats.trial import CPU, Problem, TaskTrial, first_line

NAME = "kernelbench"
PARTS = ("Model", "get_inputs", "get_init_inputs")
SOLUTION = "ModelNew"
TOLERANCE = "1e-4 of fp32, 1e-2 of 16 bits, relative and absolute"
RECURRENT = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})
BEYOND = 64  # times the limit: what sizes that cannot be reduced may take


def find(folder: Path) -> list[Task]:
    """The problems in a folder and those below: files with all `PARTS`, and without a solution."""
    found = []
    for path in sorted(folder.rglob("*.py"), key=_order):
        try:
            defined = sources.names(path)
        except FormatError:
            continue
        if all(part in defined for part in PARTS) and SOLUTION not in defined:
            name = str(path.relative_to(folder).with_suffix(""))
            found.append(Task(name, NAME, path, "Model", tolerance=TOLERANCE))
    return found


def solutions(tasks: Sequence[Task], folder: Path) -> dict[str, list[Solution]]:
    """The files with a class ModelNew, by the problem that they belong to.

    That is the problem whose file name they have, or whose level and number, as in level_1_problem_1_sample_0_kernel.py.
    """
    paths = [p for p in sorted(folder.rglob("*.py"), key=_order) if sources.defines(p, SOLUTION)]
    return {
        task.name: [
            Solution(path, SOLUTION, {sources.file_name(path): read(path)}, MODULE)
            for path in paths
            if _belongs(path.relative_to(folder), task.source)
        ]
        for task in tasks
    }


def _belongs(solution: Path, problem: Path) -> bool:
    """Whether a solution's name is that of the problem, or has its level and number."""
    if solution.stem == problem.stem:
        return True
    number = re.match(r"\d+", problem.stem)
    level = re.search(r"level_?(\d+)", problem.parent.name)
    if not number or not level:
        return False
    return re.search(rf"level_?{level[1]}\D+(?:problem_?)?{number[0]}(?!\d)", str(solution)) is not None


def _order(path: Path) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


class KernelBench(Problem):
    """A problem whose file has run."""

    def __init__(self, task: Task, device: torch.device = CPU) -> None:
        super().__init__(task, device)
        self.module = sources.module(task.source, device=device)
        self.reduced: dict[int, str] = {}
        self.sizes: dict[str, tuple[Any, Any]] = {}

    def trial(self, seed: int, case: int = 0, limit: int | None = None, model_seed: int = 0) -> TaskTrial:
        note = self._fit(limit) if limit else ""
        try:
            init = _arguments(_seeded(model_seed, self.module.get_init_inputs, self.device))
            model = _seeded(model_seed, lambda: self.module.Model(*init[0], **init[1]), self.device)
            inputs = _seeded(seed, self.module.get_inputs, self.device)
        except FormatError:
            raise
        except Exception as error:
            raise FormatError(f"{self.task.name}: {type(error).__name__}: {first_line(error)}") from error
        notes = [note and f"reduced: {note}", _without_dropout(model), self._scaled(model)]
        return TaskTrial(
            self.task,
            tuple(_on(x, self.device) for x in inputs),
            _Reference(model),
            parameters=dict(model.state_dict()) if isinstance(model, torch.nn.Module) else {},
            init=init,
            init_seed=model_seed,
            note="; ".join(filter(None, notes)),
            sizes=self.sizes,
            device=self.device,
        )

    def _scaled(self, model: torch.nn.Module) -> str:
        """Multiply the weights by the gain; what was done."""
        if self.gain == 1:
            return ""
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.mul_(self.gain)
        return f"weights times {self.gain:.3g}, as the result hardly depends on the inputs"

    def _fit(self, limit: int) -> str:
        """Reduce the sizes of the module to a number of bytes once; what was changed."""
        if limit not in self.reduced:
            before = reduced_sizes.sizes_of(self.module)
            self.reduced[limit] = reduced_sizes.fitting(self.module, lambda: cost(self.module), limit)
            self.sizes = {name: (old, getattr(self.module, name)) for name, old in before.items()} | self.sizes
            if (size := cost(self.module) or 0.0) > BEYOND * limit:
                raise FormatError(f"{self.task.name}: no sizes below {size:.3g} bytes run, and the limit is {limit}")
        return self.reduced[limit]


def cost(module: types.ModuleType) -> float | None:
    """The effort for inputs, parameters and outputs of a module; None where it does not run."""

    def everything() -> list[Any]:
        args, named = _arguments(module.get_init_inputs())
        model = module.Model(*args, **named)
        inputs = module.get_inputs()
        return [inputs, model(*inputs), *model.parameters(), *model.buffers()]

    try:
        with torch.device("meta"), Shapes():
            return reduced_sizes.effort(everything)
    except Exception:
        return None


class Shapes(TorchFunctionMode):
    """What a network needs on the meta device: numbers of tensors are 0, and recurrent layers are products.

    Torch takes an LSTM apart there, step by step: 8 s for 512 steps of six layers, and 20 sizes are tried.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.item:
            return torch.zeros((), dtype=args[0].dtype, device="cpu").item()
        if func in RECURRENT and isinstance(args[2], list):
            return _recurrent(*args)
        return func(*args, **(kwargs or {}))


def _recurrent(
    x: torch.Tensor,
    hidden: Any,
    weights: list[torch.Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    *order: bool,
) -> tuple[torch.Tensor, ...]:
    """Results of the sizes of those of torch.lstm and its like, and a product with each weight for the work."""
    steps, after = x.numel() // x.shape[-1], hidden if isinstance(hidden, tuple) else (hidden,)
    for weight in weights:
        if weight.dim() == 2:
            x.new_empty(steps, weight.shape[1]) @ weight.mT
    return x.new_empty(*x.shape[:-1], after[0].shape[-1] * (1 + both)), *after


def _arguments(value: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """What get_init_inputs gives: a list of arguments, or a list and a dict of named ones, or the dict."""
    if isinstance(value, Mapping):
        return (), dict(value)
    if (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], list)
        and isinstance(value[1], dict)
    ):
        return tuple(value[0]), dict(value[1])
    return tuple(value or ()), {}


def _seeded(seed: int, function: Any, device: torch.device) -> Any:
    torch.manual_seed(seed)
    with modes.placed(device):
        return function()


def _on(value: Any, device: torch.device) -> Any:
    return pytree.tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, value)


def _without_dropout(model: torch.nn.Module) -> str:
    layers = [m for m in model.modules() if "Dropout" in type(m).__name__ and getattr(m, "p", True)]
    for layer in layers:
        layer.eval()
    return "dropout does nothing" if layers else ""


class _Reference:
    """The model as a function; each call is of a copy, in the dtype of the parameters that it is given."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], parameters: Mapping[str, torch.Tensor]) -> Any:
        model = _copied(self.model)
        if torch.get_default_dtype() == torch.float64:
            model = model.double()
            for part in model.modules():
                for name, value in list(vars(part).items()):
                    if not name.startswith("_"):
                        setattr(part, name, pytree.tree_map(_raised, value))
        given(model, parameters)
        return model(*args, **kwargs)


def _copied(model: torch.nn.Module) -> torch.nn.Module:
    """A copy, whose functions hold the copies of the modules that they held: `self.f = lambda x: layer(x)`."""
    known: dict[int, Any] = {}
    made = copy.deepcopy(model, known)
    for part in made.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, types.FunctionType) and value.__closure__:
                cells = [types.CellType(known.get(id(c.cell_contents), c.cell_contents)) for c in value.__closure__]
                own = types.FunctionType(value.__code__, value.__globals__, name, value.__defaults__, tuple(cells))
                own.__kwdefaults__ = value.__kwdefaults__
                setattr(part, name, own)
    return made


def _raised(value: Any) -> Any:
    """A tensor that is no parameter in float64."""
    plain = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    return value.double() if plain and value.dtype in modes.WIDENED else value
