"""Well-known operators, beside other libraries in one run on one GPU: the calls, the record, the table.

python -m kernelmux.docs.libraries                 print the command that times them
python -m kernelmux.docs.libraries --triton        print the command for another version of Triton: our Triton kernels
python -m kernelmux.docs.libraries results.json    keep the rows of the table in
                                                   kernelmux/records/<gpu>/trials/libraries_triton_<version>.json
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelmux.docs import HOME, RECORDS
from kernelmux.perf import peers
from kernelmux.perf.planning import plan
from kernelmux.perf.record import history, run_file
from kernelmux.perf.record.run_file import Results
from kernelmux.perf.rows.row_result import Timed
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import ResultGroup, groups
from kernelmux.registry import catalog
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import files, text_tables
from kernelmux.registry.util.files import between, file_stem

FOLDER = RECORDS
FILES = "*/trials/libraries_triton_*.json"  # in FOLDER
OURS = {"cuda": "CUDA", "triton": "Triton"}
HEADS = "4x32x4096x128"
CALLS = {  # of each operator the call that is timed, in the order of the picture
    "matmul": "a=8192x8192 b=8192x8192",
    "fp8_matmul": "a=8192x8192 b=8192x8192.mT scale_a=scalar scale_b=scalar",
    "attention": f"q={HEADS} k={HEADS} v={HEADS} causal=True",
    "attention_backward": f"grad_out={HEADS} q={HEADS} k={HEADS} v={HEADS} y={HEADS} lse=4x32x4096 causal=True",
    "conv2d": "x=32x256x56x56 weight=256x256x3x3 padding=1 channels-last",
    "softmax": "x=16384x8192",
    "rms_norm": "x=16384x8192 weight=8192",
    "layer_norm": "x=16384x8192 weight=8192 bias=8192",
    "swiglu": "a=16384x14336 b=16384x14336",
    "rope": "x=4x32x4096x128 cos=4096x64 sin=4096x64",
    "cross_entropy": "logits=4096x128256 target=4096 reduction=sum",
    "cross_entropy_with_gradient": "logits=4096x128256 target=4096 reduction=sum",
}
DTYPES = ("bf16", "e4m3")  # e4m3: of fp8_matmul
RUNGS = (  # the fast ones of these operators
    "cuda/wgmma",
    "cuda/fused",
    "cuda/fused_atomic",
    "cuda/implicit_gemm_tma",
    "cuda/registers",
    "cuda/rows",
    "cuda/vectorized",
    "cuda/heads",
    "cuda/online",
    "cuda/clusters",
    "triton/persistent",
    "triton/specialised",
    "triton/one_walk",
    "triton/descriptors",
    "triton/resident",
    "triton/blocked",
    "triton/heads",
    "triton/online",
    "triton/staying",
)
HOW = ("--quick", "--brief", "--rest", "0.1", "--limit", "60")
LIBRARIES = {  # by the variant in kernelmux/perf/peers, for readers
    "torch_compile": "torch.compile",
    "cublas": "cuBLAS",
    "scaled_mm": "cuBLAS",
    "cudnn": "cuDNN",
    "flash_2": "FlashAttention-2",
    "flash_4": "FlashAttention-4",
    "efficient": "torch's memory-efficient",
    "quack": "QuACK",
    "liger": "Liger",
    "flag_gems": "FlagGems",
    "cudnn_frontend": "cuDNN",
    "deep_gemm": "DeepGEMM",
    "fla": "fla",
}
BY_TORCH = {"matmul": "cuBLAS", "fp8_matmul": "cuBLAS", "conv2d": "cuDNN"}  # what torch calls, compiled or not
PACKAGES = {  # the version of a library
    "flash-attn-4": "FlashAttention-4",
    "quack-kernels": "QuACK",
    "liger-kernel": "Liger",
    "flag-gems": "FlagGems",
    "sgl-deep-gemm": "DeepGEMM",
    "fla-core": "fla",
    "nvidia-cublas": "cuBLAS",
    "nvidia-cudnn-cu13": "cuDNN",
}


@dataclass(frozen=True)
class LibraryRow:
    """One operator: our fastest row of each backend, and the fastest of the other libraries."""

    ours: dict[str, Timed]
    other: Timed

    @property
    def op(self) -> str:
        return self.other.op

    @property
    def library(self) -> str:
        """What computed the other row: torch's product is one of cuBLAS."""
        through_torch = self.other.backend == plan.BASELINE or self.other.variant == "torch_compile"
        if through_torch and self.op in BY_TORCH:
            return BY_TORCH[self.op]
        return "torch" if self.other.backend == plan.BASELINE else LIBRARIES.get(self.other.variant, self.other.variant)

    @property
    def apart(self) -> float:
        """How far the two times of a contestant lie apart, at most."""
        return max(row.apart for row in (self.other, *self.ours.values()))

    def ahead(self, backend: str) -> float:
        """How many times as fast as that library a backend is."""
        return self.other.median_us / self.ours[backend].median_us


