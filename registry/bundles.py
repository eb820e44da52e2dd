"""What shadow mode keeps of a wrong result: a folder with all that it takes to run the call again.

inputs.pt, outputs.pt: tensors by name, of each variant. call.json: operator, scalars, variants, environment, hashes.
finding.txt: what was found, and the command. `python -m kernelmux.registry.shadow <folder>` runs both variants again and
judges them: status 0 if they are right, 1 if not, 2 if the folder or a variant cannot be used.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import kernelmux
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, dispatch, judgement, terminal
from kernelmux.registry.errors import ArgumentError, KernelmuxError
from kernelmux.registry.judgement import Judgement, Result
from kernelmux.registry.packages import version
from kernelmux.registry.requests import parse
from kernelmux.registry.spec import Call, OpSpec

VARIABLE = "KERNELMUX_SHADOW_DIR"
PLACE = "kernelmux-shadow"  # in the current folder, unless the variable names another
MOST = 16  # folders of one process: each holds all inputs of a call
_kept: dict[tuple[str, ...], str] = {}  # by operator, variants and call: the folder, or "" where there is none
_lock = threading.Lock()


def keep(call: Call, ours: Result, theirs: Result | None, found: Judgement) -> tuple[str, str]:
    """The folder that reproduces a finding, or "", and what went wrong with it, or "".

    One per kind of call: operator, variants, shapes, scalars, and sources. One that is there already stays as it is.
    """
    results = [r for r in (ours, theirs) if r]
    key = (call.spec.name, *(r.name for r in results), dispatch.describe(call))
    with _lock:
        if key in _kept:
            return _kept[key], ""
        if sum(map(bool, _kept.values())) >= MOST:
            return "", ""
        _kept[key], lack = _kept_anew(call, results, found)
        return _kept[key], lack


def _kept_anew(call: Call, results: Sequence[Result], found: Judgement) -> tuple[str, str]:
    about = _about(call, results)
    place = Path(os.environ.get(VARIABLE) or PLACE).absolute()
    folder = place / f"{call.spec.name}-{hashlib.sha256(json.dumps(about['call']).encode()).hexdigest()[:10]}"
    try:
        if not folder.is_dir():
            text = "\n".join(
                [f"{call.spec.name}: {dispatch.describe(call)}", f"against {found.against}:", *found.wrong]
            )
            command = f"python -m kernelmux.registry.shadow {shlex.quote(str(folder))}"
            _write(folder, about, call, results, f"{text}\n\n{command}\n")
    except Exception as error:  # a full disk, a folder that is not ours: the program goes on
        return (
            "",
            f"no folder to reproduce it in {place}: {type(error).__name__}: {error}; {VARIABLE} names another place",
        )
    return str(folder), ""


def _about(call: Call, results: Sequence[Result]) -> dict[str, Any]:
    """What is written in call.json; under "call" what tells two kinds of calls apart."""
    hashes = {r.name: _source(r.name, call.spec.name) for r in results}
    what = {
        "op": call.spec.name,
        "described": dispatch.describe(call),
        "scalars": call.scalars,
        "spec": call.spec.hash,
        "sources": hashes,
    }
    return {"call": what, "device": str(call.device), "environment": environment(call.device)}


def _source(name: str, op: str) -> str:
    try:
        backend, _, variant = name.partition("/")
        return registered.source_hash(backend, op, variant)
    except Exception:  # a backend whose files cannot be read
        return "unknown"


def environment(device: torch.device) -> dict[str, str]:
    """Versions and settings that a result may depend on."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "kernelmux": kernelmux.__version__}
    for package in ("torch", "triton", "cupy-cuda13x", "nvidia-cuda-nvrtc", "numpy"):
        found[package] = version(package) or "not installed"
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["capability"] = str(torch.cuda.get_device_capability(device))
    found["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    found["deterministic"] = str(torch.are_deterministic_algorithms_enabled())
    return found


def write(folder: Path, call: Call, result: Result, text: str, **more: Mapping[str, torch.Tensor]) -> None:
    """A folder like those of shadow mode, in place of an older one; text: its finding.txt; more: tensors by file."""
    shutil.rmtree(folder, ignore_errors=True)
    _write(folder, _about(call, [result]), call, [result], text, **more)


def _write(
    folder: Path,
    about: Mapping[str, Any],
    call: Call,
    results: Sequence[Result],
    text: str,
    **more: Mapping[str, torch.Tensor],
) -> None:
    """The folder as a whole, or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        torch.save({name: _packed(x) for name, x in call.tensors.items()}, made / "inputs.pt")
        names = [output.name for output in call.spec.outputs]
        outputs = {r.name: {n: y.cpu() for n, y in zip(names, r.outputs, strict=False)} for r in results}
        torch.save(outputs, made / "outputs.pt")
        (made / "call.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        for name, tensors in more.items():
            torch.save({n: x.cpu() for n, x in tensors.items()}, made / f"{name}.pt")
        (made / "finding.txt").write_text(text, encoding="utf-8")
        made.chmod(0o755)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _packed(x: torch.Tensor) -> dict[str, Any]:
    """A tensor with its strides and alignment: the memory that it spans, and how it lies in it."""
    x = x.resolve_conj().resolve_neg()
    reach = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    memory = x.as_strided((reach,), (1,), x.storage_offset()).clone().cpu()
    offset = x.data_ptr() % 16 // x.element_size() if reach else 0
    return {"memory": memory, "shape": list(x.shape), "strides": list(x.stride()), "offset": offset}


def _unpacked(packed: Mapping[str, Any], device: torch.device) -> torch.Tensor:
    memory: torch.Tensor = packed["memory"]
    room = torch.empty(memory.numel() + packed["offset"], dtype=memory.dtype, device=device)
    room[packed["offset"] :].copy_(memory)
    return room.as_strided(packed["shape"], packed["strides"], packed["offset"])


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
        given: dict[str, Any] = {name: _unpacked(x, device) for name, x in inputs.items()}
        call = spec.bind(**given, **scalars)
        results = [_run(spec, call, name) for name in about["call"]["sources"]]
        found = judgement.judge(call, results[0], results[1] if len(results) > 1 else None)
    print(f"{spec.name}: {dispatch.describe(call)}")
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
    pairs += [(f"the source of {n}", was, _source(n, op)) for n, was in about["call"]["sources"].items()]
    now = environment(call.device)
    pairs += [(name, was, now.get(name, "unknown")) for name, was in about["environment"].items()]
    return [pair for pair in pairs if pair[1] != pair[2]]
