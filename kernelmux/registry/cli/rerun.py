"""`python -m kernelmux.registry.shadow <folder>`: a call that shadow mode has kept, run again and judged.

Status 0 if both variants are right, 1 if not, 2 if the folder or a variant cannot be used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import judge
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.judge import Result
from kernelmux.registry.call import dispatch, repro_bundle
from kernelmux.registry.choice.decision import describe
from kernelmux.registry.choice.requests import parse
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError, KernelmuxError
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import Call


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a kept call again; see the module for the status."""
    parser = terminal.Parser(prog="python -m kernelmux.registry.shadow", description=__doc__)
    parser.add_argument("folder", type=Path, help="what shadow mode has kept")
    options = parser.parse_args(arguments)
    return terminal.run("shadow", lambda: again(options.folder))


def again(folder: Path) -> int:
    """Run every variant of a kept call again and print the judgement; 1 if one is wrong."""
    about, inputs, before = _read(folder)
    spec = catalog.spec(about["call"]["op"])
    device = _device(about["device"])
    scalars: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in about["call"]["scalars"].items()}
    with torch.no_grad():
        given: dict[str, Any] = {name: unpacked(x, device) for name, x in inputs.items()}
        call = spec.bind(**given, **scalars)
        results = [_run(spec, call, name) for name in about["call"]["sources"]]
        found = judge.judge(call, results[0], results[1] if len(results) > 1 else None)
    print(f"{spec.name}: {describe(call)}")
    for result in results:
        print(
            f"  {result.name}: {'the bits that were kept' if _same(spec, result, before) else 'other bits than were kept'}"
        )
    for name, was, now in _changes(about, call):
        print(f"  {name} was {was} and is {now}")
    for line in found.wrong or (f"not judged: {found.open}" if found.open else "within the bound",):
        print(f"  {line}" + (f" (against {found.against})" if found.against else ""))
    return 1 if found.wrong else 0


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    try:
        about = json.loads((folder / "call.json").read_text(encoding="utf-8"))
        return about, *(torch.load(folder / f"{n}.pt", weights_only=True) for n in ("inputs", "outputs"))
    except Exception as error:
        raise ArgumentError(
            f"{folder}: expected a folder with call.json, inputs.pt and outputs.pt, as shadow mode keeps them, got"
            f" {type(error).__name__}: {error}"
        ) from error


def _device(name: str) -> torch.device:
    """The device of the call; the CPU, with the emulator, where there is no such GPU."""
    device = torch.device(name)
    if device.type != "cuda" or (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        return device
    print(f"no {name} here: GPU kernels run on the emulator")
    return torch.device("cpu")


def _run(spec: OpSpec, call: Call, name: str) -> Result:
    values = tuple(call.arguments.values())
    plan, chosen = dispatch.resolve(spec, values, parse(name, "call.json"))
    try:
        found = plan.run(values)
    except Exception as error:
        raise KernelmuxError(f"{chosen.name} fails: {type(error).__name__}: {error}") from error
    home, _, variant = chosen.name.partition("/")
    outputs = found if isinstance(found, tuple) else (found,)
    return Result(chosen.name, registered.variants(home, spec.name)[variant], outputs)


def _same(spec: OpSpec, result: Result, before: Mapping[str, Any]) -> bool:
    """Whether the outputs have the bits that were kept."""
    kept = before.get(result.name, {})
    raw = ((y.cpu(), kept.get(o.name)) for o, y in zip(spec.outputs, result.outputs, strict=False))
    return all(k is not None and y.shape == k.shape and _bytes(y).equal(_bytes(k)) for y, k in raw)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def _changes(about: Mapping[str, Any], call: Call) -> list[tuple[str, str, str]]:
    """What is not as it was: sources, the spec, versions; name, then, now."""
    op = about["call"]["op"]
    pairs = [("the spec", about["call"]["spec"], call.spec.hash)]
    pairs += [(f"the source of {n}", was, repro_bundle.source(n, op)) for n, was in about["call"]["sources"].items()]
    now = repro_bundle.environment(call.device)
    pairs += [(name, was, now.get(name, "unknown")) for name, was in about["environment"].items()]
    return [pair for pair in pairs if pair[1] != pair[2]]


def unpacked(packed: Mapping[str, Any], device: torch.device) -> torch.Tensor:
    """A tensor as it was kept: values, strides and alignment."""
    memory: torch.Tensor = packed["memory"]
    room = torch.empty(memory.numel() + packed["offset"], dtype=memory.dtype, device=device)
    room[packed["offset"] :].copy_(memory)
    return room.as_strided(packed["shape"], packed["strides"], packed["offset"])