def command(triton: bool = False) -> str:
    """The command line of the run; triton: of our Triton kernels alone."""
    texts = dict.fromkeys(_short(op, text) for op, text in CALLS.items())
    rungs = [rung for rung in RUNGS if rung.startswith("triton/") or not triton]
    beside = () if triton else ("--peers",)
    words = [*beside, *HOW, "--dtype", *DTYPES, "--op", *CALLS, "--backend", *rungs, "--workload", *texts]
    return shlex.join(["python", "-m", "kernelmux.perf", *words])


def _short(op: str, text: str) -> str:
    """A workload by its name where it is one of the spec: the text of a shape would be tried on every operator."""
    known = {case.text: case.name for case in catalog.spec(op).workloads}
    return known.get(text, text)


def kept() -> list[Results]:
    """The runs on record: first the one beside other libraries, then those under other versions of Triton."""
    found = [run_file.read(path) for path in sorted(FOLDER.glob(FILES))]
    return sorted(found, key=lambda run: not lines(run))


def lines(run: Results) -> list[LibraryRow]:
    """The operators of a run that have a time of ours and one of another library."""
    found = {group.op: group for group in groups(run.rows) if CALLS.get(group.op) == group.workload}
    made = (_line(found[op]) for op in CALLS if op in found)
    return [line for line in made if line is not None]


def _line(group: ResultGroup) -> LibraryRow | None:
    ours = {name: row for name in OURS if (row := group.best_of(name))}
    others = [row for row in group.good if row.backend in (peers.NAME, plan.BASELINE)]
    best = min(others, key=lambda row: row.median_us, default=None)
    if best is None or not ours or not any(row.backend == peers.NAME for row in others):
        return None
    return LibraryRow(ours, best)


def call(workload: str) -> str:
    """A workload for readers: arguments of one shape together, as in "q, k, v 4x32x4096x128, causal=True"."""
    shapes: dict[str, list[str]] = {}
    more = []
    for word in workload.split():
        name, _, value = word.partition("=")
        if re.match(r"\d+x", value) or (value.isdigit() and name != "padding"):
            shapes.setdefault(value, []).append(name)
        elif value != "scalar":
            more.append(word)
    return ", ".join([*(f"{', '.join(names)} {shape}" for shape, names in shapes.items()), *more])


def filled(text: str) -> str:
    """A page with the table between <!-- libraries --> and <!-- /libraries -->."""
    begin, end = "<!-- libraries -->", "<!-- /libraries -->"
    return between(text, begin, end, section()) if begin in text else text


def section() -> str:
    """The table of the run on record, what it is of, and Triton's times under other versions."""
    runs = kept()
    if not runs or not lines(runs[0]):
        return f"No run is on record yet. On a GPU:\n\n```console\n{command()}\n```"
    parts = [_about(runs[0]), _table(lines(runs[0])), *([_versions(runs)] if len(runs) > 1 else [])]
    return "\n\n".join(parts)


def _about(run: Results) -> str:
    versions = [f"{name} {run.machine.versions[key]}" for key, name in PACKAGES.items() if key in run.machine.versions]
    found = lines(run)
    apart = max(line.apart for line in found)
    dtype = "".join(f", `{line.op}` in {line.other.dtype}" for line in found if line.other.dtype != DTYPES[0])
    beside = f" Beside: {', '.join(versions)}." if versions else ""
    twice = f" Each was timed twice; the two times differ by {apart:.1%} at most." if apart else ""
    return (
        f"One run on one {wording.where(run.machine)} ({run.date}), in {DTYPES[0]}{dtype}.{beside}{twice}\n"
        f"[The rows of the table]({_link(run)}) have its command; `python -m kernelmux.docs.libraries`"
        " prints it."
    )


