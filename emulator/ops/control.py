"""Calls, traps, and instructions that change nothing here."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.group import Group
from kernelmux.emulator.operands import Symbol, Vector
from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.ops.printing import print_lanes
from kernelmux.emulator.parser import Instruction

NOTHING = Action(code="None", pure=True)


@operation("nanosleep", "griddepcontrol", "setmaxnreg", "pmevent", "clusterlaunchcontrol")
def nothing(ins: Instruction) -> Action:
    """Timing, registers and dependent launches do not show in the results."""
    return NOTHING


@operation("membar", "fence")
def fence(ins: Instruction) -> Action:
    """Memory is sequentially consistent here; in full mode a fence may be part of a hand-made synchronisation."""
    if ins.has("proxy") or any(m.startswith("proxy") for m in ins.modifiers) or ins.modifiers[0] == "mbarrier_init":
        return NOTHING
    return Action(_synchronise if "cta" in ins.modifiers else _fence)


def _synchronise(group: Group) -> None:
    group.run.shared.synchronise(np.unique(group.block))


def _fence(group: Group) -> None:
    _synchronise(group)
    group.run.access.fence(group)


@operation("trap", "brkpt")
def trap(ins: Instruction) -> Action:
    return Action(_trap)


def _trap(group: Group) -> None:
    group.fail("trap", "the kernel executed a trap", [0])


@operation("call")
def call(ins: Instruction) -> Action:
    lists = [o.items for o in ins.operands if isinstance(o, Vector)]
    results = lists.pop(0) if isinstance(ins.operands[0], Vector) else ()
    arguments = lists[0] if lists else ()
    target = next((o for o in ins.operands if not isinstance(o, Vector)), None)
    if not isinstance(target, Symbol):
        raise Unsupported("calls through a function pointer are not emulated")
    run = _BUILT_IN.get(target.name) or _caller(target.name)
    return Action(run, tuple((o, None) for o in arguments), tuple((o, None) for o in results))


def _caller(name: str) -> Any:
    def run(group: Group, *arguments: Any) -> Any:
        return group.run.call(group, name, arguments)

    return run


def _assertion_failed(group: Group, *arguments: Any) -> None:
    """__assertfail(message, file, line, function, charSize): the addresses of three strings."""
    texts = [group.run.access.text(group, argument) for argument in arguments[:2]]
    group.fail("trap", f"device assert failed: {texts[0]} ({texts[1]})", [0])


def _print(group: Group, template: Any, arguments: Any) -> Any:
    print_lanes(group, template, arguments)
    return np.zeros((group.n, 4), np.uint8)


_BUILT_IN = {"__assertfail": _assertion_failed, "vprintf": _print}
