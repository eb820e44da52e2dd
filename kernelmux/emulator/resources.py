"""What a compiled kernel costs on a multiprocessor: read from the cubin alone, without a tool, a driver or a GPU.

Registers, stack frame, static shared memory, barriers and code size come from the ELF image; spills only from the log
of `ptxas -v`. `occupancy` says how many blocks fit on one multiprocessor at a time and what keeps the next one out.
Source: CUDA C++ Programming Guide, technical specifications per compute capability; the arithmetic agrees with NVIDIA's
occupancy calculator.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

# Attributes of a kernel in `.nv.info` sections: registers per thread, bytes of stack per thread, named barriers.
_REGISTERS, _FRAME, _BARRIERS = 0x2F, 0x11, 0x4C
_NO_BITS = 8
_INLINE_ATTRIBUTE, _SIZED_ATTRIBUTE = 2, 4
# Since compute capability 9.0 the static shared memory in a cubin contains what the system keeps for itself.
_SYSTEM_SHARED = 1024

MAX_THREADS, MAX_BLOCK, MAX_GRID = 1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535)  # of a launch, on every GPU

_LOG_ENTRY = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?"
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads",
    re.DOTALL,
)


@dataclass(frozen=True)
class Resources:
    """What one kernel needs; bytes and registers are per thread except `shared` (per block) and `code` (in all).

    `spill_stores` and `spill_loads` are bytes of instructions' traffic per thread, None where no log was given.
    """

    registers: int = 0
    stack: int = 0
    shared: int = 0
    barriers: int = 0
    code: int = 0
    spill_stores: int | None = None
    spill_loads: int | None = None


def resources(cubin: bytes, log: str = "") -> dict[str, Resources]:
    """Resources of every kernel in a cubin, by name; `log` is what `ptxas -v` wrote when it made the cubin."""
    sections = {section.name: section for section in _sections(cubin)}
    kernels = [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]
    system = _SYSTEM_SHARED if ".nv.shared.reserved.0" in sections else 0
    per_kernel = _module_attributes(sections)
    nothing = _Section("", 0, b"")
    needs = {
        kernel: Resources(
            registers=per_kernel.get((kernel, _REGISTERS), 0),
            stack=per_kernel.get((kernel, _FRAME), 0),
            shared=max(0, sections.get(".nv.shared." + kernel, nothing).size - system),
            barriers=_inline_attribute(sections.get(".nv.info." + kernel, nothing).data, _BARRIERS),
            code=sections[".text." + kernel].size,
        )
        for kernel in kernels
    }
    return _with_spills(needs, log)


def _with_spills(needs: dict[str, Resources], log: str) -> dict[str, Resources]:
    spills = {m["kernel"]: (int(m["stores"]), int(m["loads"])) for m in _LOG_ENTRY.finditer(log)}
    for kernel in needs.keys() & spills.keys():
        stores, loads = spills[kernel]
        needs[kernel] = replace(needs[kernel], spill_stores=stores, spill_loads=loads)
    return needs


# --- ELF ----------------------------------------------------------------------------------------------------


class _Section(NamedTuple):
    """One section of an ELF image; shared memory has a size without data."""

    name: str
    size: int
    data: bytes


def _sections(cubin: bytes) -> Iterator[_Section]:
    """The sections of a 64-bit little-endian ELF image, in their order."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a cubin: expected a 64-bit little-endian ELF image")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * entry) for i in range(count)]
    for name, kind, _, _, offset, size, *_ in headers:
        data = b"" if kind == _NO_BITS else cubin[offset : offset + size]
        yield _Section(_string(cubin, headers[names][4] + name), size, data)


