"""Pictures of the recorded sweeps: those that pages show in docs/images/curves, the others where `--drawn` says."""

from __future__ import annotations

from pathlib import Path

from kernelmux.perf.pictures import curves
from kernelmux.perf.sweeps import curve as measured

SHOWN = "images/curves"  # in docs/


def drawn(folder: Path, shown: bool) -> dict[Path, str]:
    """Files of a folder with their text: the pictures that pages show, or all others."""
    chosen = [curve for curve in map(measured.read, measured.shipped()) if (curve.op in curves.PICTURED) == shown]
    return {folder / f"{measured.name_of(curve)}.svg": curves.svg(curve) for curve in chosen}
