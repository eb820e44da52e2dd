"""What each kernel needs of a multiprocessor, known without a GPU: registers, spills, shared memory, occupancy.

The multiprocessor is that of the card that the emulator stands for. A variant is called with its largest workload on CPU
tensors that are never written; the emulator notes what would have been launched, and reads the machine code of every
kernel. Nothing is timed meanwhile: the variants share all CPUs.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from kernelmux import emulator
from kernelmux.emulator import nvrtc
from kernelmux.emulator.launch_log import Launch
from kernelmux.emulator.resources import occupancy, resources
from kernelmux.perf.planning import brief, plan
from kernelmux.perf.record.run_file import KernelNeed
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.thresholds import POOR, SPILLED
from kernelmux.perf.wording.columns import Columns
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import OpSpec
from kernelmux.registry.util import cards
from kernelmux.runner.machine import available_cores

PROCESSES = 8  # at most: the compiler uses gigabytes for some sources


@dataclass(frozen=True)
class InspectedVariant:
    """A variant to look at; broken: why its module cannot be imported."""

    op: str
    backend: str
    variant: str
    broken: str = ""

    @property
    def label(self) -> str:
        return f"{self.backend}/{self.variant}"


def candidates(options: PerfOptions) -> list[InspectedVariant]:
    """Every variant of the backends that have kernels."""
    return [t for op in options.ops or catalog.usable() for t in _of_op(op, options)]


def _of_op(op: str, options: PerfOptions) -> Iterator[InspectedVariant]:
    wanted = [registered.split(label) for label in options.backends if label != "all"]
    for name in registered.backend_names():
        if not plan.emulates(name) or registered.unavailable(name, torch.device("cpu")):
            continue
        chosen = [v for b, v in wanted if b == name] if wanted else [None]
        try:
            ladder = registered.variants(name, op)
        except Exception as error:
            if chosen:
                yield InspectedVariant(op, name, "", f"{type(error).__name__}: {error}")
            continue
        yield from (InspectedVariant(op, name, variant) for variant in ladder if None in chosen or variant in chosen)


def defaults(options: PerfOptions) -> list[InspectedVariant]:
    """Of each operator and backend the variant that a plain call runs on the largest workload."""
    found: list[InspectedVariant] = []
    for op in brief.order(options.ops or catalog.usable()):
        ladders: dict[str, InspectedVariant] = {}
        for candidate in _of_op(op, options):
            if candidate.broken or not _refused(candidate):
                ladders[candidate.backend] = candidate
        found += ladders.values()
    return found


def _refused(candidate: InspectedVariant) -> list[str]:
    """Why a variant cannot run the largest workload of its operator."""
    spec = catalog.spec(candidate.op)
    case = plan.large(spec)
    call = spec.hypothetical(
        case, brief.dtype_of(case.dtypes or spec.dtypes), torch.device("cpu"), cards.emulated().capability
    )
    return registered.variants(candidate.backend, candidate.op)[candidate.variant].reasons(call)


def until(console: Console, options: PerfOptions, end: float) -> tuple[tuple[KernelNeed, ...], tuple[str, ...]]:
    """What the kernels of the default variants need, as far as there is time to compile; and what is left out."""
    todo, kernels, left = defaults(options), list[KernelNeed](), list[str]()
    with console.status(f"compiling {len(todo)} variants"), _side_by_side(todo, options) as found:
        for candidate, future in zip(todo, found, strict=True):
            wait([future], max(0.0, end - time.monotonic()))
            if not future.done() or (_killed(future) and time.monotonic() >= end):
                left.append(f"{candidate.op} {candidate.label}")
            else:
                kernels += _result(candidate, future, options)
        if left:
            for child in multiprocessing.active_children():  # a compiler may go on for a minute
                child.terminate()
    return tuple(kernels), tuple(left)


def command(console: Console, options: PerfOptions) -> tuple[KernelNeed, ...]:
    """Compile, print and return what every kernel needs."""
    kernels: list[KernelNeed] = []
    todo = candidates(options)
    if not console.is_terminal:
        console.print(f"compiling {len(todo)} variants for what they need of a GPU", soft_wrap=True)
    with (
        _side_by_side(todo, options) as found,
        Progress(console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("compiling", total=len(todo))
        for candidate, future in zip(todo, found, strict=True):
            kernels += _result(candidate, future, options)
            bar.update(task, advance=1, description=f"compiled {candidate.op} {candidate.label}")
    show(console, kernels)
    return tuple(kernels)


@contextmanager
def _side_by_side(todo: list[InspectedVariant], options: PerfOptions) -> Iterator[list[Future[list[KernelNeed]]]]:
    """The `needs` of each, in copies of this process, which have imported everything; leaving drops what is not begun."""
    processes = max(1, min(PROCESSES, available_cores(), len(todo)))
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _begin)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the children only compile
            futures = [pool.submit(needs, candidate, options) for candidate in todo]
        yield futures
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """A child: torch's threads are in its parent, and what that has made stays."""
    torch.set_num_threads(1)
    gc.freeze()


def _result(candidate: InspectedVariant, future: Future[list[KernelNeed]], options: PerfOptions) -> list[KernelNeed]:
    """What became of a variant. Where a compiler killed a process, all that was left ends: each is then compiled alone."""
    if not _killed(future):
        return future.result()
    with _side_by_side([candidate], options) as (alone,):
        if not _killed(alone):
            return alone.result()
    return [KernelNeed(candidate.op, candidate.label, "", "", error="a compiler killed its process")]


