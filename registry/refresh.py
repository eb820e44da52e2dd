"""When a process gets further operators: what was found before them is forgotten, and torch learns of them."""

from __future__ import annotations

import importlib

from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, dispatch, elsewhere, measured, selection, torch_ops, tuning


def refresh() -> None:
    """List the packages with operators anew; every call is chosen for again."""
    face = vars(importlib.import_module("kernelmux"))
    for name in ("__all__", *elsewhere.listed().owners):
        face.pop(name, None)
    catalog.forget()
    registered.variants.cache_clear()
    registered.refused.clear()
    measured.forget()
    tuning.forget()
    dispatch._plans.clear()
    selection.reread()
    torch_ops.install_torch_ops()
