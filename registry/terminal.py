"""How every command line here begins and ends: Ctrl-C, closed pipes and errors of ours take one line at most."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from kernelmux.registry.errors import KernelFailure, KernelmuxError

DISTRIBUTIONS = {"jinja2": "Jinja2", "pytest_benchmark": "pytest-benchmark", "xdist": "pytest-xdist"}  # by module
OK, FAILED, USAGE, INTERRUPTED, CLOSED = 0, 1, 2, 130, 141  # the last two as a shell reports SIGINT and SIGPIPE


def run(name: str, command: Callable[[], int]) -> int:
    """The exit status of a command.

    2 and a line for an error of ours, 1 for one of the GPU; 130 for Ctrl-C, 141 if nothing reads its output.
    """
    if sys.stdout is None:  # it was closed before the start
        sys.stdout = open(os.devnull, "w")
    try:
        status = command()
        sys.stdout.flush()
        return status
    except KernelFailure as error:
        return say(name, str(error), FAILED)
    except KernelmuxError as error:
        return say(name, str(error), USAGE)
    except KeyboardInterrupt:
        return say(name, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still in the buffer goes nowhere
        return CLOSED


def say(name: str, text: str, status: int) -> int:
    """Write a line to stderr and return the status."""
    print(f"{name}: {text}", file=sys.stderr)
    return status


def missing(names: Iterable[str]) -> str | None:
    """What to install if one of the modules is not there, or None."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    install = " ".join(DISTRIBUTIONS.get(name, name) for name in absent)
    return f"needs {', '.join(absent)}: pip install {install}" if absent else None


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message} (--help says what there is)\n")


def seconds(text: str) -> float:
    """An argument in seconds, for argparse: more than 0, and finite."""
    return _time(text, "seconds")


def minutes(text: str) -> float:
    """An argument in minutes, for argparse: more than 0, and finite."""
    return _time(text, "minutes")


def _time(text: str, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected {unit}, more than 0, got {text!r}")
    return value


def positive(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    return _whole(text, 1)


def count(text: str) -> int:
    """A whole number from 0 on, for argparse."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, got {text!r}")
    return int(text)
