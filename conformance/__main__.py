"""`python -m kernelmux.conformance`."""

from __future__ import annotations

import os
import sys

EXTRA = ("pytest", "xdist", "hypothesis", "jinja2")  # what the extra "conformance" installs
USAGE, INTERRUPTED, CLOSED = 2, 130, 141


def run() -> int:
    """The command line; nothing is imported before this, so that a missing package and Ctrl-C are one line."""
    try:
        import pytest  # noqa: F401
        import xdist  # noqa: F401

        from kernelmux.conformance.cli import main

        return main()
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        text = f'{error.name} is not installed: pip install "kernelmux[conformance]"'
    except KeyboardInterrupt:
        print("conformance: interrupted", file=sys.stderr)
        return INTERRUPTED
    print(f"conformance: {text}", file=sys.stderr)
    return USAGE


def flushed(status: int) -> int:
    """The exit status, once the reader of the output has got all of it, or has gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python itself would try, and complain
        return CLOSED
    return status


if __name__ == "__main__":
    try:
        status = run()
    except SystemExit as end:  # --help
        status = int(end.code or 0)
    raise SystemExit(flushed(status))