def _string(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def _symbols(sections: dict[str, _Section]) -> list[str]:
    strings, table = sections[".strtab"].data, sections[".symtab"].data
    return [_string(strings, name) for name, *_ in struct.iter_unpack("<IBBHQQ", table)]


def _attributes(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Format, number, inline value and contents of each attribute of an `.nv.info` section."""
    offset = 0
    while offset < len(data):
        form, number, value = struct.unpack_from("<BBH", data, offset)
        size = value if form == _SIZED_ATTRIBUTE else 0
        yield form, number, value, data[offset + 4 : offset + 4 + size]
        offset += 4 + size


def _module_attributes(sections: dict[str, _Section]) -> dict[tuple[str, int], int]:
    """Values of `.nv.info`, which has the kernels' common attributes as pairs of symbol and value."""
    symbols = _symbols(sections)
    values = {}
    for form, number, _, content in _attributes(sections[".nv.info"].data):
        if form == _SIZED_ATTRIBUTE and len(content) == 8:
            symbol, value = struct.unpack("<II", content)
            values[symbols[symbol], number] = value
    return values


def _inline_attribute(data: bytes, wanted: int) -> int:
    values = (v & 0xFF for form, number, v, _ in _attributes(data) if form == _INLINE_ATTRIBUTE and number == wanted)
    return next(values, 0)


# --- occupancy ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor; sizes in bytes, registers of 32 bits."""

    warps: int
    blocks: int
    shared: int
    shared_per_block: int
    registers: int = 65536
    registers_per_thread: int = 255
    partitions: int = 4
    register_unit: int = 256  # granted per warp
    shared_unit: int = 128
    shared_reserved: int = 1024  # per block, for the system
    threads_per_block: int = 1024
    barriers: int = 64


MULTIPROCESSORS = {
    "sm_75": Multiprocessor(warps=32, blocks=16, shared=64 * 1024, shared_per_block=64 * 1024, shared_reserved=0),
    "sm_80": Multiprocessor(warps=64, blocks=32, shared=164 * 1024, shared_per_block=163 * 1024),
    "sm_86": Multiprocessor(warps=48, blocks=16, shared=100 * 1024, shared_per_block=99 * 1024),
    "sm_87": Multiprocessor(warps=48, blocks=16, shared=164 * 1024, shared_per_block=163 * 1024),
    "sm_89": Multiprocessor(warps=48, blocks=24, shared=100 * 1024, shared_per_block=99 * 1024),
    "sm_90": Multiprocessor(warps=64, blocks=32, shared=228 * 1024, shared_per_block=227 * 1024),
    "sm_100": Multiprocessor(warps=64, blocks=32, shared=228 * 1024, shared_per_block=227 * 1024),
    "sm_103": Multiprocessor(warps=64, blocks=32, shared=228 * 1024, shared_per_block=227 * 1024),
    "sm_110": Multiprocessor(warps=48, blocks=24, shared=228 * 1024, shared_per_block=227 * 1024),
    "sm_120": Multiprocessor(warps=48, blocks=24, shared=100 * 1024, shared_per_block=99 * 1024),
    "sm_121": Multiprocessor(warps=48, blocks=24, shared=100 * 1024, shared_per_block=99 * 1024),
}


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps of one kernel that are on a multiprocessor at a time; `limited_by` names what keeps more out."""

    blocks: int
    warps: int
    fraction: float
    limited_by: str


def multiprocessor(arch: str) -> Multiprocessor:
    """Limits of an architecture, `sm_90` and `sm_90a` alike."""
    key = arch.rstrip("af")
    if key not in MULTIPROCESSORS:
        raise ValueError(f"no limits known for {arch!r}; known: {', '.join(MULTIPROCESSORS)}")
    return MULTIPROCESSORS[key]


def occupancy(need: Resources, arch: str, threads: int, dynamic_shared: int = 0) -> Occupancy:
    """How many blocks of `threads` threads fit on one multiprocessor of `arch` at a time.

    `dynamic_shared` is the shared memory given at launch, in bytes. Zero blocks means that a launch would fail. All
    of the memory that can be shared memory is taken to be, as drivers do for kernels that use much of it.
    """
    limits = multiprocessor(arch)
    warps_per_block = -(-threads // 32)
    fits = {
        "blocks": limits.blocks,
        "threads": limits.warps // warps_per_block if threads <= limits.threads_per_block else 0,
        "registers": _blocks_by_registers(need.registers, warps_per_block, limits),
        "shared memory": _blocks_by_shared(need.shared + dynamic_shared, limits),
        "barriers": limits.barriers // need.barriers if need.barriers else limits.blocks,
    }
    limited_by = min(fits, key=lambda factor: fits[factor])
    warps = fits[limited_by] * warps_per_block
    return Occupancy(fits[limited_by], warps, warps / limits.warps, limited_by)


def _blocks_by_registers(registers: int, warps_per_block: int, limits: Multiprocessor) -> int:
    """Registers are granted per warp, in units, out of the file of the partition that runs the warp."""
    per_warp = _round_up(registers * 32, limits.register_unit)
    per_block = per_warp * _round_up(warps_per_block, limits.partitions)
    if registers > limits.registers_per_thread or per_block > limits.registers:
        return 0
    if per_warp == 0:
        return limits.blocks
    return limits.registers // limits.partitions // per_warp * limits.partitions // warps_per_block


def _blocks_by_shared(shared: int, limits: Multiprocessor) -> int:
    if shared > limits.shared_per_block:
        return 0
    each = _round_up(shared + limits.shared_reserved, limits.shared_unit)
    return limits.shared // each if each else limits.blocks


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
