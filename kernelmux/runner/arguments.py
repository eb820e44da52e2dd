"""What command lines of suites have in common: to go on with a run, and to run on a cluster."""

from __future__ import annotations

from typing import Any

ALL = "all"
EACH = "run everything once on each of these kinds of card, as the report names them (default: all there are)"


def add(group: Any, resume: bool = True, on: str = EACH) -> None:
    """Add --resume (unless told not to), --cluster and --on to a parser, or to a group of one. on: the help of the last."""
    goes = "go on with the run whose rows are in the --out folder: what has ended is not run again"
    many = "run on a Ray cluster: auto, or the address of its head (needs the extra cluster)"
    if resume:
        group.add_argument("--resume", action="store_true", help=goes)
    group.add_argument("--cluster", nargs="?", const="auto", default="", metavar="ADDRESS", help=many)
    group.add_argument("--on", nargs="+", default=[], metavar="CARD", help=on)
