"""`python -m kernelmux.tune`."""

from __future__ import annotations

import os

from kernelmux.registry.cli import terminal
from kernelmux.runner.interrupts import INTERRUPTED, interrupts

# Of perf and conformance, whose clock and checks are used, and of the runner.
NEEDED = ("pytest", "pytest_benchmark", "jinja2", "execnet", "filelock")


def main() -> int:
    """The command line, or what to install for it."""
    interrupts.listen("tune")
    if lack := terminal.missing(NEEDED):
        return terminal.say("tune", lack, terminal.USAGE)

    def command() -> int:
        with interrupts.held():
            from kernelmux.tune import cli
        return cli.main()

    return terminal.run("tune", command)


if __name__ == "__main__":
    if (status := main()) == INTERRUPTED:
        os._exit(status)  # at once: a second Ctrl-C may come while Python says goodbye to its libraries
    raise SystemExit(status)
