"""Backends made up for a test, in place of the real ones, and a process of its own for what must not touch this one."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.call.plan import CallPlans
from kernelmux.registry.choice import requests, warn_once
from kernelmux.registry.errors import FallbackWarning
from kernelmux.registry.observe import counters
from kernelmux.registry.spec.conditions import Aligned, AtMost, Dtypes, Multiple, OneOf

Ladders = Mapping[str, Mapping[str, Implementation]]  # operator -> variants


def install(monkeypatch: pytest.MonkeyPatch, found: Mapping[str, tuple[Backend, Ladders]]) -> None:
    """Make these the only backends until the end of the test, with nothing remembered, counted or told."""

    def backend(name: str) -> Backend:
        return found[name][0]

    monkeypatch.setattr(registered, "backends", lambda: tuple(found))
    monkeypatch.setattr(registered, "_packages", lambda: dict.fromkeys(found, "fake"))
    monkeypatch.setattr(registered, "backend", backend)
    monkeypatch.setattr(registered, "unavailable", lambda name, device: backend(name).unavailable(device))
    monkeypatch.setattr(registered, "implements", lambda name, op: op in found[name][1])
    monkeypatch.setattr(registered, "variants", lambda name, op: dict(found[name][1].get(op, {})))
    monkeypatch.setattr(dispatch, "_plans", CallPlans())
    monkeypatch.setattr(warn_once, "_told", set())
    monkeypatch.setattr(counters, "_counters", {})
    for name in [name for name in os.environ if name.startswith("KERNELMUX_BACKEND")]:
        monkeypatch.delenv(name)
    requests.environment.cache_clear()
    registered.forget_ladders()


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The operator by torch."""
    return torch.softmax(x * scale, axis)


def home(name: str, priority: int, lack: str | None = None, composite: bool = False) -> Backend:
    """A backend that works everywhere, or says why nowhere."""
    return Backend(name, "made up", priority, lambda device: lack, composite=composite)


LONG = Implementation(
    softmax, "picky", (Dtypes("x", torch.float16, torch.bfloat16), Multiple("N", 4096), OneOf("scale", 0.5, 2.0))
)
BACKENDS: dict[str, tuple[Backend, Ladders]] = {
    "swift": (
        home("swift", 40),
        {
            "softmax": {
                "rows": Implementation(softmax, "", (Multiple("N", 8), AtMost("N", 64)), {"x": "contiguous"}),
                "whole": LONG,
            }
        },
    ),
    "steady": (home("steady", 30), {"softmax": {"rows": Implementation(softmax, "", (Aligned("x"),))}}),
    "closed": (home("closed", 50, "the package closed is not installed"), {}),
    "plain": (home("plain", 10, composite=True), {"softmax": {"eager": Implementation(softmax, "")}}),
    "other": (home("other", 20), {}),
}


def told(call: Callable[[], Any]) -> list[str]:
    """The texts of the warnings of ours that a call gives, each of a fallback and at a line of the file that asks."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    ours = [w for w in found if w.category.__module__.startswith("kernelmux")]  # Triton has some of its own
    here = sys._getframe(1).f_code.co_filename
    assert all((w.category, w.filename) == (FallbackWarning, here) for w in ours)
    return [str(w.message) for w in ours]


def python(code: str, *arguments: str, timeout: float = 200, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of its own that runs this code, with the modules of this one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def without(*modules: str) -> str:
    """Code after which these packages, and what the installer wrote of them, cannot be found."""
    return f"""
import importlib.machinery, importlib.metadata
gone, find, version = {modules!r}, importlib.machinery.PathFinder.find_spec, importlib.metadata.version
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in gone else find(name, path, target)
def installed(name):
    if name.partition("-")[0] in gone:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.machinery.PathFinder.find_spec, importlib.metadata.version = find_spec, installed
"""
