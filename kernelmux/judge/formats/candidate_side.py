"""What runs in the candidate's process: its file is imported, built, and becomes a function of the inputs alone.

This file imports nothing of the project, so that a process without it can run it by path. It is given texts and tensors,
and no reference, no expected result and no seed of inputs.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

Outputs = tuple[torch.Tensor, ...]


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write the candidate's files into a folder of its own; the path of the first one, which holds the entry."""
    for name, text in files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"expected a file inside of the candidate's folder, got {name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / next(iter(files))


def imported(main: Path, entry: str) -> Any:
    """The candidate's class or function; its own folder comes first in what it imports."""
    sys.path.insert(0, str(main.parent))
    spec = importlib.util.spec_from_file_location(main.stem, main)
    if spec is None or spec.loader is None:
        raise ImportError(f"{main.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[main.stem] = module
    spec.loader.exec_module(module)
    found = getattr(module, entry, None)
    if not callable(found):
        raise AttributeError(
            f"{main.name}: expected {entry}, got {'nothing of that name' if found is None else found!r}"
        )
    return found


def callable_of(
    main: Path,
    entry: str,
    style: str = "function",
    init: tuple[Sequence[Any], Mapping[str, Any]] = ((), {}),
    init_seed: int = 0,
    parameters: Mapping[str, torch.Tensor] | None = None,
    device: str = "cpu",
) -> tuple[Callable[..., Outputs], str]:
    """The candidate as a function of the task's arguments that returns its outputs, and how it got its parameters.

    style: "module" for a class that is built with `init` after seeding with `init_seed` (as the reference's was, by its
    own seed) and is then given `parameters`; "function"; "destination" for a function that is also given its outputs, the
    last arguments of a call, and returns nothing.
    """
    found = imported(main, entry)
    if style != "module":
        return (lambda *args, **kwargs: tensors(_ran(found, style, args, kwargs))), ""
    torch.manual_seed(init_seed)
    with torch.device(device):
        model = found(*init[0], **init[1])
    for part in model.modules() if isinstance(model, torch.nn.Module) else ():
        if type(part).__name__.startswith(("Dropout", "AlphaDropout", "FeatureAlphaDropout")):
            part.eval()
    told = given(model, parameters or {}) if isinstance(model, torch.nn.Module) else ""

    def call(*args: Any, **kwargs: Any) -> Outputs:
        with torch.no_grad():
            return tensors(model(*args, **kwargs))

    return call, told


def _ran(function: Callable[..., Any], style: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if style == "function":
        return function(*args, **kwargs)
    inputs, outputs = args[:-1], args[-1]
    function(*inputs, *outputs, **kwargs)
    return outputs


def given(model: torch.nn.Module, parameters: Mapping[str, torch.Tensor]) -> str:
    """Copy the reference's parameters and buffers into a candidate's model; how they were matched.

    By name where all names agree, else in order where the shapes do, else not at all: the model keeps what the seed gave.
    """
    if not parameters:
        return "no parameters"
    own = model.state_dict(keep_vars=True)
    if set(own) == set(parameters) and all(own[n].shape == parameters[n].shape for n in own):
        pairs, told = [(own[name], value) for name, value in parameters.items()], "parameters by name"
    elif [x.shape for x in own.values()] == [x.shape for x in parameters.values()]:
        pairs, told = list(zip(own.values(), parameters.values(), strict=True)), "parameters by order"
    else:
        return "parameters by seed: names and shapes differ from the reference's"
    with torch.no_grad():
        for mine, theirs in pairs:
            mine.copy_(theirs)
    return told


def tensors(result: Any) -> Outputs:
    """The outputs in order: of a tuple, a list or a dict those inside; numbers become tensors."""
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, bool | int | float):
        return (torch.tensor(result),)
    if isinstance(result, Mapping):
        return tuple(x for value in result.values() for x in tensors(value))
    if isinstance(result, tuple | list):
        return tuple(x for value in result for x in tensors(value))
    if result is None:
        return ()
    raise TypeError(f"expected tensors, got {type(result).__name__}")
