"""Fake backends for transpose, whose results say which variant made them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence
from kernelmux.registry.spec.conditions import AtMost, Multiple

ASKED = "KERNELMUX_BACKEND"


def marked(value: float) -> Any:
    """An implementation of transpose, all of whose elements are `value`."""

    def transpose(x: torch.Tensor) -> torch.Tensor:
        return torch.full((x.shape[1], x.shape[0]), float(value), dtype=x.dtype)

    return transpose


def backend(name: str, priority: int, lack: str | None = None) -> Backend:
    return Backend(name, "a fake", priority, lambda device: lack)


# By priority: tiny takes M <= 4; ladder has two rungs, of which fast needs N % 8 == 0; absent is never there.
FAKES: dict[str, tuple[Backend, dict[str, Implementation]]] = {
    "absent": (backend("absent", 90, "no licence"), {}),
    "tiny": (backend("tiny", 80), {"only": Implementation(marked(1), idea="small", requires=(AtMost("M", 4),))}),
    "ladder": (
        backend("ladder", 70),
        {
            "slow": Implementation(marked(2), idea="always works"),
            "fast": Implementation(
                marked(3), idea="by eights", requires=(Multiple("N", 8),), layout={"x": "contiguous"}
            ),
        },
    ),
    "plain": (backend("plain", 60), {"only": Implementation(marked(4), idea="always works")}),
}


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the fakes in place of the real backends, without environment, configuration file and remembered choices."""
    monkeypatch.setattr(registered, "backends", lambda: tuple(FAKES))
    monkeypatch.setattr(registered, "_packages", lambda: dict.fromkeys(FAKES, "fake"))
    monkeypatch.setattr(registered, "backend", lambda name: FAKES[name][0])
    monkeypatch.setattr(registered, "unavailable", lambda name, device: FAKES[name][0].unavailable(device))
    monkeypatch.setattr(registered, "variants", lambda name, op: FAKES[name][1] if op == "transpose" else {})
    monkeypatch.setenv("KERNELMUX_CONFIG", "")
    precedence.reread()


def run(m: int = 8, n: int = 8, **kwargs: Any) -> float:
    """Which variant runs the transpose of a matrix of m x n, by the number that it writes."""
    return float(dispatch.function("transpose")(torch.zeros(m, n), **kwargs)[0, 0])
