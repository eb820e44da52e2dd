"""What runs in the process of a candidate: its module is imported, its function called on what lies in shared memory.

    python -m kernelmux.candidate.serve DESCRIPTOR [wait]     # wait: before its candidate is known

It knows no operator. Nothing here protects a verdict: a candidate may replace all of it, and reaches its own memory alone.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import linecache
import mmap
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelmux.candidate import claims, condition_calls, global_state, launches, limits, memory
from kernelmux.candidate.allocations import Guard, Virtual
from kernelmux.candidate.channel import Channel, ChannelClosed
from kernelmux.candidate.gpu import kernels, order, timed_calls
from kernelmux.candidate.gpu.shared_memory import GpuRegion
from kernelmux.candidate.listener import Listener
from kernelmux.registry.backend import tamper_guard
from kernelmux.registry.backend.description import Implementation

MODULE = "kernelmux_candidate"
SLOW = 1.0  # seconds of calls in a row from which a sign of life is given: each has a limit of its own
FRAMES = 3  # places of an exception that are told
UNUSED = 1 << 30  # bytes of a GPU that torch may keep for later: others use it as well


def main(descriptor: int, waits: bool) -> None:
    """Serve until the other side goes."""
    faulthandler.enable(all_threads=False)
    channel = Channel(socket.socket(fileno=descriptor))
    with Listener(), Guard():  # torch imports for a second at the first one: before the time of a call runs
        torch.zeros(1)
    global_state.snapshot()
    if waits:
        launches.prepare()
    try:
        channel.send({"ready": True})
        Server(channel).run()
    except ChannelClosed:
        pass


class Server:
    """One candidate. regions: what the suite shares, by number; held: results that it still has, by number."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.regions: dict[int, memory.Region] = {}
        self.on_gpu: dict[int, GpuRegion] = {}
        self.held: dict[int, torch.UntypedStorage] = {}
        self.results = 0
        self.source: ModuleType | None = None
        self.function: Callable[..., Any] = lambda: None
        self.requires: tuple[Any, ...] = ()
        self.path = Path()
        self.seed: int | None = None
        self.timed: timed_calls.ServedCalls | None = None

    def run(self) -> None:
        while True:
            message, files = self.channel.receive()
            nonce = message["nonce"]
            try:
                reply, sent = getattr(self, f"do_{message['do']}")(message, files)
            except (Exception, SystemExit) as error:
                reply, sent = {"raised": raised(error, self.path)}, []
            if message["do"] == "calls":  # those that are timed keep their memory
                _give_back()
            self.channel.send({**reply, "nonce": nonce}, [r.file for r in sent])
            for one in sent:
                one.close()

    # --- what may be asked ---------------------------------------------------------------------------------

    def do_load(
        self, message: dict[str, Any], files: list[int]
    ) -> tuple[dict[str, Any], list[memory.Region | GpuRegion]]:
        """Import the file; tell what lies under the name."""
        self.path = Path(message["path"])
        if message["text"] is not None:
            self.path = Path(tempfile.mkdtemp()) / self.path.name
            self.path.write_text(message["text"], encoding="utf-8")
        limits.hold(message["memory"])
        if message["device"] == "cpu":
            launches.emulate(self.channel, self.regions)
        if "module" in message:
            self.source, of = importlib.import_module(message["module"]), claims.of_variant
        else:
            self.source, of = imported(self.path), claims.of
        tamper_guard.watch()
        told, found = of(self.source, message["name"])
        if isinstance(found, Implementation):
            self.function, self.requires = found.fn, found.requires
        elif callable(found):
            self.function = found
        return {"claims": told}, []

    def do_condition(
        self, message: dict[str, Any], files: list[int]
    ) -> tuple[dict[str, Any], list[memory.Region | GpuRegion]]:
        """Whether a call meets a condition that is no data."""
        return {"reason": self.requires[message["index"]].check(condition_calls.ToldCall(message["call"]))}, []

    def do_declare(
        self, message: dict[str, Any], files: list[int]
    ) -> tuple[dict[str, Any], list[memory.Region | GpuRegion]]:
        """Import a module of a package, and tell what it declares: a backend, or variants of an operator."""
        self.path = Path(message["path"])
        limits.hold(message["memory"])
        source = importlib.import_module(message["module"])
        found = claims.of_backend(source, message["device"]) if message["backend"] else claims.of_module(source)
        return {"claims": found}, []

    def do_calls(
        self, message: dict[str, Any], files: list[int]
    ) -> tuple[dict[str, Any], list[memory.Region | GpuRegion]]:
        """Call the function as often as asked; the results lie in regions of ours."""
        self._take(message, files)
        used = message["storages"]
        storages = [self._storage(number) for number in used]
        each = [[self._value(one, storages) for one in arguments] for arguments in message["calls"]]
        changed, patched, watch = list[str](), list[str](), Guard()
        with ExitStack() as stack:
            self._surround(message, stack)
            before = global_state.snapshot() if message["surroundings"] is not None else {}
            heard = stack.enter_context(Listener()) if message["listen"] else None
            if message["memory"]:
                stack.enter_context(watch if message["memory"] == "guarded" else Virtual())
            seen = stack.enter_context(kernels.Seen()) if message["listen"] and message["device"] != "cpu" else None
            results = self._results(each, message)
            if before:
                changed = global_state.differences(before, global_state.snapshot())
            if before or heard:
                patched = tamper_guard.patched()
        if message["device"] != "cpu":
            torch.cuda.synchronize()
        told, sent = self._answer(results, storages, [made.view for made in watch.memory], message["device"])
        operators, names = sorted(heard.operators) if heard else [], seen.names if seen else {}
        return {**told, "changed": changed, "patched": patched, "operators": operators, "kernels": names}, sent

    def do_prepare(
        self, message: dict[str, Any], files: list[int]
    ) -> tuple[dict[str, Any], list[memory.Region | GpuRegion]]:
        """Take the memory of calls that are timed."""
        self.timed = None  # the memory of those before
        self.timed = timed_calls.ServedCalls(message, files[0], self.function)
        return {}, []

    def do_run(
        self, message: dict[str, Any], files: list[int]
    ) -> tuple[dict[str, Any], list[memory.Region | GpuRegion]]:
        """Make some of the calls that are timed; the other side has the time."""
        if self.timed is None:
            raise RuntimeError("no calls were prepared")
        return {"claim": self.timed.run(message["count"])}, []

    def _results(self, each: list[list[Any]], message: dict[str, Any]) -> list[Any]:
        if message["order"]:
            return order.results(self.function, each, message["order"])
        if message["threads"]:
            return self._in_threads(each, torch.device(message["device"]))
        return list(self._in_a_row(each))

    def _in_a_row(self, each: list[list[Any]]) -> Iterator[Any]:
        """The results of calls one after another; of slow ones it is said that they get on."""
        told = time.monotonic()
        for values in each:
            yield self.function(*values)
            if len(each) > 1 and time.monotonic() - told > SLOW:
                self.channel.send({"further": True})
                told = time.monotonic()

    def _in_threads(self, each: list[list[Any]], device: torch.device) -> list[Any]:
        """The results of calls that begin at once, each in a thread of its own, which has the context of the GPU."""
        start, grad = threading.Barrier(len(each)), torch.is_grad_enabled()

        def run(values: list[Any]) -> Any:
            if device.type == "cuda":
                torch.cuda.mem_get_info(device)
            with torch.set_grad_enabled(grad):
                start.wait()
                return self.function(*values)

        with ThreadPoolExecutor(len(each)) as pool:
            return list(pool.map(run, each))

    # --- tensors -------------------------------------------------------------------------------------------

    def _take(self, message: dict[str, Any], files: list[int]) -> None:
        """New regions, and what is no longer needed."""
        for number in message["gone"]:
            if region := self.regions.pop(number, None) or self.on_gpu.pop(number, None):
                region.close()
        device = torch.device(message["device"])
        for (number, size, kind), file in zip(message["new"], files, strict=True):
            if kind == GpuRegion.kind:
                self.on_gpu[number] = GpuRegion(size, device, file)
            else:
                self.regions[number] = memory.Region(file, size)
        for number in message["released"]:
            self.held.pop(number, None)

    def _storage(self, number: int) -> torch.UntypedStorage:
        """The memory of an input, at the same address in every call."""
        if number in self.on_gpu:
            return self.on_gpu[number].storage()
        return memory.storage_of(self.regions[number].bytes)

    def _value(self, told: dict[str, Any], storages: list[torch.UntypedStorage]) -> Any:
        if "tensor" not in told:
            return told["value"]
        made = memory.tensor(storages[told["tensor"]], told)
        return made.pin_memory() if told.get("pinned") else made

    def _answer(
        self, results: list[Any], inputs: list[torch.UntypedStorage], allocated: list[torch.Tensor], device: str
    ) -> tuple[dict[str, Any], list[memory.Region | GpuRegion]]:
        """What was returned, and allocated on the way, as JSON, and the regions with its bytes."""
        places = {_place(storage): {"input": i} for i, storage in enumerate(inputs)}
        memories, parts, end = list[dict[str, Any]](), list[tuple[int, torch.UntypedStorage]](), 0
        known = {_place(storage): number for number, storage in self.held.items()}

        def place(x: torch.Tensor) -> int:
            nonlocal end
            storage = x.untyped_storage()
            key = _place(storage)
            if key in places and storage.nbytes():
                told = places[key]
            else:
                if key not in known or not storage.nbytes():
                    self.results += 1
                    known[key] = self.results
                    self.held[self.results] = storage
                parts.append((end, storage))
                told = {"output": known[key], "bytes": storage.nbytes(), "begin": end}
                end += -(-storage.nbytes() // mmap.PAGESIZE) * mmap.PAGESIZE
                if storage.nbytes():
                    places[key] = told
            memories.append(told)
            return len(memories) - 1

        def tell(value: Any) -> dict[str, Any]:
            if isinstance(value, tuple | list):
                return {type(value).__name__ if type(value) in (tuple, list) else "tuple": [tell(v) for v in value]}
            if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
                kind = {"parameter": True} if type(value) is torch.nn.Parameter else {}
                value = value.detach()  # its memory is what counts: a lazy sign is not resolved
                return {"tensor": place(value), "device": value.device.type, **memory.described(value), **kind}
            return {"other": f"{type(value).__module__}.{type(value).__qualname__}"[:200]}

        told = {"results": [tell(one) for one in results], "allocated": [tell(x) for x in allocated]}
        made = self._filled(parts, end, device)
        return {**told, "memories": memories, "bytes": end}, [made]

    def _filled(
        self, parts: list[tuple[int, torch.UntypedStorage]], size: int, device: str
    ) -> memory.Region | GpuRegion:
        """A region with what the memories hold, each from its place on."""
        if device == "cpu":
            made = memory.region(size)
            for begin, storage in parts:
                memory.fill(made.bytes[begin : begin + storage.nbytes()], memory.held(storage), fresh=True)
            return made
        shared = GpuRegion(size, torch.device(device))
        whole = memory.whole(shared.storage())
        for begin, storage in parts:
            whole[begin : begin + storage.nbytes()].copy_(memory.whole(storage))
        torch.cuda.synchronize()
        return shared

    def _surround(self, message: dict[str, Any], stack: ExitStack) -> None:
        """What is set around the suite's call is set here."""
        if self.seed != message["seed"]:
            self.seed = message["seed"]
            torch.manual_seed(message["seed"])
        if message["surroundings"] is not None:
            stack.enter_context(global_state.within(tuple(message["surroundings"]), torch.device(message["device"])))
        stack.enter_context(torch.enable_grad() if message["grad"] else torch.no_grad())


def _give_back() -> None:
    """Memory of the GPU that torch keeps and does not use."""
    if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > UNUSED:
        with suppress(torch.AcceleratorError):  # a call has broken the context, and the answer says so
            torch.cuda.empty_cache()


def _place(storage: torch.UntypedStorage) -> tuple[str, int]:
    return str(storage.device), storage.data_ptr()


def imported(path: Path) -> ModuleType:
    """The module of a file, which lies in no package; it may import what lies beside it."""
    spec = importlib.util.spec_from_file_location(f"{MODULE}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"expected a Python file, got {path}")
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.parent))
    spec.loader.exec_module(made)
    return made


def raised(error: BaseException, path: Path) -> dict[str, Any]:
    """An exception as JSON: its class, its text, and where in the folder of the candidate it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).is_relative_to(path.parent)][-FRAMES:] or frames[-1:]
    places = [f"{f.filename}:{f.lineno} in {f.name}: {f.line}" for f in reversed(own)]
    linecache.clearcache()
    return {"kind": type(error).__name__[:100], "text": str(error)[:4000], "places": places}


if __name__ == "__main__":
    main(int(sys.argv[1]), "wait" in sys.argv[2:])
