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
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.judge import Judgement, Result
from kernelmux.registry.backend.package_versions import version
from kernelmux.registry.choice.decision import describe
from kernelmux.registry.spec.signature import Call

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
    key = (call.spec.name, *(r.name for r in results), describe(call))
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
            text = "\n".join([f"{call.spec.name}: {describe(call)}", f"against {found.against}:", *found.wrong])
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
    hashes = {r.name: source(r.name, call.spec.name) for r in results}
    what = {
        "op": call.spec.name,
        "described": describe(call),
        "scalars": call.scalars,
        "spec": call.spec.hash,
        "sources": hashes,
    }
    return {"call": what, "device": str(call.device), "environment": environment(call.device)}


def source(name: str, op: str) -> str:
    """The hash of the files of a variant, or "unknown"."""
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
