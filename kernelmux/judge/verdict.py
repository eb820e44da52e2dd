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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernelmux.candidate import sandbox
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.pool import WarmPool
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import plan
from kernelmux.conformance.session.execute import Outcome
from kernelmux.judge import judged_function, remarks, timing
from kernelmux.judge.judged_function import AskedItem, JudgedFunction
from kernelmux.judge.shared_items import SharedItems
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.errors import ArgumentError, UnknownName
from kernelmux.runner import worker

if TYPE_CHECKING:  # it needs what runs of many processes need
    from kernelmux.judge.second_judge import SecondJudge

SCHEMA = 1
# What is asked of a function: the rest is about how a backend of this registry declares, names and joins its kernels.
CHECKS = (
    *("accuracy", "exact", "memory", "special_values", "shapes", "scalars", "layout", "state", "ambience"),
    *("repeatability", "properties", "extent", "thresholds", "offsets", "streams", "graphs"),
)
PACKAGES = ("torch", "triton", "cupy-cuda13x", "numpy")
DISTRIBUTIONS, AGE = "distributions", "age"
BESIDE = (DISTRIBUTIONS, AGE, judged_function.REST, timing.CHECK)  # items that are no check of the suite
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
    second: SecondJudge | None = None,
    tell: Callable[[Outcome], object] = lambda outcome: None,
) -> KernelVerdict:
    """What the suite says of a function for an operator.

    source: the text of a module, or the path of one. name: the function in it, by default that of the operator. tier,
    checks: as for the suite (`CHECKS` by default). limits: of its process. allow: what may compute the result beside
    kernels of its own: "torch". seed: a given one, to repeat a verdict. at_once: end with the first item that
    fails. age: seconds that its process has to have lived when `accuracy` is asked once more (the item "age"): some are
    right until checks are over. times: workloads that are timed, "x=8192x4096:bf16" (the item "time"); () for the first of
    the operator's own, None for none. pool: processes that wait; they get the text of the file alone. second: a
    judge that takes every item which this process has not begun, on a CPU. tell: gets each outcome as it comes.
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
            _ask(made, _Request(options, path, name, limits, pool, second, at_once, age, times, tell))
        finally:
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


@dataclass(frozen=True)
class _Request:
    """What `verdict` was asked for, as far as its items need it."""

    options: Options
    path: Path
    name: str
    limits: Limits | None
    pool: WarmPool | None
    second: SecondJudge | None
    at_once: bool
    age: float
    times: Sequence[str] | None
    tell: Callable[[Outcome], object]


def _ask(made: KernelVerdict, request: _Request) -> None:
    """Run the items; what the file does while it is imported is an item as well."""
    options, path, name, limits = request.options, request.path, request.name, request.limits
    beside: AbstractContextManager[SharedItems] = nullcontext(SharedItems())
    if request.second and options.device == "cpu":
        beside = request.second.beside(options, path, name, limits, request.pool is not None)
    found = list[tuple[int, Outcome]]()
    try:
        with (
            beside as share,
            judged_function.opened(options, path, name, limits, request.pool.take if request.pool else None) as own,
        ):
            for place, outcome in _outcomes(made, request, own, share):
                found.append((place, outcome))
                request.tell(outcome)
                if request.at_once and outcome.status == "failed":
                    share.stop()
                    break
            else:
                made.whole = True
            share.join()
            found.sort(key=itemgetter(0))
            _conclude(made, [outcome for _, outcome in found], own, share, options.device)
    except (ArgumentError, UnknownName) as error:  # as a file without the function
        outcome = Outcome(plan.Item(options.ops[0], temporary_backends.NAME, name, "import"), "failed", str(error))
        made.items.append(_row(outcome))
        request.tell(outcome)


def _asked_items(options: Options) -> list[AskedItem]:
    """Every item; behind `accuracy` the same for the distributions that tier smoke leaves out."""
    found = list[tuple[plan.Item, Options, str]]()
    special = [
        case.name for case in catalog.spec(options.ops[0]).cases if case.tier == "ci" and case.inputs != "normal"
    ]
    for item in plan.items(options):
        found.append((item, options, item.check))
        if item.check == "accuracy" and special and options.tier == "smoke" and options.checks == CHECKS:
            found.append((item, replace(options, tier="ci", cases=tuple(special)), DISTRIBUTIONS))
    return [AskedItem(place, *each) for place, each in enumerate(found)]


def _outcomes(
    made: KernelVerdict, request: _Request, own: JudgedFunction, share: SharedItems
) -> Iterator[tuple[int, Outcome]]:
    """Of every item, with its place; of `accuracy` once more when the process is old enough; of times."""
    options, items = request.options, _asked_items(request.options)
    again, last = next((one for one in items if one.name == "accuracy"), None), len(items)
    share.begin(items)
    while True:
        while one := share.first():
            yield from ((one.place, outcome) for outcome in own.ask(one))
            yield from share.new_outcomes()
        share.join()
        yield from share.new_outcomes()
        if not share.waiting:  # else the second judge has ended, and has left what it had begun
            break
    if request.age and own.process and again:
        time.sleep(max(0.0, request.age - own.process.age()))
        yield from ((last, outcome) for outcome in own.ask(replace(again, name=AGE)))
    if request.times is not None and own.process:
        op, impl = options.ops[0], temporary_backends.NAME
        variant, implementation = next(iter(registered.variants(impl, op).items()))
        probe = Probe(catalog.spec(op), timing.CHECK, impl, variant, implementation, options)
        outcome, rows = timing.outcome(probe, own.process, request.times)
        made.times = [row.as_dict() for row in rows]
        yield last + 1, outcome


def _conclude(
    made: KernelVerdict, found: Sequence[Outcome], own: JudgedFunction, share: SharedItems, device: str
) -> None:
    """Items in their order, what is worth reading of them, and what was launched."""
    said = dict[str, list[str]]()
    for outcome in found:
        made.items.append(_row(outcome))
        for one in _remarks(outcome):
            said.setdefault(one, []).append(outcome.item.check)
    made.remarks += [f"{', '.join(checks)}: {one}" for one, checks in said.items()]
    made.launched = dict(Counter(own.launched()) + Counter(share.launched))
    made.uses, told = remarks.of(made.launched, own.operators() | share.operators, device)
    made.remarks += told


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
