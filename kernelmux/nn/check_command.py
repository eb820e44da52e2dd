"""`kernelmux check-model llama`: is a patched model as near to float64 as the plain one, layer by layer?"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.utils import _pytree as pytree

import kernelmux as kx
from kernelmux.nn.check_report import WIDTH
from kernelmux.nn.checking import check_model
from kernelmux.nn.named_models import NAMES, named_model
from kernelmux.registry import dtypes
from kernelmux.registry.choice import requests
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError, shown
from kernelmux.registry.util import files

PROGRAM = "kernelmux check-model"
DTYPES = ("fp32", "bf16", "fp16")
SIZES = {"layers": 2, "hidden": 64, "batch": 2, "length": 32, "vocabulary": 256}
EPILOG = f"""examples:
  kernelmux check-model llama
  kernelmux check-model qwen3 --dtype bf16 --layers 4 --hidden 512
  kernelmux check-model gpt2 --ops linear layer_norm --backend triton --device cuda
  kernelmux check-model mine.py:model_and_inputs --json found.json

Tried by name: {", ".join(NAMES)}; other language models of transformers go by theirs.
Exit status: 0 no layer is off, 1 one is or a kernel failed, 2 usage error.
"""


def parser() -> argparse.ArgumentParser:
    made = terminal.Parser(
        prog=PROGRAM,
        description="Compares a patched model with the plain one and with float64, layer by layer, forward and backward,"
        " and names the first layer that is off by more than roundings allow.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "model",
        help="a model of transformers by name, with random weights; or MODULE:FUNCTION or FILE.py:FUNCTION, which returns"
        " a model and its inputs: a tensor, a tuple, or a dict of named ones",
    )
    for name, default in SIZES.items():
        made.add_argument(
            f"--{name}", type=terminal.positive, metavar="N", help=f"of a model by name (default: {default})"
        )
    made.add_argument(
        "--config", nargs="+", default=[], metavar="NAME=VALUE", help="further values of its configuration: moe_topk=1"
    )
    made.add_argument("--dtype", choices=DTYPES, help="cast the model to it (default: as it is, fp32 by name)")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    made.add_argument("--ops", nargs="+", metavar="OP", help="swap these operators only (default: all)")
    made.add_argument("--backend", help="of the patched model, as in a call: cuda, cuda/tiled, or a list: cuda,triton")
    made.add_argument(
        "--seed", type=terminal.count, default=0, metavar="S", help="of weights, tokens, gradients (default: 0)"
    )
    made.add_argument("--every-row", action="store_true", help="a row for each layer, also of a model with many")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all that was found")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    return terminal.run(PROGRAM, lambda: _main(parser().parse_args(arguments)))


def _main(options: argparse.Namespace) -> int:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device: expected cpu, got cuda, and torch finds no GPU")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise ArgumentError(f"--json: {options.json}: the folder {options.json.parent} does not exist")
    scope = nullcontext() if options.backend is None else kx.use(requests.parse(options.backend, "--backend").names)
    model, inputs, named = _given(options)
    with scope:
        report = check_model(model, *inputs, ops=options.ops, seed=options.seed, **named)
    console.print(report.text(options.every_row, console.width), markup=False, soft_wrap=True)
    if options.json is not None:
        files.write(options.json, files.json_rows(report.as_dict()) + "\n")
    return terminal.OK if report.ok else terminal.FAILED


def _given(options: argparse.Namespace) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model that was asked for, and what it is called with."""
    if ":" in options.model:
        return _own(options)
    layers, hidden, batch, length, vocabulary = (
        default if (given := getattr(options, name)) is None else given for name, default in SIZES.items()
    )
    sizes = {
        "layers": layers,
        "hidden": hidden,
        "vocabulary": vocabulary,
        "seed": options.seed,
        "device": options.device,
    }
    made = named_model(options.model, **sizes, config=dict(map(_value, options.config)))
    model = made.to(dtypes.parse(options.dtype or "fp32"))
    rng = torch.Generator().manual_seed(options.seed)
    tokens = torch.randint(0, vocabulary, (batch, length), generator=rng).to(options.device)
    return model, (tokens,), {"labels": tokens}


def _value(text: str) -> tuple[str, Any]:
    """Name and value of "name=value"; what is no literal of Python is a string."""
    name, given, value = text.partition("=")
    if not given or not name.isidentifier():
        raise ArgumentError(f"--config: expected NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _own(options: argparse.Namespace) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Model and inputs of the user's function, on the device and in the dtype that were asked for."""
    for name in (*SIZES, "config"):
        if getattr(options, name) not in (None, []):
            raise ArgumentError(f"--{name}: expected only with a model by name, got it with {options.model}")
    function = _function(options.model)
    torch.manual_seed(options.seed)
    try:
        given = function()
    except Exception as error:
        raise ArgumentError(f"{options.model}: {type(error).__name__}: {error}") from error
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], torch.nn.Module)):
        raise ArgumentError(f"{options.model}: expected to return a model and its inputs, got {shown(given)}")
    model, inputs = given
    dtype = dtypes.parse(options.dtype) if options.dtype else None
    model = model.to(device=options.device, dtype=dtype)

    def moved(x: Any) -> Any:
        return x.to(device=options.device, dtype=dtype if x.is_floating_point() else None) if torch.is_tensor(x) else x

    inputs = pytree.tree_map(moved, inputs)
    if isinstance(inputs, dict):
        return model, (), inputs
    return model, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}


def _function(text: str) -> Callable[[], Any]:
    """The function of "module:function" or "file.py:function"."""
    home, _, name = text.rpartition(":")
    try:
        module = _file(Path(home)) if home.endswith(".py") else _module(home)
    except Exception as error:
        raise ArgumentError(f"{text}: {home} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise ArgumentError(
            f"{text}: expected a function {name!r} in {home}, got {'none' if found is None else shown(found)}"
        )
    function: Callable[[], Any] = found
    return function


def _module(name: str) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    finally:
        sys.path.remove(os.getcwd())


def _file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    name = f"kernelmux_model_{path.stem}"
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