def _killed(future: Future[list[KernelNeed]]) -> bool:
    return isinstance(future.exception(), BrokenProcessPool)


def needs(candidate: InspectedVariant, options: PerfOptions) -> list[KernelNeed]:
    """What the kernels of a variant need on its largest workload; nothing if it cannot run any."""
    if candidate.broken:
        return [KernelNeed(candidate.op, candidate.backend, "", "", error=candidate.broken)]
    for case, dtype in work(catalog.spec(candidate.op), options):
        common = (candidate.op, candidate.label, case.text, dtypes.SHORT[dtype])
        try:
            with nvrtc.with_machine_code():
                found = launches(candidate, case, dtype)
            if found is not None:
                return [KernelNeed(*common, **_examined(launch)) for launch in found]
        except Exception as error:
            return [KernelNeed(*common, error=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")]
    return []


def launches(candidate: InspectedVariant, case: Case, dtype: torch.dtype) -> list[Launch] | None:
    """What a variant launches for a call, each kernel once and none of them run; None if it cannot run the call."""
    spec = catalog.spec(candidate.op)
    implementation = registered.variants(candidate.backend, candidate.op)[candidate.variant]
    values: dict[str, Any] = {**spec.untouched(case, dtype), **case.scalars}
    call = spec.bind(**values, capability=cards.emulated().capability)
    if implementation.reasons(call):
        return None
    emulation = registered.backend(candidate.backend).emulation
    with emulator.recorder(run=False) as launched, warnings.catch_warnings(action="ignore"), emulation():
        implementation.fn(*call.arguments.values())
    return _different(launched)


def work(spec: OpSpec, options: PerfOptions) -> Iterator[tuple[Case, torch.dtype]]:
    """Workloads: the largest workload first, in the usual dtypes; what a variant cannot run is passed over."""
    ordered = sorted(spec.workloads, key=lambda c: c != plan.large(spec))
    wanted = [dtypes.parse(name) for name in options.dtypes if name != "all"] or [*plan.USUAL]
    for case in ordered:
        for dtype in wanted:
            if dtype in spec.dtypes and (case.dtypes is None or dtype in case.dtypes):
                yield case, dtype


def _different(launches: list[Launch]) -> list[Launch]:
    """One launch per kernel and code: that with the most shared memory."""
    largest: dict[object, Launch] = {}
    for launch in launches:
        key = (launch.kernel, launch.recipe.key if launch.recipe else None)
        if key not in largest or largest[key].shared < launch.shared:
            largest[key] = launch
    return list(largest.values())


def _examined(launch: Launch) -> dict[str, Any]:
    if launch.recipe is None:
        raise LookupError(f"{launch.kernel}: launched, but it is not known how it was compiled")
    arch = cards.emulated().arch
    compiled = launch.recipe.compile(arch)
    need = resources(compiled.image, compiled.log)[launch.kernel]
    dynamic = launch.shared if compiled.shared is None else compiled.shared
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    fit = occupancy(need, arch, threads, dynamic)
    return {
        "kernel": launch.kernel,
        "registers": need.registers,
        "spills": (need.spill_stores or 0) + (need.spill_loads or 0),
        "shared": need.shared,
        "dynamic": dynamic,
        "threads": threads,
        "blocks": fit.blocks,
        "occupancy": fit.fraction,
        "limited_by": fit.limited_by,
    }


def show(console: Console, kernels: list[KernelNeed]) -> None:
    """Print the table."""
    head = f"kernels as compiled for {cards.emulated().arch}, each for its largest workload"
    title = f"{head}; registers and spilled bytes are per thread"
    rows: list[tuple[list[Text], str | None]] = []
    last = ""
    for need in kernels:
        name = f"  {need.op} {need.label}{'' if need.dtype == 'bf16' else f' {need.dtype}'}"
        if not need.error:
            cells = ("" if name == last else name, *_cells(need))
            rows.append(([Text(cell) for cell in cells], "yellow" if _lacks(need) else None))
        last = name
    if kernels:
        console.print(COLUMNS.table(console, rows, title))
    for need in kernels:
        for text in _lacks(need):
            console.print(f"-> {need.op} {need.label} {need.kernel}: {text}", markup=False, soft_wrap=True)
        if need.error:
            console.print(f"FAILED {need.op} {need.label}: {need.error}", style="red", markup=False, soft_wrap=True)


def _lacks(need: KernelNeed) -> list[str]:
    """What a kernel has too little of."""
    if need.error:
        return []
    lacks = []
    if SPILLED.verdict(need.spills) == POOR:
        lacks.append(
            f"spills {need.spills} bytes per thread to local memory: smaller tiles, or fewer threads in a block"
        )
    if not need.blocks:
        lacks.append(f"no block of it fits on a multiprocessor ({need.limited_by})")
    return lacks


COLUMNS = Columns(
    ("", "kernel", "regs", "spills", "shared", "threads", "blocks/SM", "warps", "limited by"),
    ("", "kernel", "limited by"),
    ("limited by", "blocks/SM", "threads", "kernel"),
)


def _cells(need: KernelNeed) -> list[str]:
    kernel = need.kernel.removeprefix(f"{need.op}_").removesuffix("_kernel")
    numbers = (need.registers, need.spills, need.shared + need.dynamic, need.threads, need.blocks)
    return [kernel, *map(str, numbers), f"{need.occupancy:.0%}", need.limited_by]
