"""What the process of a candidate may take, and what of that is held on this machine."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
VIRTUAL = 4  # times as much as it may use is what it may ask for: tensors may have memory that nothing touches
PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
BUSY, TURNS = 0.02, 10  # seconds of a processor, and turns, from which a thread is awake


@dataclass(frozen=True)
class Limits:
    """start: seconds to import the file. call: seconds of one call, without those in which the emulator runs its kernels.
    memory: bytes of all its processes. processes, threads: how many it may have. scratch: bytes of the folder that it may
    write to. printed: bytes of what it prints that are kept.
    """

    start: float = 120.0
    call: float = 60.0
    memory: int = 8 * GIB
    processes: int = 48
    threads: int = 1024
    scratch: int = GIB
    printed: int = 1 << 16


@dataclass
class Use:
    """What a family of processes has just now."""

    memory: int = 0
    processes: int = 0
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
            found.processes += 1
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


def awake(pid: int, seconds: float, meanwhile: Iterable[object] = ()) -> str:
    """What of a family goes on while nothing is asked of it, looked at for so long: in words, "" for nothing.

    meanwhile: its steps are taken as long as that lasts.
    """
    before, begun = _work(pid), time.monotonic()
    for _ in meanwhile:
        if time.monotonic() >= begun + seconds:
            break
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    seconds = time.monotonic() - begun
    busy = {task: work for task, now in _work(pid).items() if (work := now - before.get(task, ThreadWork())).awake}
    if not busy:
        return ""
    processes = len({task.parts[2] for task in busy})
    used = 1e3 * sum(work.seconds for work in busy.values())
    woken = sum(work.turns for work in busy.values())
    what = f"{len(busy)} threads of {processes} processes"
    return (
        f"{what} went on after it: in {1e3 * seconds:.0f} ms they had {used:.0f} ms of a processor, and {woken} turns"
    )


@dataclass(frozen=True)
class ThreadWork:
    """Of one thread. turns: how often it has given a processor back."""

    seconds: float = 0.0
    turns: int = 0

    def __sub__(self, other: ThreadWork) -> ThreadWork:
        return ThreadWork(self.seconds - other.seconds, self.turns - other.turns)

    @property
    def awake(self) -> bool:
        return self.seconds >= BUSY or self.turns >= TURNS


def _work(pid: int) -> dict[Path, ThreadWork]:
    found = dict[Path, ThreadWork]()
    for folder in family(pid):
        with suppress(OSError):
            for task in (folder / "task").iterdir():
                with suppress(OSError, ValueError, IndexError):
                    fields = (task / "stat").read_text().rpartition(")")[2].split()
                    lines = (task / "status").read_text().splitlines()
                    turns = sum(int(line.split()[1]) for line in lines if "ctxt_switches:" in line)
                    found[task] = ThreadWork((int(fields[11]) + int(fields[12])) / TICKS, turns)
    return found


def family(pid: int) -> Iterator[Path]:
    """The folders of /proc of a process and of all that it has started."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    parent = int(file.read(512).rpartition(b")")[2].split(None, 2)[1])
                parents.setdefault(parent, []).append(int(name))
    found = [pid]
    for one in found:
        yield Path(f"/proc/{one}")
        found += parents.get(one, ())
