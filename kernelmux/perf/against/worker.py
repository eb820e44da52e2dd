"""The process of one tree: reads requests on stdin and answers on stdout, a line of JSON each (see `stand`).

    PYTHONPATH=<tree> python -P kernelmux/perf/against/worker.py cuda

The registry and the backends are those of the tree; `kernelmux.perf` is the one that this file belongs to, so that both
trees are timed and checked in the same way, and a revision need not know this command.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import IO


def main(device: str) -> None:
    """Answer requests until stdin ends, or the GPU answers no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a backend prints belongs to the log
    _bring("kernelmux.perf", Path(__file__).resolve().parents[1])
    from kernelmux.perf.against.stand import Stand

    stand = Stand(device)
    for line in sys.stdin:
        _tell(answers, stand.answer(*json.loads(line)))
        if stand.lost:
            return


def _tell(answers: IO[str], told: object) -> None:
    answers.write(json.dumps(told) + "\n")
    answers.flush()


def _bring(name: str, folder: Path) -> None:
    """Import a package from a folder, whatever the import path has of that name."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} holds no package")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main(sys.argv[1])
