"""The shipped kernels on a GPU and on the emulator: `python -m kernelmux.conformance.bits`.

    --measure bits.npz                on a GPU: runs every variant on the smaller cases of tier ci, writes the results
    --compare bits.npz                anywhere: runs the same calls on the emulator and compares bit by bit
    --compare bits.npz --record FILE  and writes the record
    --update docs/emulator.md         writes the recorded table between its markers

Exit status: 0 done, 1 a result is farther from the GPU's than its error bound allows, 2 a usage error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from kernelmux.conformance.inputs.trials import Trial, bits
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import worker_facts
from kernelmux.emulator.validation.hardware import comparing, gpu
from kernelmux.emulator.validation.progress import bar
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.util.files import RECORDS, between

RECORD = RECORDS / "nvidia_h200/bits.json"
BEGIN, END = "<!-- shipped kernels begin -->", "<!-- shipped kernels end -->"
LARGEST = 2**16  # elements of a call whose results are stored
FLOATS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class BitsJob:
    """One call of one variant."""

    probe: Probe
    trial: Trial

    @property
    def variant(self) -> str:
        return f"{self.probe.spec.name} {self.probe.label}"

    @property
    def name(self) -> str:
        return f"{self.variant} {self.trial.case} {SHORT[self.trial.dtype]}"

    @property
    def inputs(self) -> dict[str, Array]:
        """The bits of the input tensors. They are stored: not every CPU draws the same, as exp() is not the same."""
        return {name: _bits(tensor.cpu()) for name, tensor in self.trial.tensors.items()}

    def fed(self, inputs: dict[str, Array]) -> BitsJob:
        """The same call on the CPU with these inputs."""
        given = {
            name: torch.from_numpy(inputs[name].view(f"i{inputs[name].itemsize}").copy()).view(x.dtype).reshape(x.shape)
            for name, x in self.trial.tensors.items()
        }
        return BitsJob(self.probe, self.trial.changed("", **given))

    def run(self) -> list[tuple[str, Array]]:
        """Type and bits of each output."""
        return [(FLOATS.get(t.dtype, "integer"), _bits(t.cpu())) for t in self.probe.call(self.trial.values)]


def _bits(x: torch.Tensor) -> Array:
    whole: Array = bits(x).numpy()
    return whole.reshape(-1).view(f"u{whole.itemsize}")


def jobs(device: str) -> Iterator[BitsJob]:
    """Every variant of the backends that have kernels on the smaller cases of tier ci, each in one dtype in turn."""
    emulated, here = Options(), Options(device=device)
    for op in catalog.usable():
        for name in (n for n in registered.backends() if registered.backend(n).emulates):
            for variant, implementation in registered.variants(name, op).items():
                planned = Probe(catalog.spec(op), "bits", name, variant, implementation, emulated)
                probe = Probe(planned.spec, "bits", name, variant, implementation, here)
                trials = (probe.make(case, dtype) for case, dtype in planned.turns())
                yield from (BitsJob(probe, t) for t in trials if t.size <= LARGEST and not probe.reasons(t))


# --- measuring ------------------------------------------------------------------------------------------------


def measure(file: Path, device: str = "cuda") -> int:
    """Store what every job returns on this machine's GPU; how many there were."""
    stored: dict[str, Array] = {}
    found = list(jobs(device))
    for job in _progress(found, device):
        stored |= {f"{job.name} | {name}": values for name, values in job.inputs.items()}
        stored |= {f"{job.name} | {i}": values for i, (_, values) in enumerate(job.run())}
    about = (gpu.describe() if device == "cuda" else {"gpu": "no GPU", "driver": "none"}) | worker_facts.versions()
    np.savez_compressed(file, about=np.array(json.dumps(about)), **stored)  # type: ignore[arg-type]  # by name
    return len(found)


def _progress(items: Sequence[BitsJob], what: str) -> Iterable[BitsJob]:
    with bar() as progress:
        yield from progress.track(items, description=what)


# --- comparing ------------------------------------------------------------------------------------------------


@dataclass
class BitsRow:
    """One variant: calls compared, results in them, how many have other bits, and how far apart the farthest are."""

    calls: int = 0
    results: int = 0
    differing: int = 0
    ulp: int | None = 0
    too_far: list[str] = field(default_factory=list)


def compare(file: Path) -> dict[str, Any]:
    """What the GPU returned beside what the emulator returns, per variant."""
    with np.load(file) as stored:
        theirs = {name: stored[name] for name in stored.files}
    about = json.loads(str(theirs.pop("about")))
    rows: dict[str, BitsRow] = {}
    known = [job for job in jobs("cpu") if f"{job.name} | 0" in theirs]
    for job in _progress(known, "emulator"):
        inputs = {name: theirs[f"{job.name} | {name}"] for name in job.trial.tensors}
        outputs = [theirs[f"{job.name} | {i}"] for i in range(len(job.trial.spec.outputs))]
        _enter(rows.setdefault(job.variant, BitsRow()), job.fed(inputs), outputs)
    return {"about": about, "emulator": worker_facts.versions(), "rows": {k: vars(v) for k, v in rows.items()}}


