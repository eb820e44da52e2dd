"""The worker's side of the toy suite: what an item does is its work, a list of a verb and its arguments."""

import contextlib
import os
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path


def serve(setup, items, tell):
    """setup: "start", what a process does before it is ready; "began", a file that gets a line for each item."""
    VERBS[os.environ.get("TOY_START") or setup.get("start", "passes")]()
    for work, seconds in items:
        if began := setup.get("began"):
            with open(began, "a", encoding="utf-8") as file:
                file.write(f"{work} {os.getpid()}\n")
        verb, *given = work
        if verb == "returns":
            return
        told = VERBS[verb](*given)
        row = told if isinstance(told, dict) else {"status": "passed"}
        if verb != "tells_nothing":
            tell({**row, "pid": os.getpid(), "seconds": seconds}, lost=verb.startswith("loses"))
        if verb == "tells_twice":
            tell(row)


def passes(seconds=0.0):
    time.sleep(seconds)


def fails(seconds=0.0):
    time.sleep(seconds)
    return {"status": "failed"}


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def killed_once(path):
    """Killed the first time, by a file that is there afterwards."""
    if not os.path.exists(path):
        Path(path).touch()
        killed()


def crashes():
    os.kill(os.getpid(), signal.SIGSEGV)


def crashes_beside_a_fork():
    """Its child has all of its pipes, so that nothing tells of the end but the process itself."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSEGV)


def exits():
    print("a last word", file=sys.stderr, flush=True)
    os._exit(7)


def exits_well():
    os._exit(0)


def raises():
    raise ValueError("no such thing")


def takes_memory():
    """More than the process may have."""
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
    held = [bytearray(8 << 20) for _ in range(100)]
    del held


def meets(folder, name, number):
    """Wait until so many others are there, too."""
    (Path(folder) / name).touch()
    end = time.monotonic() + 10
    while len(os.listdir(folder)) < number and time.monotonic() < end:
        time.sleep(0.005)


def fails_beside(folder, name, number):
    """Fails the first time, once the others are there and what happens beside it has happened."""
    again = (Path(folder) / name).exists()
    meets(folder, name, number)
    if again:
        return {"status": "passed", "again": True}
    time.sleep(0.5)
    return {"status": "failed"}


def fails_first(folder, name, number):
    """Fails the first time as soon as the others are there."""
    again = (Path(folder) / name).exists()
    meets(folder, name, number)
    return {"status": "passed", "again": True} if again else {"status": "failed"}


def loses_late(folder, name, number):
    meets(folder, name, number)
    time.sleep(1.0)
    return {"status": "failed"}


def passes_beside(folder, name, number, seconds=0.5):
    meets(folder, name, number)
    time.sleep(seconds)


def loses(folder=None, name="", number=0):
    if folder:
        meets(folder, name, number)
    return {"status": "failed"}


def killed_beside(folder, name, number):
    """Killed the first time, once the others are there."""
    if not (Path(folder) / name).exists():
        meets(folder, name, number)
        killed()


def jumps():
    """The clock of the machine is set, forth and back."""
    now = time.time
    for hours in (1000, -1000):
        time.time = partial(_shifted, now, 3600 * hours)
        time.sleep(0.2)
    time.time = now


def reads(variable):
    return {"status": "passed", "variable": os.environ.get(variable)}


def starts_a_process():
    """A child that would go on for long; its number is in the row."""
    with contextlib.suppress(OSError):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    return {"status": "passed", "child": child}


VERBS = {
    "passes": passes,
    "fails": fails,
    "killed": killed,
    "killed_once": killed_once,
    "killed_beside": killed_beside,
    "crashes": crashes,
    "crashes_beside_a_fork": crashes_beside_a_fork,
    "aborts": os.abort,
    "exits": exits,
    "exits_well": exits_well,
    "sleeps": lambda: time.sleep(1.5),
    "raises": raises,
    "takes_memory": takes_memory,
    "hangs": lambda: time.sleep(60),
    "loses": loses,
    "loses_late": loses_late,
    "fails_first": fails_first,
    "fails_beside": fails_beside,
    "passes_beside": passes_beside,
    "passes_later": partial(passes_beside, seconds=5.0),
    "jumps": jumps,
    "reads": reads,
    "starts_a_process": starts_a_process,
    "tells_twice": passes,
    "tells_nothing": passes,
}


def _shifted(now, seconds):
    return now() + seconds
