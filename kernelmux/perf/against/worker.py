"""What the process of one tree runs, asked a question after another (see `stand`).

The registry and the backends are those of the tree; `kernelmux.perf` is the one that this file belongs to, so that both
trees are timed and checked in the same way, and a revision need not know this command. So this module is loaded by its
place, and imports nothing of ours before it has brought that package.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def serve(setup: Any, items: Iterator[tuple[Any, float]], tell: Callable[..., None]) -> None:
    """Answer questions, [number, request, ...], by [number, status, value], until the GPU answers no more."""
    _bring("kernelmux.perf", Path(__file__).resolve().parents[1])
    from kernelmux.perf.against.stand import Stand

    stand = Stand(setup["device"])
    for (number, request, *arguments), _ in items:
        tell([number, *stand.answer(request, *arguments)], stand.lost)


def _bring(name: str, folder: Path) -> None:
    """Import a package from a folder, whatever the import path has of that name."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} holds no package")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
