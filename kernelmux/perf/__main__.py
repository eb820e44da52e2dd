"""`python -m kernelmux.perf`."""

from __future__ import annotations

from kernelmux.perf.planning.time_budget import BEGAN  # first: from here on the minutes of a run are counted
from kernelmux.registry.cli import terminal

NEEDED = ("pytest", "pytest_benchmark", "jinja2")  # matplotlib only draws


def main() -> int:
    """The command line, or what to install for it."""
    if lack := terminal.missing(NEEDED):
        return terminal.say("perf", lack, terminal.USAGE)
    from kernelmux.perf.cli.main import main

    return main(began=BEGAN)


if __name__ == "__main__":
    raise SystemExit(main())
