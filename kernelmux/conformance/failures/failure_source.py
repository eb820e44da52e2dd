"""Where a failure comes from: the line of the implementation, its source text, and what kind of mistake it is."""

from __future__ import annotations

import linecache
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelmux.candidate.errors import CandidateError
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.emulator import EmulatorError


def axes(trial: Trial) -> dict[str, Any]:
    """Lengths and scalars of a call that name one number or word each; {} for a call that the spec refuses."""
    try:
        call = trial.call
    except Exception:
        return {}
    found = {**call.axes, **call.scalars}
    return {name: v for name, v in found.items() if isinstance(v, bool | int | float | str | None)}


def raised(error: Exception, home: Path | None = None) -> str:
    """An exception from a call: its text, and where in the package of the implementation (`home`) it came from."""
    if isinstance(error, CandidateError):  # it says what came from where
        return str(error)
    return f"raised {type(error).__name__}: {located(error, home)}"


def located(error: Exception, home: Path | None) -> str:
    """The text of an exception with its places, innermost of ours first, each with its line of source."""
    if isinstance(error, EmulatorError):
        lines = [str(error).replace("\n", "\n  "), *_emulated(error, home)]
        return "\n  ".join(lines)
    if isinstance(error, CandidateError):
        return str(error)
    own, last = _frames(error, home)
    text = f"{error}\n  at {own.filename}:{own.lineno} in {own.name}: {own.line}"
    return text if last is own else f"{text}\n  (raised at {last.filename}:{last.lineno} in {last.name}: {last.line})"


def cause(error: Exception, home: Path | None) -> str:
    """Place and kind: what two failures have in common that have one reason."""
    if isinstance(error, EmulatorError):
        return f"{error.file}:{error.line}: {error.kind}" if error.file else ""
    if isinstance(error, CandidateError):
        return error.cause
    own, _ = _frames(error, home)
    return f"{Path(own.filename).name}:{own.lineno}: {type(error).__name__}"


def _frames(error: Exception, home: Path | None) -> tuple[traceback.FrameSummary, traceback.FrameSummary]:
    """The innermost frame inside of `home`, or the innermost of all; and the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if home is not None and Path(f.filename).is_relative_to(home)]
    return (own or frames)[-1], frames[-1]


def _emulated(error: EmulatorError, home: Path | None) -> list[str]:
    """The lines of an emulator's report as places that a terminal opens, with their source text."""
    roles = (("at", error.file, error.line), ("the other at", *(error.earlier or (None, None))))
    return [
        f"{role} {path}:{line}: {linecache.getline(str(path), line).strip()}"
        for role, file, line in roles
        if file and line and (path := _path(file, home)) is not None
    ]


@lru_cache(maxsize=256)
def _path(file: str, home: Path | None) -> Path | None:
    """The file that a compiler called `file`: as it is, or the one of that name in the package; None if unknown."""
    if Path(file).is_absolute() and Path(file).is_file():
        return Path(file)
    found = sorted(home.rglob(Path(file).name)) if home is not None else []
    return found[0] if len(found) == 1 else None
