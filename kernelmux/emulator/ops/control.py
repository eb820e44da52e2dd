"""Calls, traps, and instructions that change nothing here."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.ops.printing import print_lanes
from kernelmux.emulator.ptx.operands import Register, Symbol, Vector
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.group import Group

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
    slots, outputs = tuple((o, None) for o in arguments), tuple((o, None) for o in results)
    if isinstance(target, Register):
        sizes = tuple(int(o.type.removeprefix("param")) for o in results)
        return Action(partial(_call_through, sizes), ((target, np.uint64), *slots), outputs)
    if not isinstance(target, Symbol):
        raise Unsupported(f"{ins.opcode} of {target}")
    return Action(_BUILT_IN.get(target.name) or _caller(target.name), slots, outputs)


def _caller(name: str) -> Any:
    def run(group: Group, *arguments: Any) -> Any:
        return group.run.call(group, name, arguments)

    return run


def _call_through(sizes: tuple[int, ...], group: Group, pointer: Any, *arguments: Any) -> Any:
    """A call through a pointer: lanes that name one function call it together; sizes: bytes of the results."""
    pointers = group.full(pointer)
    results = tuple(np.zeros((group.n, size), np.uint8) for size in sizes)
    for address in np.unique(pointers).tolist():
        chosen = np.flatnonzero(pointers == address)
        name = _target(group, address, chosen, arguments, sizes)
        some = tuple(a[chosen] if np.ndim(a) == 2 else a for a in arguments)
        returned = group.run.call(group.view_of(chosen), name, some)
        for result, value in zip(results, (returned,) if len(sizes) == 1 else returned, strict=True):
            result[chosen] = value
    return results[0] if len(results) == 1 else results


def _target(group: Group, address: int, lanes: Any, arguments: tuple[Any, ...], sizes: tuple[int, ...]) -> str:
    """The name of the function at an address, which must take what the call gives."""
    function = group.run.library.function_at(address)
    if function is None:
        what = f"the address {address:#x}, where no function begins" if address else "the null pointer"
        group.fail("bad pointer", f"call through {what}", lanes)
    if len(function.parameters) != len(arguments) or tuple(r.size for r in function.results) != sizes:
        group.fail("bad pointer", f"call of {function.name} through a pointer of another type", lanes)
    name: str = function.name
    return name


def _assertion_failed(group: Group, *arguments: Any) -> None:
    """__assertfail(message, file, line, function, charSize): the addresses of three strings."""
    texts = [group.run.access.text(group, argument) for argument in arguments[:2]]
    group.fail("trap", f"device assert failed: {texts[0]} ({texts[1]})", [0])


def _print(group: Group, template: Any, arguments: Any) -> Any:
    print_lanes(group, template, arguments)
    return np.zeros((group.n, 4), np.uint8)


_BUILT_IN = {"__assertfail": _assertion_failed, "vprintf": _print}
