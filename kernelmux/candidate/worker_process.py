"""One process of a candidate, from the suite's side: started, asked, watched, and ended.

Each request has a number that cannot be guessed; an answer without it, a second answer, silence, or the end of the
process is a failure of the call that was asked.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernelmux.candidate import launches, limits, memory, messages, sandbox
from kernelmux.candidate.allocations import Guard, Guarded, TooLarge
from kernelmux.candidate.channel import Channel, ChannelClosed, Late, Unexpected, close
from kernelmux.candidate.errors import CandidateError
from kernelmux.candidate.gpu.shared_memory import GpuRegion
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.shared_inputs import SharedInputs
from kernelmux.emulator import EmulatorError

LOOK = 0.25  # seconds between two looks at what it uses
Answer = tuple[dict[str, Any], float]  # to a message, and the seconds that it took
LINES, BEFORE = 8, 2  # of what it printed last that a failure shows; before a crash of Python
# A process ends with the thread that has started it: this one stays.
_starter = ThreadPoolExecutor(1, "kernelmux-candidates")


class Worker:
    """A process; it serves one candidate and is never used for another. over: whether it is of no more use."""

    def __init__(self, path: Path | None, given: Limits, helpers: bool = False) -> None:
        self.limits, self.over = given, False
        self.launched: dict[str, int] = {}
        self.operators: set[str] = set()
        self.claims: dict[str, Any] = {}
        self.loaded = 0.0  # when the file of the candidate was there, by time.monotonic
        own, other = socket.socketpair()
        self.channel = Channel(own, self._look)
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._printed, self._said = read, b""
        self._looked, self._beyond = time.monotonic(), ""
        self._inputs, self._modules = SharedInputs(), dict[int, str]()
        self._held: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._released: list[int] = []
        self._found: EmulatorError | None = None
        self._listened = False  # one call tells what torch is asked for: hearing takes time
        self._scratch = (
            None
            if sandbox.bubblewrap()[0]
            else tempfile.TemporaryDirectory(prefix="kernelmux-candidate-", ignore_cleanup_errors=True)
        )
        scratch = self._scratch.name if self._scratch else sandbox.SCRATCH
        try:
            start = partial(
                subprocess.Popen,
                sandbox.command(path, given, other.fileno(), helpers),
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                env=sandbox.environment(scratch),
                cwd=self._scratch.name if self._scratch else None,
                start_new_session=True,
            )
            self.popen = _starter.submit(start).result()
        finally:
            other.close()
            os.close(write)

    # --- requests ------------------------------------------------------------------------------------------

    def load(self, path: Path, device: str, do: str = "load", with_text: bool = False, **more: Any) -> Any:
        """Import a file, and give what it says of itself; do, more: of `serve.Server`. with_text: it is not seen there."""
        self.device = device
        text = path.read_text(encoding="utf-8") if with_text else None
        message = {"do": do, "path": str(path), "device": device, "text": text, "memory": self.limits.memory, **more}
        ends = time.monotonic() + self.limits.start
        with _Failing(self, "while its file was imported"):
            if not self.loaded:
                self.channel.receive(ends)  # it is there
            self.loaded = time.monotonic()
            answer, files = self._answer(self._send(message, ()), ends)
        close(files)
        if "raised" in answer:
            raise CandidateError(f"{path.name} cannot be imported: {messages.text(answer['raised'])}")
        self.claims, self.loaded = answer["claims"], time.monotonic()
        return self.claims

    def begin(
        self,
        each: Sequence[Sequence[Any]],
        guard: Guard | None = None,
        virtual: bool = False,
        threads: bool = False,
        order: str = "",
    ) -> messages.Asked:
        """Hand the arguments of all calls over; `finish` has to be the next that is asked of it.

        The calls follow one another without a pause; threads: each comes from a thread of its own, all at once. guard: gets
        what was allocated on the way; virtual: what is allocated takes no room until it is used. order: on a GPU, as
        `gpu.order` has it.
        """
        storages = list[torch.UntypedStorage]()
        arguments = [[messages.argument(value, storages) for value in values] for values in each]
        used, new, gone = self._inputs.place(storages)
        message = {
            "do": "calls",
            "device": self.device,
            "calls": arguments,
            "threads": threads,
            "order": order,
            "storages": used,
            "new": [(n, self._inputs.by_number[n].size, self._inputs.by_number[n].kind) for n in new],
            "gone": gone,
            "released": [self._released.pop() for _ in range(len(self._released))],
            "seed": torch.initial_seed(),
            "grad": torch.is_grad_enabled(),
            "surroundings": messages.surroundings(),
            "listen": not self._listened,
            "memory": "guarded" if guard else "virtual" if virtual else "",
        }
        self._found = None
        with _Failing(self, "in the call"):
            nonce = self._send(message, [self._inputs.by_number[n].file for n in new])
        return messages.Asked(nonce, len(each), storages, used, guard, virtual, threads or bool(order))

    def finish(self, asked: messages.Asked, ahead: bool = False) -> list[Any]:
        """The results of calls, and what has become of their inputs; ahead: which have to stay as they are."""
        most = asked.count if asked.together else 1
        with _Failing(self, "in the call"):
            answer, files = self._answer(asked.nonce, time.monotonic() + self.limits.call * most, asked.count)
        try:
            if not ahead:
                self._inputs.take_back(asked.storages, asked.used)
            if self._found:
                raise self._found
            if "raised" in answer:
                if asked.virtual and answer["raised"]["kind"] == TooLarge.__name__:
                    raise TooLarge(str(answer["raised"]["text"]))
                raise messages.error(answer["raised"])
            self._listened = True
            self.operators.update(str(name) for name in answer["operators"])
            for name, count in dict(answer["kernels"]).items():  # on a GPU: its word
                self.launched[str(name)] = self.launched.get(str(name), 0) + int(count)
            if answer["patched"]:
                raise CandidateError(f"patches {', '.join(map(str, answer['patched']))}")
            if answer["changed"]:
                raise CandidateError(f"the call changed {'; '.join(map(str, answer['changed']))}")
            if ahead and self._inputs.changed(asked.storages, asked.used):
                raise CandidateError("it changed its inputs")
            found = self._results(answer, files, asked.storages, asked.guard)
            if len(found) != asked.count:
                raise memory.MisplacedTensor(f"{len(found)} results of {asked.count} calls")
            return found
        except (memory.MisplacedTensor, KeyError, TypeError, IndexError, ValueError) as error:
            self.over = True
            raise CandidateError(f"its process answered with what is no result: {error}") from error
        finally:
            close(files)

    def timed(self, message: dict[str, Any], files: Sequence[int] = (), when: str = "in timed calls") -> Answer:
        """The answer to a message, and the seconds that it took."""
        self._look()
        with _Failing(self, when):
            begun = time.perf_counter()
            answer, received = self._answer(self._send(message, files), time.monotonic() + self.limits.call)
            seconds = time.perf_counter() - begun
        close(received)
        if "raised" in answer:
            raise messages.error(answer["raised"], when)
        return answer, seconds

    def _send(self, message: dict[str, Any], files: Sequence[int]) -> str:
        """Ask something; the number that the answer has to have."""
        self._look()
        if self.channel.waiting():
            self._raise_if_gone()
            raise Unexpected("it answered before it was asked, or twice")
        nonce = secrets.token_hex(8)
        self.channel.send({**message, "nonce": nonce}, files)
        return nonce

    def _answer(self, nonce: str, ends: float, more: int = 0) -> tuple[Any, list[int]]:
        """The answer to a message; on the way its launches are run. more: so often it may say that it has got on."""
        while True:
            answer, received = self.channel.receive(ends)
            if not isinstance(answer, dict):
                close(received)
                raise Unexpected("an answer that is none")
            if "launch" in answer:
                begun = time.monotonic()
                try:
                    self.channel.send({"failed": self._launch(answer, received)})
                finally:
                    close(received)
                ends += time.monotonic() - begun
                continue
            if "further" in answer and more > 0:
                close(received)
                ends, more = time.monotonic() + self.limits.call, more - 1
                continue
            if answer.get("nonce") != nonce:
                close(received)
                raise Unexpected("an answer to something that was not asked")
            return answer, received

    def _launch(self, told: dict[str, Any], files: Sequence[int]) -> str:
        """Run a kernel; the reason why it has not run, or ""."""
        try:
            launches.run(told, files, self._inputs.emulated, self._modules)
        except EmulatorError as error:
            self._found = self._found or error
            return str(error)
        except (
            memory.MisplacedTensor,
            launches.Refused,
            KeyError,
            TypeError,
            IndexError,
            ValueError,
            OSError,
        ) as error:
            raise Unexpected(f"a launch that is none: {type(error).__name__}: {error}") from error
        name = str(told["launch"])
        self.launched[name] = self.launched.get(name, 0) + 1
        return ""

    # --- results -------------------------------------------------------------------------------------------

    def _results(
        self, answer: dict[str, Any], files: Sequence[int], inputs: Sequence[torch.UntypedStorage], guard: Guard | None
    ) -> list[Any]:
        results = self._whole(answer, files)
        storages = [self._memory(one, results, inputs) for one in answer["memories"]]
        if guard:
            for told in answer["allocated"]:
                storage = storages[told["tensor"]]
                guard.memory.append(Guarded(memory.whole(storage), memory.tensor(storage, told)))

        def build(told: dict[str, Any]) -> Any:
            if "tuple" in told:
                return tuple(build(one) for one in told["tuple"])
            if "list" in told:
                return [build(one) for one in told["list"]]
            if "tensor" in told:
                x = memory.tensor(storages[told["tensor"]], told)
                x = x if told["device"] == self.device or told["device"] == "cpu" else x.to(told["device"])
                return torch.nn.Parameter(x, requires_grad=False) if told.get("parameter") else x
            return messages.foreign(str(told["other"]))

        return [build(told) for told in answer["results"]]

    def _whole(self, answer: dict[str, Any], files: Sequence[int]) -> int | torch.Tensor:
        """What holds all results that are new: a file, or bytes of a GPU."""
        if self.device == "cpu":
            return files[0]
        size = int(answer["bytes"])
        if not 0 <= size <= torch.cuda.get_device_properties(self.device).total_memory:
            raise memory.MisplacedTensor(f"results of {size} bytes")
        made = GpuRegion(size, torch.device(self.device), os.dup(files[0]))
        made.close()
        return memory.whole(made.storage())

    def _memory(
        self, told: dict[str, Any], results: int | torch.Tensor, inputs: Sequence[torch.UntypedStorage]
    ) -> torch.UntypedStorage:
        """The memory of a result: that of an input, that of an earlier result which is still there, or a copy."""
        if "input" in told:
            found: torch.UntypedStorage = inputs[told["input"]]
            return found
        number, begin, size = int(told["output"]), int(told["begin"]), int(told["bytes"])
        if not 0 <= size <= limits.VIRTUAL * self.limits.memory or begin < 0:
            raise memory.MisplacedTensor(f"a result of {size} bytes")
        if isinstance(results, torch.Tensor):
            self._released.append(number)  # what a result on a GPU shares with later ones is not seen
            if begin + size > results.numel():
                raise memory.MisplacedTensor(f"a result of {size} bytes from {begin} on in {results.numel()}")
            return results[begin : begin + size].clone().untyped_storage()
        data = memory.read(results, begin, size)
        if (earlier := self._held.get(number)) is not None and earlier.size == size:
            earlier[:] = data
            return memory.storage_of(earlier)
        self._held[number] = data
        weakref.finalize(data, self._released.append, number)
        return memory.storage_of(data)

    # --- watching ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take what it has printed; end it if it has more than it may."""
        self._drain()
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        use = limits.in_use(self.popen.pid)
        most = self.limits.memory
        for kind, count, limit in (
            ("processes", use.processes, self.limits.processes),
            ("threads", use.threads, self.limits.threads),
        ):
            if count > limit:
                self._end(f"it had {count} {kind}, more than {limit}")
        if use.memory > most and (own := limits.memory_of_its_own(self.popen.pid)) > most:
            self._end(f"it had {own / limits.GIB:.1f} GiB of memory, more than {most / limits.GIB:.1f}")

    def _end(self, why: str) -> None:
        self._beyond = self._beyond or why
        self.kill_process()

    def _drain(self) -> None:
        with suppress(OSError):
            while part := os.read(self._printed, 1 << 16):
                self._said = (self._said + part)[-self.limits.printed :]

    def _raise_if_gone(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(0.5)
            raise ChannelClosed("end of file")

    def ended(self) -> str:
        """How the process has ended, in words, with what it printed last."""
        if self._beyond:
            return f"{self._beyond}, and was ended"
        try:
            status = self.popen.wait(5)
        except subprocess.TimeoutExpired:
            return f"it closed its channel and did not end{self._last()}"
        number = -status if status < 0 else status - 128  # bubblewrap tells of a signal as a shell does
        with suppress(ValueError):
            if number > 0:
                return f"its process ended by {signal.Signals(number).name}{self._last()}"
        return f"its process ended with status {status}{self._last()}"

    def _last(self) -> str:
        self._drain()
        lines = [line for line in self._said.decode(errors="replace").splitlines() if line.strip()]
        fatal = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
        shown = lines[-LINES:] if fatal is None else lines[max(0, fatal - BEFORE) :][:LINES]
        return "; it printed:\n  " + "\n  ".join(line[:200] for line in shown) if shown else ""

    def kill_process(self) -> None:
        """The process and all that it has started: with bubblewrap its namespace goes, else its session."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.kill()

    def kill(self) -> None:
        """End the process and give everything back."""
        self.over = True
        self.kill_process()
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(5)
        self.channel.close()
        if self._printed >= 0:
            os.close(self._printed)
            self._printed = -1
        self._inputs.close()
        if self._scratch:
            self._scratch.cleanup()


class _Failing:
    """What goes wrong with the process inside is a CandidateError that says how."""

    def __init__(self, worker: Worker, when: str) -> None:
        self.worker, self.when = worker, when

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ChannelClosed | Late | Unexpected | OSError):
            self.worker.over = True
            raise CandidateError(f"{self.when}: {self._how(error)}") from error
        if error is not None and not isinstance(error, CandidateError):
            self.worker.over = True

    def _how(self, error: Exception) -> str:
        if isinstance(error, Late):
            return f"no answer within the limit of time{self.worker._last()}"
        if isinstance(error, Unexpected):
            return f"its process broke the channel: {error}"
        return self.worker.ended()
