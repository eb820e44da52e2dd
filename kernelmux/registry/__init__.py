"""WHAT every operator means, and WHICH backend runs it.

spec/      what an operator means          ops/       one operator per file; `catalog` finds them
backend/   who can compute it              choice/    who runs a call, and why
interop/   how torch meets a call          observe/   what ran
call/      running it                      cli/       commands
util/      what knows no operator

Each imports only those below it: docs/architecture.md, "Inside the registry".
"""

from importlib import import_module
from types import ModuleType

# Names that the documentation gave, beside the modules that pass on what their rooms hold.
_MOVED = {"cards": "util.cards", "measured": "backend.timings", "plugins": "util.entry_points"}


def __getattr__(name: str) -> ModuleType:
    if name in _MOVED:
        return import_module(f"{__name__}.{_MOVED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
