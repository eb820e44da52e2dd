"""How every command line here begins and ends: Ctrl-C, closed pipes and errors of ours take one line at most."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from kernelmux.registry.errors import KernelFailure, KernelmuxError, nearest

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


_command = ""


@contextmanager
def started_as(command: str) -> Iterator[None]:
    """Inside, a program is what this command started, "kernelmux perf"."""
    global _command
    _command = command
    try:
        yield
    finally:
        _command = ""


def program(module: str) -> str:
    """How a program was started, for its help: the command that did it, else "python -m kernelmux.perf"."""
    return _command or f"python -m {module}"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line, and say which option was meant."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = sys.argv[1:] if args is None else list(args)  # for `error`, which is not told
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {self.meant(message)} (--help says what there is)\n")

    def meant(self, message: str) -> str:
        """A message of argparse, with the option that was probably meant where one of the words is none."""
        options = [name[2:] for name in self._options() if name.startswith("--")]
        for name in (word.partition("=")[0] for word in self._words if word.startswith("--")):
            known = any(option.startswith(name[2:]) for option in options)
            if not known and (near := nearest(name[2:], options)):
                if message.startswith("the following arguments are required"):  # that may be one of them
                    message = f"unrecognized arguments: {name}"
                return f'{message}; did you mean "--{near}"?'
        return message

    def _options(self) -> Iterable[str]:
        """The options that the words may have: those of the command that they begin with, if there are commands."""
        for action in self._actions:
            if isinstance(action.choices, dict) and self._words and self._words[0] in action.choices:
                return list(action.choices[self._words[0]]._option_string_actions)
        return self._option_string_actions


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
