"""When a process gets further operators: what was found before them is forgotten, and torch learns of them."""

from __future__ import annotations

import importlib

from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import timings, tuned_configs
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence
from kernelmux.registry.interop import torch_ops


def refresh() -> None:
    """List the packages with operators anew; every call is chosen for again."""
    face = vars(importlib.import_module("kernelmux"))
    for name in ("__all__", *elsewhere.listed().owners):
        face.pop(name, None)
    catalog.forget()
    registered.forget()
    timings.forget()
    tuned_configs.forget()
    dispatch._plans.clear()
    precedence.reread()
    torch_ops.install_torch_ops()
