"""A cluster of several nodes on this machine, in a network of its own that reaches nothing else: for trials and tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ADDRESS, PORT = "127.0.0.1", 6399
STORE = 100_000_000  # bytes of a node's object store, the least that Ray takes; nothing of ours lies there
INSIDE = "IN_A_NETWORK_OF_ITS_OWN"
NAMESPACE = ("unshare", "-Urnpf", "--mount-proc", "bash", "-c", 'ip link set lo up && exec "$@"', "bash")


def possible() -> str:
    """ "", or why a network of its own cannot be had here."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "needs unshare (util-linux) and ip (iproute2)"
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode and tried.stderr.strip() else ""


def inside(command: Sequence[str]) -> list[str]:
    """The command line that runs a command in a network of its own."""
    return [*NAMESPACE, "env", f"{INSIDE}=1", *command]


@dataclass
class LocalCluster:
    """Nodes that `ray start` has started, each with so many declared cores and a kind of card, "" for none."""

    slots: int
    cards: Sequence[str]
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="kmx")))  # short, as paths of sockets are
    started: int = 0

    @property
    def address(self) -> str:
        return f"{ADDRESS}:{PORT}"

    def __enter__(self) -> LocalCluster:
        if not os.environ.get(INSIDE):
            raise RuntimeError("a cluster is started in a network of its own: see `inside`")
        for card in self.cards:
            self.add(card)
        return self

    def __exit__(self, *details: object) -> None:
        for number in range(self.started):
            self.kill(number)
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, card: str = "") -> None:
        """Start one more node; the first is the head."""
        own = self.folder / str(self.started)
        head = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        where = [f"--address={self.address}"] if self.started else head
        command = [str(Path(sys.executable).with_name("ray")), "start", *where, f"--node-ip-address={ADDRESS}"]
        command += [f"--num-cpus={self.slots}", f"--object-store-memory={STORE}", f"--temp-dir={own}"]
        if card:
            command += ["--num-gpus=1", "--resources", f'{{"accelerator_type:{card}": 1}}']
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
        if done.returncode:
            raise RuntimeError(f"ray start: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        self.started += 1

    def kill(self, number: int) -> None:
        """End a node at once, with all that runs there."""
        own = f"{self.folder / str(number)}"
        end = time.monotonic() + 10
        while time.monotonic() < end and (found := list(_processes(own))):
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)


def _processes(word: str) -> Iterator[int]:
    """The processes whose command line has a word in it as a path, and all that they have started."""
    told, parents = set(), {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (path / "cmdline").read_bytes()
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if f"{word}/".encode() in line or f"{word}\0".encode() in line:
                told.add(int(path.name))
    for process in parents:
        above = process
        while above and above not in told:
            above = parents.get(above, 0)
        if above:
            yield process
