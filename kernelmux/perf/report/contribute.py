"""A user's record as one file for a pull request, and what a record that ships has to be: whole, possible, no noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from kernelmux.perf.record import history
from kernelmux.perf.record.history import GpuRecord
from kernelmux.perf.record.run_file import Results, read, text
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.machine import MeasuringMachine, found_with
from kernelmux.perf.rows.roofline import ABOVE, NOISY
from kernelmux.perf.rows.row_result import Timed
from kernelmux.perf.wording.noise import unstable
from kernelmux.registry import elsewhere
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card

CLOCK = 1.25  # boards may run at higher clocks than those that peak rates are given for


def export(path: Path) -> tuple[Results, list[str]]:
    """Write the user's record of the GPU at hand, or of the only one on record: rows of our operators whose source has not
    changed since; the record, and its problems, with which nothing is written. ArgumentError for no or several records.
    """
    output_files.writable(path, "--export")
    known = _chosen(history.of_user())
    rows = tuple(row for row in known.rows if not row.stale and not elsewhere.whose(row.op, row.variant))
    found = replace(known.results, rows=rows)
    wrong = list(problems(found))
    if not wrong:
        output_files.write(path, text(history.shipped(found)))
    return found, wrong


def _chosen(known: tuple[GpuRecord, ...]) -> GpuRecord:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    mine = [record for record in known if record.gpu == name or not name]
    if len(mine) == 1:
        return mine[0]
    what, there = f"one record{f' of {name}' if name else ''}", ", ".join(record.gpu for record in known) or "none"
    raise ArgumentError(f"--export: expected {what} in {history.folder_of_user()}, got: {there}")


def check(path: Path) -> tuple[Results, list[str]]:
    """The record in a file, and its problems; ArgumentError for a file of another form."""
    found = read(path)
    return found, list(problems(found))


def problems(record: Results) -> Iterator[str]:
    """Why a record cannot ship, a line each; nothing for one that can."""
    machine = record.machine
    lacks = {"machine": machine.kind == "cuda", "name": machine.name != "unknown", "capability": machine.capability}
    lacks |= {"processors": machine.processors, "packages": found_with(machine), "ceilings": record.ceilings}
    yield from (f"the record has no {name} of a GPU" for name, there in lacks.items() if not there)
    if not record.timed:
        yield "the record has no rows with a time"
    if len({row.key for row in record.timed}) < len(record.timed):
        yield "the record has several rows of one variant and workload"
    yield from (f"{row.name}: noisy: {told}" for row in record.timed if (told := _noisy(row)))
    if machine.capability and machine.processors:
        yield from _impossible(record, machine)


def _noisy(row: Timed) -> str:
    """Why the samples of a row are no time, "" if they are: by the limits that perf itself has for a run."""
    if row.spread > NOISY:
        return f"its samples spread by {row.spread:.0%}, more than {NOISY:.0%}"
    if row.second and unstable(row, row.second):
        return f"its two timings lie {row.second.apart:.1%} apart, {row.median_us:.1f} and {row.second.again_us:.1f} us"
    return ""


def _impossible(record: Results, machine: MeasuringMachine) -> Iterator[str]:
    """What is faster than the datasheet of the card allows."""
    major, minor = map(int, machine.capability.split("."))
    if (card := cards.by_device_name(machine.name, (major, minor))) is None:
        yield f"{machine.name}, sm_{major}{minor}: expected a card of registry/util/cards.toml: add it, with its source"
        return
    card = replace(card, l2=machine.l2 or card.l2)
    if record.ceilings and (most := max(record.ceilings.copy, record.ceilings.read)) > ABOVE * card.bandwidth:
        yield f"ceilings: {most / 1e9:.0f} GB/s of memory, where {card.title} has {card.bandwidth / 1e9:.0f}"
    for row in record.timed:
        if row.median_us < (least := _least_us(row, card)):
            yield f"{row.name}: {row.median_us:.2f} us, where the peaks of {card.title} allow {least:.2f} us at least"


def _least_us(row: Timed, card: Card) -> float:
    """The least time that a card's peaks allow. Writes up to the size of the L2 cache may be in it when a call ends."""
    moved = 0.0 if row.link == "host" else max(row.bytes - card.l2, 0.0) / (ABOVE * card.bandwidth)
    return 1e6 * max(moved, row.flops / (CLOCK * card.rates.get(row.unit, card.rates["fp32"])))
