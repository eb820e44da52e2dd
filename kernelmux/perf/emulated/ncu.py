"""Nsight Compute: where it is, which metrics it knows, a run of it on a command, and the table that it writes."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MISSING = "ncu was not found (Nsight Compute, part of the CUDA toolkit)"
PLACES = ("cuda*/bin", "cuda*/nsight-compute*")  # under /usr/local, beside the PATH


@dataclass
class NcuLaunch:
    """One launch as ncu saw it."""

    kernel: str
    shape: str = ""  # block and grid as ncu prints them, "(32, 8, 1) (4, 1, 1)"; empty if the table has none
    metrics: dict[str, float] = field(default_factory=dict)

    def fits(self, traced: Any) -> bool:
        """Whether it can be the launch that the emulator has traced."""
        return self.kernel == traced.kernel and self.shape.strip() in ("", f"{traced.block} {traced.grid}")


def find() -> str | None:
    """The program, or None."""
    found = (str(path) for place in PLACES for path in sorted(Path("/usr/local").glob(f"{place}/ncu"), reverse=True))
    return shutil.which("ncu") or next(found, None)


def known(tool: str) -> set[str]:
    """The names of the metrics that it has on this GPU, without what follows the dot."""
    listing = subprocess.run([tool, "--query-metrics"], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"^(\w+__\w+)", listing, re.MULTILINE))


def run(tool: str, command: Sequence[str], metrics: Sequence[str], table: Path, *more: str) -> str | None:
    """Run a command under ncu, at the clock as it is, and write its table; what went wrong, or None."""
    line = [
        tool,
        "--clock-control",
        "none",
        "--metrics",
        ",".join(metrics),
        "--csv",
        "--log-file",
        str(table),
        "--print-units",
        "base",
        *more,
        *command,
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    log = table.read_text() if table.is_file() else ""
    if "ERR_NVGPUCTRPERM" in log + done.stdout + done.stderr:
        return "the driver lets only root read the GPU's counters here (ERR_NVGPUCTRPERM)"
    if done.returncode or not log:
        return f"ncu ended with {done.returncode}:\n{log[-1500:]}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return None


def read(text: str) -> list[NcuLaunch]:
    """The launches in ncu's CSV, which has a row per launch and metric between lines of its own."""
    rows = csv.DictReader(line for line in text.splitlines() if line.startswith('"'))
    launches: dict[str, NcuLaunch] = {}
    for row in rows:
        launch = launches.setdefault(row["ID"], _launched(row))
        value = row["Metric Value"].replace(",", "")
        if re.fullmatch(r"-?[\d.]+", value):
            launch.metrics[row["Metric Name"]] = float(value)
    return list(launches.values())


def _launched(row: dict[str, str]) -> NcuLaunch:
    name = row["Kernel Name"].split("(")[0].split("<")[0]
    return NcuLaunch(name, f"{row.get('Block Size', '')} {row.get('Grid Size', '')}")
