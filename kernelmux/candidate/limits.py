"""What the process of a candidate may take, and what of that is held on this machine."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
VIRTUAL = 4  # times as much as it may use is what it may ask for: tensors may have memory that nothing touches
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Limits:
    """start: seconds to import the file. call: seconds of one call, without those in which the emulator runs its kernels.
    memory: bytes of all its processes. processes: how many it may have, threads among them. scratch: bytes of the folder
    that it may write to. printed: bytes of what it prints that are kept.
    """

    start: float = 120.0
    call: float = 60.0
    memory: int = 8 * GIB
    processes: int = 256
    scratch: int = GIB
    printed: int = 1 << 16


@dataclass
class Use:
    """What a family of processes has just now."""

    memory: int = 0
    threads: int = 0


def hold(memory: int) -> None:
    """Called in the process of a candidate, before it is there: what the system holds from now on."""
    for kind, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, VIRTUAL * memory)):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard),) * 2)


def in_use(pid: int) -> Use:
    """Of the processes in the namespace of one, or of its family where it has none of its own."""
    found = Use()
    for folder in family(pid):
        with suppress(OSError, ValueError, IndexError):
            resident, shared = (folder / "statm").read_text().split()[1:3]
            found.memory += (int(resident) - int(shared)) * PAGE
            found.threads += int((folder / "stat").read_text().rpartition(")")[2].split()[17])
    return found


def memory_of_its_own(pid: int) -> int:
    """Bytes of memory that a family has, with what several of them share counted once; slower than `in_use`."""
    found = 0
    for folder in family(pid):
        with suppress(OSError, ValueError, IndexError):
            lines = (folder / "smaps_rollup").read_text().splitlines()
            found += next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))
    return found


def family(pid: int) -> Iterator[Path]:
    """The folders of /proc of a process and of all that it has started."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(stat[1]), []).append(int(name))
    found = [pid]
    for one in found:
        yield Path(f"/proc/{one}")
        found += parents.get(one, ())