def _enter(row: BitsRow, job: BitsJob, theirs: list[Array]) -> None:
    row.calls += 1
    ours = job.run()
    for (kind, values), other in zip(ours, theirs, strict=True):
        apart = comparing.of_kind(kind, values, other)
        row.results += apart.results
        row.differing += apart.differing
        row.ulp = None if row.ulp is None or apart.ulp is None else max(row.ulp, apart.ulp)
    if not _within_bounds(job, ours, theirs):
        row.too_far.append(job.name)


def _within_bounds(job: BitsJob, ours: list[tuple[str, Array]], theirs: list[Array]) -> bool:
    """Whether the two differ by no more than two results within their bounds can: integers not at all."""
    limits = job.trial.bounds(job.probe.arithmetics(job.trial))
    outputs = zip(job.trial.spec.outputs, limits, ours, theirs, job.trial.references, strict=True)
    for output, limit, (_, mine), other, reference in outputs:
        if limit is None:
            if not np.array_equal(mine, other):
                return False
            continue
        dtype = output.dtype_of(job.trial.call)
        a, b = (torch.from_numpy(x.view(f"i{x.itemsize}").copy()).view(dtype).double() for x in (mine, other))
        apart = (a - b).abs().nan_to_num(0.0, posinf=0.0, neginf=0.0).reshape(reference.shape)
        if (apart > 2 * limit.total).any():
            return False
    return True


def save(found: dict[str, Any], file: Path) -> None:
    """A line for each variant."""
    head = json.dumps({k: v for k, v in found.items() if k != "rows"}, indent=1)
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found["rows"].items())
    file.write_text(f'{head[:-2]},\n "rows": {{\n{lines}\n}}}}\n')


# --- showing --------------------------------------------------------------------------------------------------


def cells(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table as text."""
    share = comparing.share(row["differing"], row["results"])
    apart = "" if not row["differing"] else "NaN or Inf" if row["ulp"] is None else f"{row['ulp']} ulp"
    return name, str(row["calls"]), f"{row['results']:,}", share, apart


def table(found: dict[str, Any]) -> Table:
    """The comparison by variant, for people."""
    shown = Table("variant", "calls", "results", "other bits", "farthest", title=f"{found['about']['gpu']}, emulator")
    for name, row in found["rows"].items():
        style = "bold red" if row["too_far"] else "" if not row["differing"] else "yellow"
        shown.add_row(*cells(name, row), style=style)
    return shown


def markdown(found: dict[str, Any]) -> str:
    """One line for each operator and backend: its equal variants, and the others with their differences."""
    lines = ["| operator | backend | all bits equal | other bits: share, farthest |", "|---|---|---|---|"]
    groups: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
    for name, row in found["rows"].items():
        op, _, label = name.partition(" ")
        backend, _, variant = label.partition("/")
        groups.setdefault((op, backend), []).append((variant, row))
    for (op, backend), members in groups.items():
        equal = ", ".join(v for v, row in members if not row["differing"])
        other = "; ".join(
            f"{v} {row['differing'] / row['results']:.2%}, {cells(v, row)[-1]}"
            for v, row in members
            if row["differing"]
        )
        lines.append(f"| `{op}` | {backend} | {equal or '-'} | {other or '-'} |")
    total = sum(row["results"] for row in found["rows"].values())
    calls = sum(row["calls"] for row in found["rows"].values())
    about = found["about"]
    return "\n".join([*lines, "", f"{calls} calls, {total:,} results; {about['gpu']}, driver {about['driver']}."])


def _update(file: Path) -> None:
    content = markdown(json.loads(RECORD.read_text()))
    try:
        text = between(file.read_text(encoding="utf-8"), BEGIN, END, content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    file.write_text(text, encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m kernelmux.conformance.bits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chosen = made.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--measure", type=Path, metavar="FILE", help="run on this machine's GPU, write FILE")
    chosen.add_argument("--compare", type=Path, metavar="FILE", help="compare FILE with the emulator")
    chosen.add_argument("--update", type=Path, metavar="FILE", help="write the recorded table into a document")
    made.add_argument("--record", type=Path, metavar="FILE", help="with --compare: write the record to FILE")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; see the module's text for the exit status."""
    args = parser().parse_args(arguments)
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)
    try:
        if args.update:
            _update(args.update)
            return 0
        if args.measure:
            if not torch.cuda.is_available():
                raise ValueError("--measure needs a GPU")
            console.print(f"{measure(args.measure)} calls ran; results in {args.measure}")
            return 0
        found = compare(args.compare)
    except (OSError, ValueError) as error:
        print(f"bits: {error}", file=sys.stderr)
        return 2
    console.print(table(found))
    if args.record:
        save(found, args.record)
    return int(any(row["too_far"] for row in found["rows"].values()))
