"""Compares the emulator's trace with Nsight Compute: `python -m kernelmux.perf.emulated.ncu_check --out FOLDER`.

On a machine with a GPU and ncu: runs the calls of `ncu_calls` under ncu, then on the emulator, prints the counts side
by side, and writes ncu.csv and ncu_check.json. With `--csv FILE` ncu's table is read instead, which needs no GPU.
Exit status: 0 all counts are equal or the difference is known, 1 some differ, 2 nothing could be compared.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from kernelmux import emulator
from kernelmux.perf.emulated import ncu
from kernelmux.perf.emulated.ncu import NcuLaunch
from kernelmux.perf.emulated.ncu_calls import compared_calls
from kernelmux.registry.backend.package_versions import version
from kernelmux.registry.errors import BackendUnavailable

GLOBAL = [
    f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"
    for op in ("ld", "st", "atom", "red")
    for what in ("requests", "sectors")
]
SHARED = [
    f"l1tex__data_{what}_mem_shared_op_{op}.sum"
    for op in ("ld", "st", "atom")
    for what in ("pipe_lsu_wavefronts", "bank_conflicts_pipe_lsu")
]
COMPARED = [*GLOBAL, *SHARED]
# Further counts of ncu, recorded and not compared: PTX and SASS have different instructions.
SHOWN = [
    "smsp__inst_executed.sum",
    "smsp__thread_inst_executed.sum",
    "l1tex__t_sector_hit_rate.pct",
    "smsp__sass_branch_targets_threads_divergent.sum",
    "smsp__inst_executed_op_shared_ld.sum",
    "smsp__inst_executed_op_ldsm.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum",
    "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum",
]
MORE = re.compile(
    r"mem_global_op_ldgsts|^smsp__sass_l1tex_data.*_mem_shared(_op_(ld|st))?$|smsp__sass_l1tex_t_sectors.*global_op_ld"
)
LAUNCH = [
    "launch__registers_per_thread",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_blocks",
    "launch__occupancy_limit_warps",
]
# Differences that are known, by a pattern in "call metric"; the reason is printed and recorded with the counts.
EXPLAINED = {
    r"^global_copy_16 .*_sectors_.*_op_ld": "for cp.async of 16 bytes per lane ncu counts 16 sectors whatever the "
    "addresses are, 20 if they begin inside of one; the emulator counts the sectors that the addresses touch",
    r"^(?!global_|shared_).*_mem_shared_op_ld": "a GPU counts some passes more, never fewer, mostly another number of "
    "them each time, and none in the patterns: probably loads that wait for other traffic of their multiprocessor",
}
KERNELS = "^(global_|shared_|transpose|softmax|matmul|reduce_sum)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; see the module's text for the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kernelmux.perf.emulated.ncu_check", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/ncu"), metavar="FOLDER")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="a table that ncu wrote before")
    parser.add_argument("--name", metavar="GPU", help="with --csv: which GPU it was")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="TEXT",
        help="with --csv: calls whose kernel has changed since",
    )
    parser.add_argument("--launch", action="store_true", help="only launch the calls on the GPU, for ncu to see")
    options = parser.parse_args(arguments)
    if options.launch:
        return _launch()
    options.out.mkdir(parents=True, exist_ok=True)
    table = options.csv or options.out / "ncu.csv"
    if options.csv is None and (problem := _profile(table)):
        print(f"ncu_check: {problem}", file=sys.stderr)
        return 2
    comparison = compare(ncu.read(table.read_text()), options.name or _device(), options.without)
    (options.out / "ncu_check.json").write_text(_json(comparison))
    return show(comparison)


def _device() -> str:
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "unknown"


def _json(comparison: dict[str, Any]) -> str:
    """A line for each launch."""
    head = json.dumps({key: value for key, value in comparison.items() if key != "launches"}, indent=1)
    lines = ",\n".join(json.dumps(launch) for launch in comparison["launches"])
    return f'{head[:-2]},\n "launches": [\n{lines}\n]}}\n'


def _launch() -> int:
    for item in compared_calls():
        item.run("cuda")
    return 0


def _profile(table: Path) -> str | None:
    """Runs ncu on this very module; what went wrong, or None."""
    tool = ncu.find()
    if tool is None:
        return ncu.MISSING
    known = ncu.known(tool)
    metrics = [m for m in (*COMPARED, *SHOWN) if m.split(".")[0] in known or not known]
    metrics += sorted(f"{name}.sum" for name in known if MORE.search(name) and f"{name}.sum" not in metrics)
    command = [sys.executable, "-m", "kernelmux.perf.emulated.ncu_check", "--launch"]
    return ncu.run(tool, command, [*metrics, *LAUNCH], table, "-k", f"regex:{KERNELS}")


def compare(measured: list[NcuLaunch], device: str, without: Sequence[str] = ()) -> dict[str, Any]:
    """Every launch with [emulated, measured] for each count that is not 0 in both; without: names of calls to leave out."""
    launches, missing, position = [], [], 0
    for label, traced in _traced(without):
        later = (i for i in range(position, len(measured)) if measured[i].fits(traced))
        at = next(later, None)
        if at is None:
            missing.append(f"{label}: {traced.kernel}")
        else:
            launches.append(_entry(label, traced, measured[at]))
            position = at + 1
    return {
        "device": device,
        "triton": version("triton") or None,  # another one may make another kernel
        "explained": EXPLAINED,
        "not_measured": missing,
        "launches": launches,
    }


def _entry(label: str, traced: Any, seen: NcuLaunch) -> dict[str, Any]:
    pairs = {m: [traced.metrics.get(m, 0), int(seen.metrics[m])] for m in COMPARED if m in seen.metrics}
    need, fits = traced.resources, traced.occupancy()
    return {
        "call": label,
        "kernel": traced.kernel,
        "counts": {m: pair for m, pair in pairs.items() if any(pair)},
        "registers": [need.registers if need else None, seen.metrics.get("launch__registers_per_thread")],
        "blocks_per_multiprocessor": [fits.blocks if fits else None, _limit(seen)],
        "ncu": {m: v for m, v in seen.metrics.items() if v and m not in (*COMPARED, *LAUNCH)},
    }


def explanation(call: str, metric: str) -> str:
    """Why a count may differ; empty if it may not."""
    return next((why for known, why in EXPLAINED.items() if re.search(known, f"{call} {metric}")), "")


def _limit(seen: NcuLaunch) -> int | None:
    limits = [value for name, value in seen.metrics.items() if name.startswith("launch__occupancy_limit")]
    return int(min(limits)) if limits else None


def _traced(without: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for item in compared_calls():
        if any(text in item.label for text in without):
            continue
        try:
            with emulator.trace() as trace:
                item.run("cpu")
        except BackendUnavailable:  # Triton has one driver per process: where it drives the GPU it is not emulated
            continue
        for launch in trace.launches:
            yield item.label, launch


def show(comparison: dict[str, Any]) -> int:
    """Prints the counts that differ, which of them are explained, and how many are equal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=150, highlight=False)
    table = Table("call", "count", "emulator", "ncu", "", box=None, pad_edge=False)
    pairs = [(x["call"], m, *pair) for x in comparison["launches"] for m, pair in x["counts"].items()]
    different = [pair for pair in pairs if pair[2] != pair[3]]
    reasons = [explanation(call, metric) for call, metric, *_ in different]
    for (call, metric, *counts), reason in zip(different, reasons, strict=True):
        note = f"({list(EXPLAINED.values()).index(reason) + 1})" if reason else "[red]?[/red]"
        table.add_row(call, metric.removeprefix("l1tex__").removesuffix(".sum"), *map(str, counts), note)
    if different:
        console.print(table)
    for i, reason in enumerate(EXPLAINED.values(), 1):
        if reason in reasons:
            console.print(f"({i}) {reason}", soft_wrap=True)
    equal = len(pairs) - len(different)
    console.print(f"{equal} of {len(pairs)} counts of {len(comparison['launches'])} launches are equal")
    for label in comparison["not_measured"]:
        console.print(f"ncu did not see {label}", markup=False)
    return 2 if not pairs else 1 if "" in reasons or comparison["not_measured"] else 0


if __name__ == "__main__":
    sys.exit(main())