def _table(found: list[LibraryRow]) -> str:
    head = ("operator", *(f"{name}, us" for name in OURS.values()), "fastest other library, us", "call")
    return text_tables.markdown(head, map(_cells, found))


def _cells(line: LibraryRow) -> list[str]:
    ours = [_time(line, name) if name in line.ours else "" for name in OURS]
    other = f"{wording.microseconds(line.other.median_us)} {line.library}"
    return [f"[`{line.op}`](operators/{line.op}.md)", *ours, other, call(line.other.workload)]


def _time(line: LibraryRow, backend: str) -> str:
    return f"{wording.microseconds(line.ours[backend].median_us)} ({wording.times(line.ahead(backend))})"


def _versions(runs: Sequence[Results]) -> str:
    """Times of our Triton kernels under each version on record."""
    ordered = sorted(runs, key=_triton)
    names = [f"[Triton {run.machine.versions['triton']}]({_link(run)}), us" for run in ordered]
    found = [dict(_of_triton(run)) for run in ordered]
    ops = [op for op in CALLS if any(op in times for times in found)]
    rows = [[f"`{op}`", *(wording.microseconds(times.get(op)) for times in found)] for op in ops]
    head = "The same calls of our Triton kernels under other versions of Triton, each a run:"
    return f"{head}\n\n{text_tables.markdown(('operator', *names), rows, right=names)}"


def _of_triton(run: Results) -> Iterator[tuple[str, float]]:
    for group in groups(run.rows):
        if CALLS.get(group.op) == group.workload and (row := group.best_of("triton")):
            yield group.op, row.median_us


def _triton(run: Results) -> tuple[int, ...]:
    return tuple(int(part) for part in run.machine.versions["triton"].split(".")[:3] if part.isdigit())


def _path(run: Results) -> Path:
    version = run.machine.versions.get("triton", "none").replace(".", "_")
    return FOLDER / file_stem(run.machine.name) / f"trials/libraries_triton_{version}.json"


def _link(run: Results) -> str:
    """From a page in docs/."""
    return f"../{(RECORDS / _path(run).relative_to(FOLDER)).relative_to(HOME.parent).as_posix()}"


def _quoted(run: Results) -> tuple[Timed, ...]:
    """The rows that the pages quote: of each call the fastest of each backend of ours, of torch and of other libraries."""
    made: list[Timed] = []
    for group in groups(run.rows):
        if CALLS.get(group.op) == group.workload:
            others = (plan.BASELINE, peers.NAME) if group.best_of(peers.NAME) else ()
            made += [row for name in (*OURS, *others) if (row := group.best_of(name))]
    return tuple(made)


def keep(path: Path) -> Path:
    """Make the results at `path` the record; those of another GPU are removed. ArgumentError for a run of other calls."""
    run = run_file.read(path)
    rows = _quoted(run)
    timed = {row.op for row in rows}
    if missing := [op for op in CALLS if op not in timed]:
        print(f"no times of {', '.join(missing)}: these operators will not be in the picture", file=sys.stderr)
    if run.machine.kind != "cuda" or not timed:
        raise ArgumentError(f"{path}: expected times of {', '.join(CALLS)} on a GPU; the command is\n{command()}")
    for other in FOLDER.glob(FILES):
        if run_file.read(other).machine.name != run.machine.name:
            other.unlink()
    made = _path(run)
    made.parent.mkdir(parents=True, exist_ok=True)
    form = history.form(replace(run, rows=rows, overhead=()))
    known = [{name: value for name, value in row.items() if value is not None} for row in form["rows"]]
    files.write(made, run_file.text(form | {"rows": known}))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = terminal.Parser(
        prog="python -m kernelmux.docs.libraries",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", nargs="?", metavar="RESULTS.json", help="what `python -m kernelmux.perf` wrote")
    parser.add_argument("--triton", action="store_true", help="the command of our Triton kernels alone")
    options = parser.parse_args(arguments)
    return terminal.run("libraries", lambda: _run(options.results, options.triton))


def _run(given: str | None, triton: bool) -> int:
    if given is None:
        print(command(triton))
    else:
        print(f"{keep(Path(given))}\nnow run `nox -s docs`, which draws the picture and writes the table")
    return 0


if __name__ == "__main__":
    sys.exit(main())
