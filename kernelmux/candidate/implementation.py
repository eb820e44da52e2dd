"""A candidate as an implementation that every suite can call: the call crosses to its process."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kernelmux.candidate import claims
from kernelmux.candidate.condition_calls import AskedCondition
from kernelmux.candidate.errors import CandidateError
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.process import CandidateProcess
from kernelmux.candidate.worker_process import Worker
from kernelmux.registry.backend.description import KERNELS, Implementation
from kernelmux.registry.call.temporary_backends import Guest
from kernelmux.registry.errors import ArgumentError, unknown

_open: dict[tuple[Path, str, str], CandidateProcess] = {}


def opening(
    device: str, limits: Limits | None = None, take: Callable[[], Worker] | None = None
) -> Callable[[Path, str], Guest]:
    """How `temporary_backends.joined` is to come by a function that is to run on "cpu" or "cuda": in another process.

    The process stays until this one ends, or `close`. take: as `CandidateProcess` has it.
    """
    return partial(_opened, device=device, limits=limits, take=take)


def process_of(fn: Callable[..., Any]) -> CandidateProcess | None:
    """The process that a function of a candidate runs in; None for any other function."""
    return getattr(fn, "process", None) if getattr(fn, "__module__", "") == __name__ else None


def process(path: Path, name: str, device: str) -> CandidateProcess | None:
    """The process of a candidate that was opened here."""
    return _open.get((path, name, device))


def close() -> None:
    """End the processes of all candidates."""
    while _open:
        _open.popitem()[1].close()


atexit.register(close)


def _opened(path: Path, name: str, device: str, limits: Limits | None, take: Callable[[], Worker] | None) -> Guest:
    key = (path, name, device)
    if key in _open and _open[key].written != path.stat().st_mtime_ns:  # another text under the same name
        _open.pop(key).close()
    if key not in _open:
        _open[key] = CandidateProcess(path, name, device, limits, take)
    made = _open[key]
    try:
        told = made.claims()
        if "missing" in told:
            raise unknown(f"function of {path.name}", name, [str(n) for n in told["missing"]], "--impl")
        if "not_callable" in told:
            raise ArgumentError(
                f"--impl {path}:{name}: expected a function or an Implementation, got {told['not_callable']}"
            )
        return Guest(implementation(made, told), tuple(n for n in told["kernels"] if n in KERNELS))
    except CandidateError as error:
        raise ArgumentError(f"--impl {path}:{name}: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ArgumentError(f"--impl {path}:{name}: its process says of it what is no claim: {error!r}") from error


def implementation(made: CandidateProcess, told: dict[str, Any]) -> Any:
    """The function of a candidate, or the `Implementation` that it declares; told: its claims. Nothing is asked of it."""

    def call(*values: Any) -> Any:
        return made.call(values)

    call.process = made  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = made.name
    call.__doc__ = str(told["doc"])
    call.__signature__ = claims.signature(told["parameters"])  # type: ignore[attr-defined]
    if "declared" not in told:
        return call
    told = told["declared"]
    arithmetic = told["arithmetic"]
    return Implementation(
        fn=call,
        idea=str(told["idea"]),
        requires=tuple(_condition(made, one) for one in told["requires"]),
        layout={str(k): str(v) for k, v in told["layout"].items()},
        arithmetic=arithmetic if isinstance(arithmetic, str) else {str(k): str(v) for k, v in arithmetic.items()},
        deterministic=told["deterministic"] is True,
        exempt={str(k): claims.decoded(v) for k, v in told["exempt"].items()},
    )


def _condition(made: CandidateProcess, told: Any) -> Any:
    """A condition that was told as data, or one that the process is asked about."""
    if "asked" not in told:
        return claims.decoded(told)
    return AskedCondition(str(told["text"]), partial(made.condition, int(told["asked"])))
