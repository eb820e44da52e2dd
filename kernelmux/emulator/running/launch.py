"""Loads PTX and launches its kernels on CPU tensors."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from kernelmux.emulator import launch_log
from kernelmux.emulator.analysis.flow import Flow
from kernelmux.emulator.analysis.variables import VariableAddresses, variable_segments
from kernelmux.emulator.analysis.wgmma_hazards import checked
from kernelmux.emulator.basic_blocks import BlockTable, current_block_coverage
from kernelmux.emulator.errors import EmulatorError, LaunchRefused, Triple, Unsupported
from kernelmux.emulator.memory.access import ChunkMemory
from kernelmux.emulator.memory.global_memory import GlobalMemory
from kernelmux.emulator.memory.global_races import GlobalWriters, History
from kernelmux.emulator.memory.shared_memory import SharedWindows
from kernelmux.emulator.ptx.parser import Function, Instruction, Parameter, ParsedModule, parse
from kernelmux.emulator.resources import MAX_BLOCK, MAX_GRID, MAX_THREADS, MULTIPROCESSORS, Multiprocessor
from kernelmux.emulator.running.arguments import ArgumentList
from kernelmux.emulator.running.block_orders import chunks, order
from kernelmux.emulator.running.cluster import ClusterMemory
from kernelmux.emulator.running.executor import Program, Run
from kernelmux.emulator.running.lanes import Geometry
from kernelmux.emulator.settings import Deadline, current_checks
from kernelmux.emulator.tracing import watch_hook

CHUNK = 16384  # lanes that run together: large enough to hide Python, small enough for the registers to stay in cache
MAX_CLUSTER = 16  # blocks, compute capability 9.0; more than 8 have to be allowed for a kernel
TARGET = re.compile(r"^\s*\.target\s+(sm_\d+)", re.MULTILINE)
CHUNK_OF_POLLING = 1 << 18  # lanes, when blocks may wait for one another: more than run side by side on a GPU
POLLING = {"acquire", "volatile", "relaxed"}  # modifiers of loads that another block's stores become visible to


def load(ptx: str) -> Module:
    """The module of a PTX text; module variables keep their values from launch to launch, as on a GPU."""
    return _make(ptx)


def load_by(make: Callable[[str], Any]) -> Callable[[str], Any]:
    """From now on `load` gives what `make` makes of a PTX text, in the whole process; returns what did so before.

    For who asks only what would be launched: in place of a module, which is parsed, something that runs nothing.
    """
    global _make
    before, _make = _make, make
    return before


@lru_cache(maxsize=256)
def _module(ptx: str) -> Module:
    return Module(ptx)


_make: Callable[[str], Module] = _module


class Module:
    """A module of PTX. Kernels are analysed at their first use."""

    def __init__(self, ptx: str) -> None:
        self.ptx = ptx
        with collector_paused():
            self.parsed: ParsedModule = parse(ptx)
        self.segments, self.addresses = variable_segments(self.parsed)
        self._kernels: dict[str, EntryKernel] = {}
        self._flows: dict[str, Flow] = {}
        self._block_tables: dict[str, BlockTable] = {}

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the entry points."""
        return tuple(name for name, function in self.parsed.functions.items() if function.entry)

    def kernel(self, name: str) -> EntryKernel:
        """The kernel of this name."""
        if name not in self.kernels:
            raise EmulatorError(
                f"no kernel named {name!r}, the module has {', '.join(self.kernels) or 'none'}", kind="argument"
            )
        if name not in self._kernels:
            self._kernels[name] = EntryKernel(self, self.parsed.functions[name])
        return self._kernels[name]

    @cached_property
    def limits(self) -> Multiprocessor:
        """What a GPU of the PTX's target has for a launch; of a target that is not known, what sm_90 has."""
        found = TARGET.search(self.ptx)
        return MULTIPROCESSORS.get(found[1] if found else "", MULTIPROCESSORS["sm_90"])

    @cached_property
    def functions(self) -> dict[int, str]:
        """Names of the device functions by address."""
        return {self.addresses[name]: name for name, function in self.parsed.functions.items() if not function.entry}

    def flow(self, name: str, kernel: str) -> Flow:
        """The analysed function; unknown instructions surface here."""
        if name not in self._flows:
            try:
                with collector_paused():
                    self._flows[name] = checked(self.parsed.functions[name])
            except Unsupported as error:
                raise self._unsupported(error, kernel) from error
        return self._flows[name]

    def block_table(self, flow: Flow) -> BlockTable:
        """The basic blocks of a function of this module."""
        name = flow.function.name
        if name not in self._block_tables:
            self._block_tables[name] = BlockTable(self.ptx, flow, self.parsed.files)
        return self._block_tables[name]

    def _unsupported(self, error: Unsupported, kernel: str) -> EmulatorError:
        instruction = getattr(error, "instruction_at", None)
        location = instruction.location if instruction else None
        files = self.parsed.files
        return Unsupported(
            error.message,
            kernel=kernel,
            file=files.get(location.file) if location else None,
            line=location.line if location else None,
            instruction=instruction.text if instruction else None,
        )


