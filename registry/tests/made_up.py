"""Backends made up for a test, in place of the real ones, and a process of its own for what must not touch this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch

from kernelmux.registry import backend as registered
from kernelmux.registry import dispatch, notices, requests, stats
from kernelmux.registry.backend import Backend, Implementation
from kernelmux.registry.conditions import Aligned, AtMost, Dtypes, Multiple, OneOf
from kernelmux.registry.plan import CallPlans

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
    monkeypatch.setattr(notices, "_told", set())
    monkeypatch.setattr(stats, "_counters", {})
    for name in [name for name in os.environ if name.startswith("KERNELMUX_BACKEND")]:
        monkeypatch.delenv(name)
    requests.environment.cache_clear()


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
