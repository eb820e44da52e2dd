"""The committed comparison: per case what an H200 gave, as a digest of its bits, and how far the emulator was from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelmux.emulator.validation.hardware.catalogue import cases
from kernelmux.emulator.validation.hardware.comparing import Difference, digest
from kernelmux.emulator.validation.hardware.launching import Runnable, emulate

RECORD = Path(__file__).parents[3] / "records/nvidia_h200/instruction_bits.json"


@dataclass(frozen=True)
class InstructionClass:
    """One instruction class, all its cases together."""

    family: str
    cases: int
    results: int
    differing: int
    ulp: int | None
    absolute: float


@dataclass(frozen=True)
class HardwareRecord:
    """`about`: device, versions, command. `gpu`: the digest of each case's results. `differences`: where not equal."""

    about: dict[str, str]
    gpu: dict[str, str]
    results: dict[str, int]
    differences: dict[str, Difference]

    def rows(self) -> Iterator[InstructionClass]:
        """The table, by instruction class."""
        known = [case for case in cases() if case.name in self.gpu]
        for family in dict.fromkeys(case.family for case in known):
            names = [case.name for case in known if case.family == family]
            wrong = [self.differences[name] for name in names if name in self.differences]
            ulps = [w.ulp for w in wrong]
            worst = None if None in ulps else max((u for u in ulps if u is not None), default=0)
            total = sum(self.results[name] for name in names)
            absolute = max((w.absolute for w in wrong), default=0.0)
            yield InstructionClass(family, len(names), total, sum(w.differing for w in wrong), worst, absolute)


def save(record: HardwareRecord, file: Path) -> None:
    """A line for each case."""
    lines = []
    for name, value in record.gpu.items():
        entry: dict[str, Any] = {"gpu": value, "results": record.results[name]}
        if name in record.differences:
            entry |= {k: v for k, v in asdict(record.differences[name]).items() if k != "results"}
        lines.append(f"{json.dumps(name)}: {json.dumps(entry)}")
    file.write_text(f'{{"about": {json.dumps(record.about, indent=1)},\n"cases": {{\n' + ",\n".join(lines) + "\n}}\n")


def read(file: Path = RECORD) -> HardwareRecord:
    """The inverse of `save`."""
    content = json.loads(file.read_text())
    entries: dict[str, dict[str, Any]] = content["cases"]
    return HardwareRecord(
        content["about"],
        {name: entry["gpu"] for name, entry in entries.items()},
        {name: entry["results"] for name, entry in entries.items()},
        {
            name: Difference(entry["results"], entry["differing"], entry["ulp"], entry["absolute"])
            for name, entry in entries.items()
            if "differing" in entry
        },
    )


def lost(record: HardwareRecord) -> Iterator[str]:
    """The cases that had the bits of the GPU when the record was made and have others now, or are no more."""
    present = {case.name: case for case in cases()}
    for name, bits in record.gpu.items():
        if name in record.differences:
            continue
        if name not in present:
            yield f"{name}: not in the catalogue any more"
        elif _bits(present[name]) != bits:
            yield f"{name}: other bits than the GPU's"


def _bits(case: Runnable) -> str:
    return digest(case, emulate(case))
