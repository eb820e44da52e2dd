"""`kernelmux completion bash`: a script by which a shell completes commands, options, operators, backends and variants.

shtab writes it from the parsers of all commands. What it completes stands in it, so nothing runs at a press of the key.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cli import terminal
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import cards

SHELLS = ("bash", "zsh", "fish", "tcsh")
DEVICES = ("cpu", "cuda", *("sm_{}{}".format(*capability) for capability in cards.CAPABILITIES))


def labels() -> Iterable[str]:
    """Every backend, and every variant that it has of some operator: cuda, cuda/tiled."""
    for name in registered.backend_names():
        yield name
        yield from dict.fromkeys(f"{name}/{variant}" for op in catalog.names() for variant in _variants(name, op))


def _variants(name: str, op: str) -> Iterable[str]:
    try:
        return registered.variants(name, op)
    except Exception:  # of a package elsewhere, or one that is not installed: the others are completed all the same
        return ()


# By the name under which an argument is kept. Those of other parts are loaded with them.
VALUES: dict[str, Callable[[], Iterable[str]]] = {
    "op": catalog.names,
    "backend": labels,
    "dtype": SHORT.values,
    "device": lambda: DEVICES,
    "card": lambda: (*cards.table(), *DEVICES[2:]),
    "fits": cards.table,
    "check": lambda: import_module("kernelmux.conformance.check").names(),
    "model": lambda: import_module("kernelmux.nn.named_models").NAMES,
}


def script(
    shell: str,
    places: Mapping[str, str],
    whole: Callable[[dict[str, argparse.ArgumentParser]], argparse.ArgumentParser],
) -> tuple[str, list[str]]:
    """The script for a shell, and in a line each the commands whose parsers cannot be loaded.

    places: by command the module whose `parser()` makes its parser. whole: the parser of everything, from those of the
    commands. ArgumentError where shtab is not installed.
    """
    if lack := terminal.missing(["shtab"]):
        raise ArgumentError(f"completion: {lack}")
    import shtab

    found, lacking = _parsers(places)
    parser = whole(found)
    taking = [action for action in _actions(parser) if action.nargs != 0 and not action.choices]
    known = {name: tuple(VALUES[name]()) for name in {action.dest for action in taking} & {*VALUES}}
    for action in taking:
        if action.dest in known:
            action.choices = known[action.dest]
        elif action.metavar == "FOLDER":
            vars(action)["complete"] = shtab.DIRECTORY
        elif action.type is Path or "FILE" in str(action.metavar):
            vars(action)["complete"] = shtab.FILE
    return str(shtab.complete(parser, shell)), lacking


def _parsers(places: Mapping[str, str]) -> tuple[dict[str, argparse.ArgumentParser], list[str]]:
    found, lacking = {}, []
    for command, module in places.items():
        try:
            found[command] = import_module(module).parser()
        except ImportError as error:  # an extra is not installed
            lacking.append(f"the options of {command} are left out: {error}")
    return found, lacking


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of all its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action
