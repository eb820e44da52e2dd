"""Backends by a file: KERNELMUX_CONFIG=file.toml, or [tool.kernelmux] of the nearest pyproject.toml.

    backend = "auto"                        # where no rule fits
    [[rules]]                               # [[tool.kernelmux.rules]] in pyproject.toml; the first that fits, in order
    op = "softmax"                          # or a list; left out: every operator
    device = "cuda"                         # cpu, cuda, or a capability such as sm_90; or a list
    dtype = "bf16"                          # of the tensor that leads; or a list
    where = "N >= 4096 and N % 8 == 0"      # over the axes and scalars of the operators (`predicate`)
    backend = ["cuda", "triton"]

The file is read once per process, at the first call, and everything in it is checked then.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kernelmux.registry import catalog, dtypes
from kernelmux.registry.choice import predicate, requests
from kernelmux.registry.choice.predicate import Predicate
from kernelmux.registry.choice.requests import Request
from kernelmux.registry.errors import ArgumentError, shown, unknown
from kernelmux.registry.spec.conditions import sm
from kernelmux.registry.spec.signature import Call

VARIABLE = "KERNELMUX_CONFIG"
PROJECT = "pyproject.toml"
KEYS = ("backend", "rules")
RULE_KEYS = ("op", "device", "dtype", "where", "backend")
DEVICES = ("cpu", "cuda", "sm_80", "sm_90", "sm_100")  # of the capabilities some, for the error
MEANT = {name: "cuda" for name in ("gpu", "nvidia", "cuda:0")} | {name: "cpu" for name in ("host", "cpu:0")}


@dataclass(frozen=True)
class ConfigRule:
    """One [[rules]]: what a call must be, None for anything, and whom it asks then."""

    ops: frozenset[str] | None
    devices: frozenset[str] | None
    dtypes: frozenset[torch.dtype] | None
    where: Predicate | None
    request: Request

    @property
    def general(self) -> bool:
        """Whether it looks at the operator alone."""
        return self.devices is None and self.dtypes is None and self.where is None

    def fits(self, op: str, call: Call | None) -> bool:
        """Whether it speaks of a call; without a call, whether it speaks of every call of the operator."""
        if self.ops is not None and op not in self.ops:
            return False
        if call is None:
            return self.general
        if self.devices is not None and not self.devices & _devices(call):
            return False
        if self.dtypes is not None and call.dtype not in self.dtypes:
            return False
        return self.where is None or self.where.holds(call)


@dataclass(frozen=True)
class Config:
    """What a configuration file says; path: None where there is no file."""

    path: Path | None = None
    rules: tuple[ConfigRule, ...] = ()
    general: Request | None = None

    def request(self, op: str, call: Call | None) -> Request | None:
        """The first rule that fits, else the general one, else None."""
        return next((rule.request for rule in self.rules if rule.fits(op, call)), self.general)


@lru_cache(maxsize=1)
def read() -> Config:
    """The configuration of this process, read once; ArgumentError or UnknownName, with file and rule, for a mistake."""
    if (asked := os.environ.get(VARIABLE)) is not None:
        return _of_file(Path(asked).absolute()) if asked else Config()
    return next((_of_file(path) for path in _projects() if _table(path) is not None), Config())


def _projects() -> list[Path]:
    """The nearest pyproject.toml, from the current folder upwards; none where that folder is gone."""
    try:
        here = Path.cwd()
    except OSError:
        return []
    return [path for folder in (here, *here.parents) if os.path.isfile(path := folder / PROJECT)][:1]


def _table(path: Path) -> Mapping[str, Any] | None:
    """The table of ours in a file; None for a pyproject.toml that has none."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # with or without a byte-order mark
    except OSError as error:
        asked = f"{VARIABLE}: " if VARIABLE in os.environ else ""
        raise ArgumentError(f"{asked}expected a TOML file, got {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArgumentError(f"{path}: expected TOML, got: {error}") from None
    if path.name != PROJECT:
        return found
    tool = found.get("tool", {})
    ours = tool.get("kernelmux") if isinstance(tool, dict) else None
    if ours is not None and not isinstance(ours, dict):
        raise ArgumentError(f"{path}: tool.kernelmux: expected a table, got {shown(ours)}")
    return ours


def _of_file(path: Path) -> Config:
    if (table := _table(path)) is None:
        raise ArgumentError(f"{VARIABLE}: {path}: expected a table [tool.kernelmux], got none")
    _check_keys(table, KEYS, str(path), "its keys stand at the top level" if "tool" in table else "")
    rules = table.get("rules", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ArgumentError(f"{path}: rules: expected tables [[rules]], got {shown(rules)}")
    general = requests.parse(table["backend"], f"{path}, backend") if "backend" in table else None
    return Config(path, tuple(_rule(rule, f"{path}, rule {i}") for i, rule in enumerate(rules, 1)), general)


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], place: str, hint: str = "") -> None:
    for key in table:
        if key not in known:
            error = unknown("key", key, known, place)
            raise type(error)(f"{error}; {hint}") if hint else error


def _rule(table: Mapping[str, Any], place: str) -> ConfigRule:
    _check_keys(table, RULE_KEYS, place)
    if "backend" not in table:
        raise ArgumentError(f"{place}: expected backend = a name or a list of names, got none")
    request = requests.parse(table["backend"], place)
    ops = _names(table, "op", place, lambda op: _known_op(op, place))
    devices = _names(table, "device", place, lambda device: _known_device(device, place))
    kinds = _names(table, "dtype", place, lambda dtype: _known_dtype(dtype, place))
    return ConfigRule(ops, devices, kinds, _where(table, ops, place), request)


def _names(table: Mapping[str, Any], key: str, place: str, known: Callable[[str], Any]) -> frozenset[Any] | None:
    """The values of a key that takes a name or a list of names; None where it is left out."""
    if key not in table:
        return None
    value = table[key]
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(name, str) for name in listed):
        raise ArgumentError(f"{place}: {key}: expected a name or a list of names, got {shown(value)}")
    return frozenset(known(name) for name in listed)


def _known_op(op: str, place: str) -> str:
    if op not in catalog.names():
        raise unknown("operator", op, catalog.names(), place)
    return op


def _known_device(device: str, place: str) -> str:
    if device not in DEVICES and not re.fullmatch(r"sm_[1-9]\d{1,2}", device, re.ASCII):
        raise unknown("device", device, DEVICES, place, MEANT)
    return device


def _known_dtype(name: str, place: str) -> torch.dtype:
    known = dtypes.LONG | {str(dtype).removeprefix("torch."): dtype for dtype in dtypes.SHORT}
    if name not in known:
        raise unknown("dtype", name, dtypes.LONG, place)
    return known[name]


def _where(table: Mapping[str, Any], ops: Iterable[str] | None, place: str) -> Predicate | None:
    if "where" not in table:
        return None
    if not isinstance(table["where"], str):
        raise ArgumentError(f"{place}: where: expected a text, got {shown(table['where'])}")
    if ops is None:
        raise ArgumentError(f"{place}: where: expected op beside it, whose axes it is about, got none")
    found = predicate.parse(table["where"], f"{place}: where")
    for op in sorted(ops):
        found.check(catalog.spec(op))
    return found


def _devices(call: Call) -> set[str]:
    """The names that a rule may give to the device of a call."""
    found = {call.device.type}
    return found | {sm(call.capability)} if call.capability else found
