"""Elementwise sum that has its own opinion about who should run."""

import os

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.choice import precedence, scope


def _right(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z: torch.Tensor = sound("add", x, y)
    return z


def _other(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A path that was not asked for, whose sum is a little too large."""
    return (_right(x, y).float() * (1 + 2.0**-6)).to(x.dtype)


def asks_the_scope(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A launcher that obeys use() for a second time."""
    return _other(x, y) if scope.state() else _right(x, y)


def asks_the_environment(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _other(x, y) if precedence.VARIABLE in os.environ else _right(x, y)


def asks_the_default(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A default that was set is taken as a wish for the fast path."""
    return _other(x, y) if precedence._defaults else _right(x, y)


VARIANTS = {
    "asks_the_scope": Implementation(fn=asks_the_scope, idea="another path inside of use()"),
    "asks_the_environment": Implementation(fn=asks_the_environment, idea="another path where a variable is set"),
    "asks_the_default": Implementation(fn=asks_the_default, idea="another path where a default is set"),
    "sound": Implementation(fn=_right, idea="does what it is told"),
}

CAUGHT_BY = dict.fromkeys(["asks_the_scope", "asks_the_environment", "asks_the_default"], "selection")
