"""`python -m kernelmux.conformance`."""

from __future__ import annotations

import atexit
import os
import sys
import time

from kernelmux.runner.interrupts import INTERRUPTED, interrupts

BEGUN = time.monotonic()  # a limit of time counts what is imported, too
EXTRA = ("pytest", "execnet", "hypothesis", "jinja2")  # what the extra "conformance" installs
INSTALL = "pytest execnet hypothesis Jinja2 filelock junitparser nvidia-ml-py"
USAGE, CLOSED = 2, 141


def run() -> int:
    """The command line; nothing is imported before this, so that a missing package and Ctrl-C are one line."""
    try:
        interrupts.listen("conformance")
        with interrupts.held():
            import execnet  # noqa: F401
            import pytest  # noqa: F401

            from kernelmux.conformance.cli.main import main

        return main(begun=BEGUN)
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        text = f"{error.name} is not installed: pip install {INSTALL}"
    except KeyboardInterrupt:
        print("conformance: interrupted", file=sys.stderr)
        return INTERRUPTED
    print(f"conformance: {text}", file=sys.stderr)
    return USAGE


def leave(status: int) -> None:
    """End the process, once the reader of the output has got all of it, or has gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = CLOSED
    sys.stderr.flush()
    if status not in (INTERRUPTED, CLOSED):
        atexit._run_exitfuncs()
    os._exit(
        status
    )  # Python would write to a closed output, wait for interrupted threads, and let compilers say goodbye


if __name__ == "__main__":
    try:
        status = run()
    except SystemExit as end:  # --help
        status = int(end.code or 0)
    leave(status)
