"""When a process gets further operators: what was found before them is forgotten, and torch learns of them."""

from __future__ import annotations

import importlib

from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, config, dispatch, elsewhere, measured, requests, torch_ops, tuning


def refresh() -> None:
    """List the packages with operators anew; calls that are remembered are chosen for again."""
    catalog.forget()
    for cached in (registered.variants, requests.environment, config.read):
        cached.cache_clear()
    registered.refused.clear()
    measured.forget()
    tuning.forget()
    dispatch._plans.clear()
    face = vars(importlib.import_module("kernelmux"))
    for name in ("__all__", *elsewhere.listed().owners):
        face.pop(name, None)
    torch_ops.install_torch_ops()
