"""`python -m kernelmux.perf`."""

from __future__ import annotations

from kernelmux.perf.planning.time_budget import BEGAN  # first: from here on the minutes of a run are counted
from kernelmux.registry.cli import terminal
from kernelmux.runner.interrupts import interrupts

NEEDED = ("pytest", "pytest_benchmark", "execnet", "filelock", "jinja2")  # matplotlib only draws


def main() -> int:
    """The command line, or what to install for it."""
    if lack := terminal.missing(NEEDED):
        return terminal.say("perf", lack, terminal.USAGE)
    return terminal.run("perf", _run)


def _run() -> int:
    interrupts.listen("perf")
    with interrupts.held():
        from kernelmux.perf.cli.main import main

    return main(began=BEGAN)


if __name__ == "__main__":
    raise SystemExit(main())