class EntryKernel:
    """An entry point."""

    def __init__(self, module: Module, function: Function) -> None:
        self.module, self.function, self.name = module, function, function.name
        self.variables = VariableAddresses(module.parsed, function, module.addresses)
        self._programs: dict[tuple[str, bool], Program] = {}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return self.function.parameters

    @property
    def shared_size(self) -> int:
        """Bytes of static shared memory."""
        return self.variables.static_size

    def program(self, name: str, watched: bool = False) -> Program | None:
        """A function compiled for this kernel, None if the module does not define it; watched: see `watch_hook`."""
        if (name, watched) not in self._programs:
            function = self.module.parsed.functions.get(name)
            if function is None:
                return None
            variables = self.variables.of(function)
            flow = self.module.flow(name, self.name)
            try:
                self._programs[name, watched] = Program(flow, variables.resolve, variables.frame_size, watched)
            except Unsupported as error:
                raise self.module._unsupported(error, self.name) from error
        return self._programs[name, watched]

    def function_at(self, address: int) -> Function | None:
        """The device function that a pointer names."""
        name = self.module.functions.get(address)
        return None if name is None else self.module.parsed.functions[name]

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        names: Sequence[str] = (),
        shared: int = 0,
        cluster: Sequence[int] | None = None,
    ) -> None:
        """Runs the kernel.

        args, one per parameter: CPU tensors, None (null), numpy scalars, bytes (structs) or tensor maps.

        shared is the dynamic shared memory in bytes; cluster the blocks of a cluster in x, y and z, for kernels that
        were not compiled for one size. A grid with a dimension of 0 launches nothing. Raises `EmulatorError`.
        """
        grid3, block3 = _triple(grid), _triple(block)
        self._require_sizes(grid3, block3, shared)
        cluster3 = self._cluster(grid3, cluster)
        arguments = ArgumentList(self.name, self.parameters, args, names)
        if 0 in grid3:
            return
        if not launch_log.note(self.module.ptx, self.name, grid3, block3, shared):
            return
        checks, deadline = current_checks(), Deadline(grid3[0] * grid3[1] * grid3[2])
        memory = GlobalMemory()
        for segment in self.module.segments:
            memory.add(segment.again())
        arguments.place(memory)
        parameters = arguments.pack(self.variables.parameter_offsets, self.variables.parameter_size)
        watch = watch_hook.begin(self, grid3, block3, shared, arguments)
        with np.errstate(all="ignore"):
            self._run(grid3, block3, cluster3, memory, parameters, shared, checks, watch, deadline)

    def _run(
        self,
        grid: Triple,
        block: Triple,
        size: Triple,
        memory: GlobalMemory,
        parameters: np.ndarray,
        shared: int,
        checks: str,
        watch: watch_hook.LaunchWatch | None,
        deadline: Deadline,
    ) -> None:
        program = self.program(self.name, watch is not None)
        assert program is not None
        blocks, threads = deadline.blocks, block[0] * block[1] * block[2]
        cluster = size[0] * size[1] * size[2]
        chunk = max(1, (CHUNK_OF_POLLING if self._polls else CHUNK) // (threads * cluster)) * cluster
        memory_kind = ClusterMemory if cluster > 1 else SharedWindows
        waiting = self._polls and blocks > chunk  # GPUs start blocks in order, which those that wait rely on
        numbers = None if waiting else order(blocks, cluster)
        history = History(checks == "full" and self._orders_blocks, numbers)
        coverage = current_block_coverage()
        covered = partial(coverage.of, self.module) if coverage is not None else None
        for first, count in chunks(blocks, chunk, cluster):
            if deadline.passed:
                raise EmulatorError(str(deadline), kind="time limit", kernel=self.name)
            geometry = Geometry(grid, block, first, count, size, numbers)
            window = memory_kind(geometry, self.variables.window(shared), shared, checks, self.variables.gaps)
            access = ChunkMemory(memory, window, parameters, geometry.lanes, self.name, self.module.parsed.files)
            if checks == "full":
                access.writers = GlobalWriters(first, threads, window.shadow, history)
            Run(geometry, access, checks, deadline, self, watch, covered).start(program)
            if watch is not None:
                watch.finish()
            deadline.done += geometry.blocks

    def _cluster(self, grid: Triple, wanted: Sequence[int] | None) -> Triple:
        """Blocks of a cluster in each dimension: as the kernel was compiled for, or as the launch wants."""
        compiled = _triple(self.function.cluster) if self.function.cluster else None
        size = compiled or (1, 1, 1) if wanted is None else _triple(wanted)
        if compiled is not None and size != compiled:
            raise self._error(f"clusters of {size} blocks: the kernel was compiled for exactly {compiled}")
        if min(size) < 1 or size[0] * size[1] * size[2] > MAX_CLUSTER:
            raise self._error(f"clusters of {size} blocks: a cluster has 1 to {MAX_CLUSTER}")
        if any(g % c for g, c in zip(grid, size, strict=True)):
            shape = size if max(size[1:]) > 1 else size[0]
            raise self._error(f"grid {grid} cannot be divided into clusters of {shape} blocks")
        return size

    @cached_property
    def _orders_blocks(self) -> bool:
        """Whether the kernel has anything by which its blocks could wait for one another."""
        return any(_may_order(i) for f in self.module.parsed.functions.values() for i in f.instructions)

    @cached_property
    def _polls(self) -> bool:
        """Whether the kernel reads global memory as one does that waits for another block."""
        instructions = [i for f in self.module.parsed.functions.values() for i in f.instructions if i.name == "ld"]
        return any(i.space in ("global", "generic") and POLLING & set(i.modifiers) for i in instructions)

    def _require_sizes(self, grid: Triple, block: Triple, shared: int) -> None:
        threads = block[0] * block[1] * block[2]
        if any(b < 1 or b > most for b, most in zip(block, MAX_BLOCK, strict=True)) or threads > MAX_THREADS:
            raise self._error(
                f"block {block} is not possible: at most {MAX_THREADS} threads and {MAX_BLOCK} per dimension, none 0"
            )
        if any(g < 0 or g > most for g, most in zip(grid, MAX_GRID, strict=True)):
            raise self._error(f"grid {grid} is not possible: at most {MAX_GRID} blocks per dimension")
        total = self.variables.shared_size(shared)
        most = self.module.limits.shared_per_block
        if shared < 0 or total > most:
            raise self._error(f"{total} bytes of shared memory ({shared} of them dynamic): a block can have {most}")
        required, allowed = self.function.required_threads, self.function.maximum_threads
        if required is not None and block[: len(required)] != required:
            raise self._error(f"block {block}: the kernel was compiled for exactly {required} threads")
        if allowed is not None and threads > np.prod(allowed):
            raise self._error(
                f"block {block} has {threads} threads: the kernel was compiled for at most {int(np.prod(allowed))}"
            )

    def _error(self, message: str) -> EmulatorError:
        return LaunchRefused(message, kind="argument", kernel=self.name)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses garbage collection: parsing makes many objects that stay, and a collection visits all of torch's as well."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _may_order(ins: Instruction) -> bool:
    """Whether an instruction may be part of a hand-over from block to block."""
    if ins.name == "fence":
        return not any(m.startswith(("proxy", "mbarrier")) for m in ins.modifiers)
    return ins.name == "membar" or (ins.name in ("atom", "red", "ld", "st") and _is_strong(ins))


def _is_strong(ins: Instruction) -> bool:
    return ins.space != "shared" and (ins.name in ("atom", "red") or ins.has("acquire") or ins.has("release"))


def _triple(value: int | Sequence[int]) -> Triple:
    values = (int(value),) if isinstance(value, int | np.integer) else tuple(int(v) for v in value)
    x, y, z = (*values, 1, 1, 1)[:3]
    return x, y, z
