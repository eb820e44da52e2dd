"""The command line of the judge."""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from kernelmux.candidate.limits import GIB, Limits
from kernelmux.conformance.session.execute import Outcome
from kernelmux.judge.formats import FORMATS, command
from kernelmux.judge.formats.reduced_sizes import byte_count
from kernelmux.judge.verdict import BESIDE, SCHEMA, WITH_HELP, KernelVerdict, signature, verdict
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.cases import TIERS
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError, KernelmuxError
from kernelmux.runner import worker
from kernelmux.runner.interrupts import INTERRUPTED

GOOD, REFUSED, USAGE = 0, 1, 2
MARKS = {"passed": "✓", "failed": "✗", "skipped": "-"}
AGE_SECONDS = 5.0
SAMPLE = 3  # items that --verify asks again

EXAMPLES = """examples:
  kernelmux judge mine.py:softmax --op softmax
  kernelmux judge mine.py:softmax --op softmax --tier ci --json verdict.json --key my.key
  kernelmux judge --verify verdict.json mine.py:softmax --key my.key
  kernelmux judge --attack
  kernelmux judge --mutate 50 --seed 1 --op softmax
  kernelmux judge KernelBench/KernelBench --format kernelbench --solutions runs/mine --only "level1/*"
  kernelmux judge mine.py:fast --reference slow.py:slow --inputs "x=37x1000 y=37x1000"
exit status: 0 every item passed and nothing computed it that is not allowed; 1 not so; 2 usage; 130 Ctrl-C
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made: argparse.ArgumentParser = terminal.Parser(
        prog="kernelmux judge",
        description="Judges a function from any file against an operator; the function runs in a process of its own.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "candidate",
        nargs="?",
        default="",
        metavar="FILE.py:FUNCTION",
        help="what is judged, or with --format a folder of tasks",
    )
    made.add_argument("--op", default="", help="the operator that it computes")
    made.add_argument("--tier", choices=TIERS, default="smoke", help="how much is asked (default: smoke)")
    made.add_argument("--check", nargs="+", default=[], metavar="CHECK", help="these checks alone")
    made.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    allow = "what may compute it beside kernels of its own"
    made.add_argument("--allow", type=_names, default=(), metavar=",".join(WITH_HELP), help=allow)
    made.add_argument("--seconds", type=float, default=Limits.call, help="of one call (default: %(default)g)")
    age = "that its process has to have lived when it is asked a last time (default: %(default)g)"
    made.add_argument("--age", type=float, default=AGE_SECONDS, metavar="SECONDS", help=age)
    made.add_argument("--memory", type=float, default=Limits.memory / GIB, metavar="GIB", help="default: %(default)g")
    workload = "time these, such as x=8192x4096:bf16 (default: on a GPU the first workload of the operator)"
    made.add_argument("--time", nargs="*", metavar="WORKLOAD", help=workload)
    made.add_argument("--json", metavar="FILE", help="write the verdict there")
    made.add_argument("-x", "--at-once", action="store_true", help="end with the first item that fails")
    _add_tasks(made)
    made.add_argument("--key", metavar="FILE", help="sign the verdict, or verify its signature, with this key")
    made.add_argument("--verify", metavar="FILE", help=f"ask {SAMPLE} drawn items of a verdict again, with its seed")
    attack = "run the attacks, or those of some families, and the honest kernels"
    made.add_argument("--attack", nargs="*", metavar="FAMILY", help=attack)
    mutate = "make N broken kernels of ours, drawn by --seed from those of --op and --backend, and ask the suite"
    made.add_argument("--mutate", type=int, metavar="N", help=mutate)
    made.add_argument("--backend", nargs="+", default=[], metavar="BACKEND", help="of --mutate: kernels of these")
    many = "of --attack, --mutate (default: by the cores) and --format (default: 1): how many at once"
    made.add_argument("-n", type=terminal.count, default=0, metavar="N", help=many)
    made.add_argument(
        "--sample", type=terminal.count, default=0, metavar="N", help="of --attack: N of the attacks, drawn by --seed"
    )
    made.add_argument("--seed", type=int, default=None, help="a seed of your own, to repeat a verdict")
    return made


def _add_tasks(made: argparse.ArgumentParser) -> None:
    """The options for tasks of other projects."""
    group = made.add_argument_group("tasks of other projects")
    group.add_argument("--format", choices=tuple(FORMATS), help="whose tasks lie in the folder")
    group.add_argument("--solutions", type=Path, metavar="FOLDER", help="where solutions lie (default: with the tasks)")
    group.add_argument("--only", metavar="PATTERN", default="*", help='tasks by name: "level1/2*"')
    size = "of the tensors of a call, such as 256M; beyond it sizes are reduced (default: 16M)"
    group.add_argument("--limit", type=byte_count, metavar="BYTES", help=size)
    group.add_argument("--junitxml", type=Path, metavar="FILE", help="write JUnit XML; needs junitparser")
    group.add_argument("--reference", metavar="FILE.py:FUNCTION", help="judge by this function instead of an operator")
    shapes = 'its inputs, such as "x=37x1000:bf16", unless its file has a function inputs(seed)'
    group.add_argument("--inputs", nargs="+", metavar="SHAPES", default=[], help=shapes)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    args = parser().parse_args(given)
    try:
        if args.attack is not None:
            from kernelmux.judge import attack

            return attack.command(args.attack, args.n, args.sample, args.seed, args.json, args.device)
        if args.mutate is not None:
            from kernelmux.judge.mutation import command as mutation

            ops = tuple(args.op.split(",")) if args.op else ()
            return mutation.command(args.mutate, args.seed, ops, tuple(args.backend), args.n, args.json)
        if args.format or args.reference:
            return command.command(args)
        return _verify(args) if args.verify else _judge(args)
    except KernelmuxError as error:
        print(f"judge: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("judge: interrupted", file=sys.stderr)
        return INTERRUPTED


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _judge(args: argparse.Namespace) -> int:
    console = Console(highlight=False)
    key = _key(args.key)
    if not args.candidate or not args.op:
        raise ArgumentError("expected FILE.py:FUNCTION and --op OP, or FOLDER and --format (--help shows examples)")
    found = _asked(args, console, args.check, args.seed)
    _print(found, console, args.check)
    if args.json:
        told = (found.signed(key) if key else found).as_dict()
        Path(args.json).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return GOOD if found.good else REFUSED


def _asked(args: argparse.Namespace, console: Console, checks: Sequence[str], seed: int | None) -> KernelVerdict:
    path, name = temporary_backends.located(args.candidate)
    limits = replace(Limits(), call=args.seconds, memory=int(args.memory * GIB))
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device cuda: expected a GPU that torch can use, found none")
    if args.seconds <= 0:
        raise ArgumentError(f"--seconds: expected more than 0, got {args.seconds:g}")
    times = args.time
    if times is None and device == "cuda" and not checks:
        times = ()
    return verdict(
        path,
        args.op,
        name,
        tier=args.tier,
        device=device,
        limits=limits,
        allow=args.allow,
        seed=seed,
        checks=checks,
        at_once=args.at_once,
        age=args.age,
        times=times,
        tell=lambda outcome: _tell(outcome, console),
    )


def _tell(outcome: Outcome, console: Console) -> None:
    mark, worst = MARKS.get(outcome.status, "?"), f"  worst {outcome.budget:.2g} of its bound" if outcome.budget else ""
    said = f"{mark} {outcome.item.check:<16} {outcome.passed:>4} trials{worst}"
    left = sum(r.status == "skipped" for r in outcome.records)
    if outcome.status == "skipped":
        said += f"  {outcome.text}"
    elif left:
        said += f"  ({left} skipped: {'; '.join(outcome.reasons[:2])}{'; ...' if len(outcome.reasons) > 2 else ''})"
    console.print(said, markup=False, soft_wrap=True)
    if outcome.status == "failed":
        console.print(outcome.text, markup=False, soft_wrap=True)


def _print(found: KernelVerdict, console: Console, checks: Sequence[str]) -> None:
    for row in found.times:
        console.print(_time_line(row), markup=False, soft_wrap=True)
    for remark in found.remarks:
        console.print(f"remark: {remark}", markup=False, soft_wrap=True)
    for limit in found.not_held:
        console.print(f"not held: {limit}", markup=False, soft_wrap=True)
    if found.passed and not found.acceptable:
        used = ", ".join(sorted(set(found.uses) - set(found.allow)))
        console.print(f"not acceptable: {used} computed it (--allow {used})", markup=False, soft_wrap=True)
    about = f"{found.candidate['file']}:{found.candidate['function']} as {found.op}, tier {found.tier}, {found.device}"
    part = f"; of its checks {', '.join(checks)} alone" if checks else ""
    console.print(f"{_status(found)}: {about}, {found.seconds:.1f} s{part}", markup=False, soft_wrap=True)


def _status(found: KernelVerdict) -> str:
    return "failed" if not found.passed else "passed" if found.acceptable else "refused"


def _time_line(row: dict[str, Any]) -> str:
    """A measured time in words."""
    took, error, claim = (f"{1e6 * row[name]:.4g}" for name in ("seconds", "error", "claim"))
    share = f"; the card allows {1e6 * row['floor']:.4g} us" if row["floor"] else ""
    if row["floor"] and row["seconds"]:
        share += f" ({row['floor'] / row['seconds']:.0%})"
    about = f"{row['calls']} calls a round, {row['handshake']:.1%} of it the answer"
    return f"time {row['workload']} {row['dtype']}: {took} +- {error} us{share}; it claims {claim} us ({about})"


def _key(path: str | None) -> bytes:
    if not path:
        return b""
    try:
        found = Path(path).read_bytes().strip()
    except OSError as error:
        raise ArgumentError(f"--key {path}: {error.strerror}") from error
    if len(found) < 16:
        raise ArgumentError(f"--key {path}: expected 16 bytes or more, got {len(found)}")
    return found


def _verify(args: argparse.Namespace) -> int:
    """Whether a verdict is whole, and says what its seed gives again."""
    console, key = Console(highlight=False), _key(args.key)
    try:
        told: dict[str, Any] = json.loads(Path(args.verify).read_text(encoding="utf-8"))
        path, name = temporary_backends.located(args.candidate)
        wrong = _wrong(told, path, name, key)
        before = KernelVerdict(**{one.name: told[one.name] for one in fields(KernelVerdict)})
        if told["good"] != before.good:
            wrong.append(f"good is {told['good']}, and {before.good} by its items")
        asked = [item["check"] for item in told["items"] if item["status"] in ("passed", "failed")]
        asked = [check for check in asked if check not in BESIDE]
        checks = secrets.SystemRandom().sample(asked, min(SAMPLE, len(asked)))  # others each time
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"--verify {args.verify}: expected a verdict: {error}") from error
    if not wrong:
        args.op, args.tier, args.allow = told["op"], told["tier"], tuple(told["allow"])
        args.at_once, args.age, args.time = False, 0.0, None
        found = _asked(args, console, checks, int(told["seed"]["seed"]))
        statuses = {item["check"]: item["status"] for item in before.items}
        wrong = [
            f"{item['check']}: {statuses.get(item['check'])} in the verdict, {item['status']} now"
            for item in found.items
            if statuses.get(item["check"]) != item["status"]
        ]
    for line in wrong:
        console.print(f"✗ {line}", markup=False, soft_wrap=True)
    if not key:
        console.print("signature: not looked at without --key; the verdict may have been changed", soft_wrap=True)
    again = f"{len(checks)} of {len(before.items)} items asked again: {', '.join(checks)}"
    console.print(
        "not verified" if wrong else f'verified: the verdict "{_status(before)}" holds; {again}', soft_wrap=True
    )
    return REFUSED if wrong else GOOD


def _wrong(told: dict[str, Any], path: Path, name: str, key: bytes) -> list[str]:
    """What of a verdict does not hold, in lines."""
    seed, found = told["seed"], []
    if told["schema"] != SCHEMA:
        return [f"schema: expected {SCHEMA}, got {told['schema']}"]
    if key and not hmac.compare_digest(told["signature"], signature(told, key)):
        found.append("the signature is not that of this key")
    if hashlib.sha256(f"{seed['salt']}:{seed['seed']}".encode()).hexdigest() != seed["commitment"]:
        found.append("the seed is not the one that was promised")
    if hashlib.sha256(path.read_bytes()).hexdigest() != told["candidate"]["sha256"]:
        found.append(f"{path.name} is not the file that was judged")
    if name != told["candidate"]["function"]:
        found.append(f"the function that was judged is {told['candidate']['function']}")
    if told["suite"] != worker.version():
        found.append("the suite is not the one that judged")
    return found
