"""A solution is asked: its process runs it behind walls, another one the reference, and what lies in memory is compared.

Each case has two draws of inputs, A and B, and three calls: A, B at another place in memory, and B where A lay. What
remembers a result by shape or by address is wrong in the second or the third. In the second call what torch allocates is
full of NaN, so that what is not written shows. A module is built a second time, with other parameters.
"""

from __future__ import annotations

import random
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kernelmux.candidate.allocations import POISON, Guard, Guarded, contiguous_strides, guarded, guarded_together
from kernelmux.candidate.errors import CandidateError
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.pool import WarmPool
from kernelmux.candidate.process import CandidateProcess
from kernelmux.emulator import EmulatorError
from kernelmux.judge import remarks
from kernelmux.judge.formats import block_scaled, candidate_side
from kernelmux.judge.formats.bounds import expected
from kernelmux.judge.formats.candidate_side import Outputs
from kernelmux.judge.formats.reference import packing
from kernelmux.judge.formats.reference.process import HandedTrial, ReferenceProcess
from kernelmux.judge.formats.task import DESTINATION, FormatError, Solution, Task

PASSED, FAILED, REFUSED = "passed", "failed", "refused"
MISSING, UNJUDGED, OUT = "no solution", "not judged", "out of scope"
CASES = 8  # of a task that are asked: of more, some are drawn
BITS = 62  # of a seed
APART = 64  # tensors that have a file each: 253 go through a socket at once, and a DenseNet has 700
# Layers of torch are drawn so that each keeps a sixth of the variance that goes through it and a relu: behind sixteen of
# them nothing of an input is left. This gives it back.
GAIN = 6.0**0.5
FUTURE = "from __future__ import annotations\n"  # stands at the top of a file alone


@dataclass
class TaskVerdict:
    """What became of one solution of a task. It passed, or not: "failed"; "refused", as something computed the result that
    is not allowed; "not judged", as the reference does not run, its cases tell nothing, or the solution needs a GPU.

    judged: the operator of ours whose spec gave the bound, or "estimated", "equal", "the task's own check". trials: those
    that passed. worst: the largest error over its bound. reason: of a status that is not passed. remarks: what computed it,
    and what differs from the task as written. sha256: of the solution's files.
    """

    task: str
    format: str
    status: str = UNJUDGED
    solution: str = ""
    sha256: str = ""
    judged: str = ""
    cases: int = 0
    trials: int = 0
    worst: float | None = None
    reason: str = ""
    remarks: list[str] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)
    launched: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class TaskJudge:
    """Judges solutions one after another. seed: of all inputs; allow: what may compute a result beside own kernels."""

    reference: ReferenceProcess
    pool: WarmPool
    seed: int
    device: str = "cpu"
    allow: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)

    def judge(self, task: Task, solution: Solution | None) -> TaskVerdict:
        """The verdict; nothing that a task or a solution does is an error here."""
        made, begun = TaskVerdict(task.name, task.format), time.monotonic()
        if solution:
            made.solution, made.sha256 = str(solution.path), solution.sha256
            made.remarks += [solution.note] if solution.note else []
        if task.scope:
            made.status, made.reason = OUT, task.scope
        elif solution is None:
            made.status = MISSING
        elif scope := solution.scope or self._needs_gpu(solution):
            made.reason = scope
        else:
            try:
                self._ask(task, solution, made)
            except FormatError as error:
                made.status, made.reason = UNJUDGED, str(error)
            except (CandidateError, EmulatorError, _Wrong) as error:
                made.status, made.reason = FAILED, str(error)
            except Exception as error:  # of the judge itself: the other tasks have theirs still
                made.reason = f"the judge failed: {type(error).__name__}: {error}"
                traceback.print_exc()
        made.seconds = round(time.monotonic() - begun, 2)
        return made

    def _needs_gpu(self, solution: Solution) -> str:
        """Why a solution cannot run on a CPU, or "": texts of CUDA that it compiles by itself are not emulated."""
        given = self.device == "cpu" and any("cuda_sources" in text for text in solution.files.values())
        return "it compiles CUDA by torch's load_inline, which needs a GPU" if given else ""

    def _ask(self, task: Task, solution: Solution, made: TaskVerdict) -> None:
        draw = random.Random(f"{self.seed} {task.name}")
        made.cases = self.reference.open(task)
        chosen = sorted(draw.sample(range(made.cases), min(CASES, made.cases)))
        if len(chosen) < made.cases:
            made.remarks.append(f"{len(chosen)} of {made.cases} cases, drawn by the seed")
        with tempfile.TemporaryDirectory(prefix="kernelmux-task-") as folder:
            path = Path(folder) / "served.py"
            path.write_text(_served(solution, self.device), encoding="utf-8")
            with CandidateProcess(path, "call", self.device, self.limits, self.pool.take) as process:
                notes = list[str]()
                try:
                    empty = [why for case in chosen if (why := self._case(process, solution, case, draw, made, notes))]
                finally:
                    more = f", and {len(notes) - 1} more cases" if len(notes) > 1 else ""
                    made.remarks += [f"{note}{more}" for note in notes[:1]]
                if not made.trials:
                    raise FormatError(empty[0])
                made.remarks += [f"{len(empty)} cases tell nothing: {empty[0]}"] if empty else []
                made.uses, told = remarks.of(process.launched, process.operators, self.device)
        made.remarks += told
        made.launched = dict(process.launched)
        refused = sorted(set(made.uses) - set(self.allow))
        made.status = REFUSED if refused else PASSED
        made.reason = f"{', '.join(refused)} computed it (--allow {','.join(refused)})" if refused else ""

    def _case(
        self,
        process: CandidateProcess,
        solution: Solution,
        case: int,
        draw: random.Random,
        made: TaskVerdict,
        notes: list[str],
    ) -> str:
        """Ask a case; "", or why it tells nothing. _Wrong where a trial does not pass. notes: of how cases differ."""
        model = draw.getrandbits(BITS)
        seeds = draw.getrandbits(BITS), draw.getrandbits(BITS)
        for gain in (1.0, GAIN):
            first, second = (self.reference.trial(case, seed, model, gain) for seed in seeds)
            why = expected.vacuous([first.right, second.right])
            if not (why and first.parameters):
                break
        made.judged = made.judged or first.right.op or first.right.bound
        if first.note and first.note not in notes:
            notes.append(first.note)
        if why:
            return why
        here = _Placed(first, solution, self.device)
        there = _Placed(second, solution, self.device)
        calls = [(first, here, False), (second, there, True)]
        if here.takes(second):
            calls.append((second, here, False))
        if first.parameters:
            third = self.reference.trial(case, draw.getrandbits(BITS), draw.getrandbits(BITS), gain)
            calls.append((third, _Placed(third, solution, self.device), False))
        for number, (trial, memory, poisoned) in enumerate(calls, 1):
            wrong, share = memory.ask(process, trial, poisoned)
            made.worst = max(made.worst or 0.0, share)
            if wrong:
                raise _Wrong(f"case {case + 1}, call {number} of {len(calls)}: {wrong}")
            made.trials += 1
        return ""


