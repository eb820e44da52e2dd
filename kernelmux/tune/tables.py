"""What a search writes: the entries of what was faster than the rules, in the table of the GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kernelmux.perf.rows import output_files
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import tuned_configs
from kernelmux.registry.backend.device_tables import Table
from kernelmux.registry.backend.tuned_configs import TunedConfig
from kernelmux.registry.errors import KernelmuxError
from kernelmux.tune.search import Search


def entries(searches: Iterable[Search]) -> Iterator[TunedConfig]:
    """What is written of the searches that found something."""
    for search in searches:
        if search.wins and (measured := search.measured) and search.found:
            job, key = search.job, search.found.key
            yield TunedConfig(
                op=job.op,
                backend=job.backend,
                variant=job.variant,
                kind=key.kind,
                sizes=key.sizes,
                config=measured.config,
                us=round(measured.us, 2),
                rule=search.found.rule,
                rule_us=round(measured.rule_us, 2),
                workload=job.workload,
                dtype=job.dtype,
                spec=catalog.spec(job.op).hash,
                source=registered.source_hash(job.backend, job.op, job.variant),
                versions=dict(search.gpu.packages),
            )


def refuted(searches: Iterable[Search]) -> set[tuple[str, ...]]:
    """The places of entries whose searches find the rule as fast."""
    stays = ((s.job, s.found.key) for s in searches if s.found and s.measured and not s.measured.gains)
    return {(job.op, job.backend, job.variant, key.kind, *map(str, key.sizes)) for job, key in stays}


def write(
    found: Sequence[TunedConfig], gpu: Table[TunedConfig], folder: Path, without: Collection[tuple[str, ...]] = ()
) -> Path:
    """Put entries into the table of a GPU in a folder, and take stale and older ones out whose places are in `without`.

    gpu: the head of the table. A table that cannot be read is replaced.
    """
    tables = tuned_configs.TABLES.at(folder)
    try:
        before = tables.of(gpu.gpu)
    except KernelmuxError:
        before = gpu
    made = replace(gpu, rows=tuned_configs.merged(before, found, without).rows)
    output_files.write(path := tables.path(gpu.gpu), tables.text(made))
    tuned_configs.forget()
    return path
