"""What runs in a worker process. It imports nothing of ours but what the suite names, for execnet sends it as text.

As a program it is what the process begins with, before execnet's own code: it leaves its terminal's session, so that
Ctrl-C is the driver's alone, and on Linux it ends with the process that started it, however early that goes.
What it tells: ["ready", facts], ["began", null] and ["row", [row, lost]] for each item.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import runpy
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SOURCES = (".py", ".cu", ".cuh", ".toml")
PARENT_DEATH_SIGNAL = 1  # of Linux's prctl
WITHOUT = "PYTEST_XDIST_"  # variables of a pytest-xdist that the driver may be a worker of


@functools.cache
def version() -> str:
    """A hash of the sources of kernelmux as they were when this process first asked; "" where there are none."""
    spec = importlib.util.find_spec("kernelmux")
    return version_of((spec and spec.submodule_search_locations) or ())


def version_of(folders: Iterable[str | Path]) -> str:
    """A hash of the sources in the folders of a package; "" without folders."""
    made, tops = hashlib.sha256(), list(folders)
    for top in tops:
        for path in sorted(p for p in Path(top).rglob("*") if p.suffix in SOURCES and p.is_file()):
            if "tests" not in (name := path.relative_to(top)).parts:
                made.update(f"{name}\0".encode() + path.read_bytes())
    return made.hexdigest()[:16] if tops else ""


def function(place: str) -> Any:
    """What "package.module:function" or "folder/file.py:function" names."""
    module, _, name = place.rpartition(":")
    if module.endswith(".py"):
        return runpy.run_path(module, run_name=f"{Path(module).stem}_served")[name]
    return getattr(importlib.import_module(module), name)


def main(channel: Any) -> None:
    """Serve items until the channel ends. The first message says what, where, and with which variables."""
    told = json.loads(channel.receive())
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable(os.fdopen(log, "w", closefd=False), all_threads=False)
    for name in [name for name in os.environ if name.startswith(WITHOUT)]:
        del os.environ[name]
    os.environ.update(told["environment"])
    sys.path[:] = told["path"]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    began = time.perf_counter()
    serve = function(told["serve"])
    open_item = False  # whether one was given whose row is not told

    def items() -> Iterator[list[Any]]:
        nonlocal open_item
        facts = {"pid": os.getpid(), "host": platform.node(), "python": platform.python_version(), "version": version()}
        channel.send(json.dumps(["ready", {**facts, "imports": time.perf_counter() - began}]))
        for item in channel:
            open_item = True
            channel.send(json.dumps(["began", None]))
            yield json.loads(item)
            if open_item:
                raise RuntimeError(f"{told['serve']} asked for another item before it told a row of this one")

    def tell(row: Any, lost: bool = False) -> None:
        nonlocal open_item
        if not open_item:
            raise RuntimeError(f"{told['serve']} told a row of no item")
        open_item = False
        channel.send(json.dumps(["row", [row, lost]]))

    serve(told["setup"], items(), tell)


if __name__ == "__channelexec__":
    main(channel)  # type: ignore[name-defined] # noqa: F821 - execnet puts it there
elif __name__ == "__main__":  # worker.py PARENT ... -c CODE, as execnet writes it
    del sys.path[0]  # this folder, which is none of imports
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != int(sys.argv[1]):  # it had ended before
            os._exit(0)
    exec(sys.argv[-1], {"__name__": "__main__"})