class _Wrong(Exception):
    """A trial that did not pass: the text says why."""


class _Placed:
    """Memory for the inputs of calls, poisoned around each: calls with other values may lie there in turn."""

    def __init__(self, trial: HandedTrial, solution: Solution, device: str) -> None:
        like = torch.empty(0, device=device)
        self.model = trial
        if len(trial.leaves) > APART:
            self.inputs = guarded_together(trial.leaves, like)
        else:
            self.inputs = [guarded(x.shape, x.stride(), x.dtype, like) for x in trial.leaves]
        self.outputs: list[Guarded] | None = None
        if solution.style == DESTINATION:
            given = [(o.value.shape, o.dtype) for o in trial.right.outputs]
            self.outputs = [guarded(shape, contiguous_strides(shape), dtype, like) for shape, dtype in given]

    def takes(self, trial: HandedTrial) -> bool:
        """Whether the inputs of another call fit here."""
        theirs, ours = trial.leaves, self.model.leaves
        return len(theirs) == len(ours) and all(
            (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype) for x, y in zip(theirs, ours, strict=True)
        )

    def ask(self, process: CandidateProcess, trial: HandedTrial, poisoned: bool) -> tuple[str, float]:
        """A call with these inputs: "" or what is wrong, and the largest error over its bound."""
        for to, x, ignored in zip(self.inputs, trial.leaves, trial.ignored, strict=True):
            _bytes(to).fill_(POISON) if ignored else _bytes(to).copy_(packing.span(x))
        for to in self.outputs or ():
            _bytes(to).fill_(POISON)
        views = [one.view for one in (*self.inputs, *(self.outputs or ()))]
        watch = Guard()
        with torch.no_grad(), watch if poisoned else nullcontext():
            result = process.call((trial.call, *views))
        if wrong := self._damage(trial, watch):
            return wrong, float("inf")
        got: Outputs
        if self.outputs is not None:
            got = tuple(one.view for one in self.outputs)
        else:
            try:
                got = candidate_side.tensors(result)
            except TypeError as error:
                return str(error), float("inf")
        return trial.right.compared(tuple(y.detach().cpu() for y in got))

    def _damage(self, trial: HandedTrial, watch: Guard) -> str:
        """What the call has done to memory that it was not given to write to, "" if nothing."""
        for i, (to, x) in enumerate(zip(self.inputs, trial.leaves, strict=True)):
            if text := to.damage():
                return f"input {i}: {text}"
            if not (trial.changes[i] or trial.ignored[i]) and not torch.equal(_bytes(to).cpu(), packing.span(x)):
                return f"input {i} was changed by the call"
        for i, to in enumerate(self.outputs or ()):
            if text := to.damage():
                return f"output {i}: {text}"
        return next((f"{one.name}: {text}" for one in watch.memory if (text := one.damage())), "")


def _bytes(one: Guarded) -> torch.Tensor:
    first, end = one.used
    return one.whole[first:end]


def _served(solution: Solution, device: str) -> str:
    """The text that the candidate's process imports: all that it is given of a task."""
    ours = [candidate_side.__file__, *([block_scaled.__file__] if device == "cpu" else [])]
    texts = [Path(name).read_text(encoding="utf-8") for name in ours]
    source = "\n\n".join([texts[0], *(text.replace(FUTURE, "") for text in texts[1:])])
    given = f"{dict(solution.files)!r}, {solution.entry!r}, {solution.style!r}, {device!r}"
    product = "product" if device == "cpu" else "None"
    return f"{source}\n\ncall = serving(Path(__file__).parent / 'solution', {given}, {product})\n"
