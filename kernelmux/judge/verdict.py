"""A verdict on a stranger's kernel: the checks of the suite, asked of a function in a process of its own.

    found = kernelmux.judge.verdict(source, op="softmax")      # text, or the path of a file
    found.passed, found.acceptable, found.as_dict()

What decides is what this process has seen: every item of the plan has to pass here, on inputs of a seed that was drawn
here and that the candidate never has. The hash of the seed is there before anything runs, the seed with the verdict.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import json
import platform
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kernelmux.candidate import implementation, sandbox
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.pool import WarmPool
from kernelmux.candidate.process import CandidateProcess
from kernelmux.conformance.judging import returned
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import plan
from kernelmux.conformance.session.execute import Outcome, execute
from kernelmux.conformance.source_constants import untrusted
from kernelmux.judge import remarks, timing
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.errors import ArgumentError, UnknownName
from kernelmux.runner import worker

SCHEMA = 1
# What is asked of a function: the rest is about how a backend of this registry declares, names and joins its kernels.
CHECKS = (
    *("accuracy", "exact", "memory", "special_values", "shapes", "scalars", "layout", "state", "ambience"),
    *("repeatability", "properties", "extent", "thresholds", "offsets", "streams", "graphs"),
)
PACKAGES = ("torch", "triton", "cupy-cuda13x", "numpy")
DISTRIBUTIONS, AGE, REST = "distributions", "age", "rest"
LOOKS = 5.0  # seconds from a look at what a process does unasked to the next one
SETTLES = (0.0, 0.3, 1.0)  # seconds that it is given to come to rest, one after another
BESIDE = (DISTRIBUTIONS, AGE, REST, timing.CHECK)  # items that are no check of the suite
WITH_HELP = (remarks.TORCH, remarks.CUBLAS)  # what `allow` may name

_turn = threading.RLock()  # one candidate at a time is the backend "impl" of a process


@dataclass
class KernelVerdict:
    """passed: every item did, in this process. acceptable: nothing computed it that is not allowed. Both make it `good`.

    items: by check: status, trials, the worst error over its bound, and what failed. seed: the hash that was there before,
    the seed and the salt that give it. not_held: limits that this machine cannot hold.
    """

    op: str
    candidate: dict[str, str]
    tier: str
    device: str
    seed: dict[str, str]
    limits: dict[str, Any]
    not_held: list[str]
    suite: str
    environment: dict[str, str]
    items: list[dict[str, Any]] = field(default_factory=list)
    times: list[dict[str, Any]] = field(default_factory=list)
    launched: dict[str, int] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    allow: list[str] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)
    whole: bool = False
    seconds: float = 0.0
    signature: str = ""
    schema: int = SCHEMA

    @property
    def passed(self) -> bool:
        """Every item was asked, none failed, and some passed."""
        statuses = [item["status"] for item in self.items]
        return self.whole and "passed" in statuses and not {*statuses} - {"passed", "skipped"}

    @property
    def acceptable(self) -> bool:
        return not set(self.uses) - set(self.allow)

    @property
    def good(self) -> bool:
        return self.passed and self.acceptable

    def as_dict(self) -> dict[str, Any]:
        """As JSON, with what follows from it."""
        return {**asdict(self), "passed": self.passed, "acceptable": self.acceptable, "good": self.good}

    def signed(self, key: bytes) -> KernelVerdict:
        """With the HMAC-SHA256 of everything else under a key."""
        self.signature = signature(self.as_dict(), key)
        return self


def signature(fields: dict[str, Any], key: bytes) -> str:
    """What `KernelVerdict.signed` writes."""
    text = json.dumps({**fields, "signature": ""}, sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def verdict(
    source: str | Path,
    op: str,
    name: str = "",
    *,
    tier: str = "smoke",
    device: str = "cpu",
    limits: Limits | None = None,
    allow: Sequence[str] = (),
    seed: int | None = None,
    checks: Sequence[str] = (),
    at_once: bool = False,
    age: float = 0.0,
    times: Sequence[str] | None = None,
    pool: WarmPool | None = None,
    tell: Callable[[Outcome], object] = lambda outcome: None,
) -> KernelVerdict:
    """What the suite says of a function for an operator.

    source: the text of a module, or the path of one. name: the function in it, by default that of the operator. tier,
    checks: as for the suite (`CHECKS` by default). limits: of its process. allow: what may compute the result beside
    kernels of its own: "torch". seed: a given one, to repeat a verdict. at_once: end with the first item that
    fails. age: seconds that its process has to have lived when `accuracy` is asked once more (the item "age"): some are
    right until checks are over. times: workloads that are timed, "x=8192x4096:bf16" (the item "time"); () for the first of
    the operator's own, None for none. pool: processes that wait; they get the text of the file alone. tell: gets each
    outcome.
    Raises ArgumentError for what is no question; what the candidate does is no error, but a verdict.
    """
    allow = (allow,) if isinstance(allow, str) else allow
    if unknown := sorted(set(allow) - set(WITH_HELP)):
        raise ArgumentError(f"allow: expected of {', '.join(WITH_HELP)}, got {', '.join(unknown)}")
    spec = catalog.spec(op)
    for workload in times or ():
        spec.hypothetical(spec.case(workload))
    with _turn, _one_thread(), _file(source) as path:
        name = name or op
        number = secrets.randbits(31) if seed is None else seed
        options = Options(
            ops=(op,),
            backends=(temporary_backends.NAME,),
            checks=tuple(checks) or CHECKS,
            tier=tier,
            seed=number,
            device=device,
            impl=f"{path}:{name}",
            program=f"kernelmux conformance --impl {path}:{name}",
        )
        plan.check_names(Options(ops=(op,), checks=options.checks))
        made = _begun(options, path, name, limits or Limits(), number, allow)
        begun = time.perf_counter()
        try:
            _ask(made, options, path, name, limits, pool, at_once, age, times, tell)
        finally:
            implementation.close()
            if pool:
                pool.fill()
        made.seconds = time.perf_counter() - begun
        return made


def _begun(options: Options, path: Path, name: str, limits: Limits, number: int, allow: Sequence[str]) -> KernelVerdict:
    salt, digest = secrets.token_hex(16), hashlib.sha256(path.read_bytes()).hexdigest()
    commitment = hashlib.sha256(f"{salt}:{number}".encode()).hexdigest()
    versions = {p: v for p in PACKAGES if (v := _version(p))}
    return KernelVerdict(
        op=options.ops[0],
        candidate={"file": path.name, "function": name, "sha256": digest},
        tier=options.tier,
        device=_card() if options.device == "cuda" else "cpu",
        seed={"commitment": commitment, "seed": str(number), "salt": salt},
        limits=asdict(limits),
        not_held=sandbox.not_held(),
        suite=worker.version(),
        environment={"python": platform.python_version(), "system": platform.platform(), **versions},
        allow=sorted(set(allow)),
    )


def _ask(
    made: KernelVerdict,
    options: Options,
    path: Path,
    name: str,
    limits: Limits | None,
    pool: WarmPool | None,
    at_once: bool,
    age: float,
    times: Sequence[str] | None,
    tell: Callable[[Outcome], object],
) -> None:
    """Run the items; what the file does while it is imported is an item as well."""
    opened = implementation.opening(options.device, limits, pool.take if pool else None)
    try:
        with (
            untrusted.reading(path, name) if "thresholds" in options.checks else nullcontext(),
            temporary_backends.joined(options.impl, options.ops[0], opened),
        ):
            process, said = implementation.process(path, name, options.device), dict[str, list[str]]()
            for outcome in _outcomes(made, options, process, age, times):
                made.items.append(_row(outcome))
                for one in _remarks(outcome):
                    said.setdefault(one, []).append(outcome.item.check)
                tell(outcome)
                if at_once and outcome.status == "failed":
                    break
            else:
                made.whole = True
            made.remarks += [f"{', '.join(checks)}: {one}" for one, checks in said.items()]
            made.launched = dict(process.launched) if process else {}
            heard = process.operators if process else set[str]()
            made.uses, told = remarks.of(made.launched, heard, options.device)
            made.remarks += told
    except (ArgumentError, UnknownName) as error:  # as a file without the function
        outcome = Outcome(plan.Item(options.ops[0], temporary_backends.NAME, name, "import"), "failed", str(error))
        made.items.append(_row(outcome))
        tell(outcome)


def _outcomes(
    made: KernelVerdict,
    options: Options,
    process: CandidateProcess | None,
    age: float,
    times: Sequence[str] | None,
) -> Iterator[Outcome]:
    """Of every item; of `accuracy` for the distributions that tier smoke leaves out, and when the process is old enough."""
    items, looked = plan.items(options), -LOOKS
    for item in items:
        yield execute(item, options)
        if process and time.monotonic() >= looked + LOOKS:
            if problem := _restless(process):
                yield Outcome(replace(item, check=REST), "failed", f"nothing is asked of its process, and {problem}")
            looked = time.monotonic()
    again = next((item for item in items if item.check == "accuracy"), None)
    special = [
        case.name for case in catalog.spec(options.ops[0]).cases if case.tier == "ci" and case.inputs != "normal"
    ]
    if again and special and options.tier == "smoke" and options.checks == CHECKS:
        asked = replace(options, tier="ci", cases=tuple(special))
        yield replace(execute(again, asked), item=replace(again, check=DISTRIBUTIONS))
    if age and process and again:
        time.sleep(max(0.0, age - process.age()))
        yield replace(execute(again, options), item=replace(again, check=AGE))
    if times is not None and process:
        op, impl = options.ops[0], temporary_backends.NAME
        variant, implementation = next(iter(registered.variants(impl, op).items()))
        probe = Probe(catalog.spec(op), timing.CHECK, impl, variant, implementation, options)
        outcome, rows = timing.outcome(probe, process, times)
        made.times = [row.as_dict() for row in rows]
        yield outcome


def _restless(process: CandidateProcess) -> str:
    """What goes on in a process that nothing is asked of, "" if it comes to rest: what it has started may take a while."""
    problem = ""
    for pause in SETTLES:
        time.sleep(pause)
        if not (problem := process.awake(returned.LATER)):
            break
    return problem


def _remarks(outcome: Outcome) -> list[str]:
    """What is worth reading of an item that is no failure, each once."""
    return list(dict.fromkeys(one.splitlines()[0] for record in outcome.records for one in record.remarks))


def _row(outcome: Outcome) -> dict[str, Any]:
    text = outcome.text if outcome.status == "failed" else "; ".join(outcome.reasons)
    worst = outcome.budget if outcome.budget < float("inf") else "inf"
    counts = {status: sum(r.status == status for r in outcome.records) for status in ("passed", "failed", "skipped")}
    return {"check": outcome.item.check, "status": outcome.status, "trials": counts, "worst": worst, "text": text}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Inside the `with` torch computes with one thread: those that wait for small tensors take the candidate's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _file(source: str | Path) -> Iterator[Path]:
    """The file of a candidate: of a text one that goes again."""
    if isinstance(source, Path) or "\n" not in source:
        path = Path(source).expanduser().absolute()
        if not path.is_file():
            raise ArgumentError(f"no such file: {source}")
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="kernelmux-judge-") as folder:
        path = Path(folder) / "candidate.py"
        path.write_text(source, encoding="utf-8")
        yield path


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _card() -> str:
    return torch.cuda.get_device_name()
