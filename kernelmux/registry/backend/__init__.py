"""Who can compute: a backend and its implementations, from here; how they are found, tuned, timed and judged."""

from kernelmux.registry.backend import tuned_configs as tuned_configs  # which answers `search_space.lookup`
from kernelmux.registry.backend.description import (
    Ahead,
    Backend,
    Implementation,
)
from kernelmux.registry.backend.lookup import (
    backend,
    backend_names,
    backends,
    composite,
    emulates,
    fits,
    folder,
    implements,
    joined,
    loads,
    package,
    source_hash,
    split,
    unavailable,
    variants,
)

__all__ = [
    "Ahead",
    "Backend",
    "Implementation",
    "backend",
    "backend_names",
    "backends",
    "composite",
    "emulates",
    "fits",
    "folder",
    "implements",
    "joined",
    "loads",
    "package",
    "source_hash",
    "split",
    "unavailable",
    "variants",
]
