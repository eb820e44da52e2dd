"""What command lines of suites have in common: to go on with a run, and to run on a cluster."""

from __future__ import annotations

from typing import Any

ALL = "all"
EACH = "run everything once on each of these kinds of card, as the report names them (default: all there are)"


def add(group: Any) -> None:
    """Add --resume, --cluster and --on to a parser, or to a group of one."""
    goes = "go on with the run whose rows are in the --out folder: what has ended is not run again"
    group.add_argument("--resume", action="store_true", help=goes)
    spread(group)


def spread(group: Any, on: str = EACH) -> None:
    """Add --cluster and --on. on: the help of the latter."""
    many = "run on a Ray cluster: auto, or the address of its head (needs the extra cluster)"
    group.add_argument("--cluster", nargs="?", const="auto", default="", metavar="ADDRESS", help=many)
    group.add_argument("--on", nargs="+", default=[], metavar="CARD", help=on)
