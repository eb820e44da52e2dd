"""The first call of a new shape goes from one module of the registry to the next, and hardly ever back.

`docs/architecture.md` follows the call through these modules. Counted is each entry into a function of a module that the
call has entered before and left since; a return to the caller is none, and neither is a comprehension, which belongs to
the function around it. The specs count, as the modules they are: their lambdas are entered too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux.backends.torch_ref import rms_norm, softmax
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence
from kernelmux.registry.util import entry_points

OWN = "kernelmux.registry."
INSIDE = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
ROOMS = ("call.dispatch", "spec.binding", "choice.precedence", "choice.decide", "call.plan")  # in this order
RETURNS = 6  # at most

Entry = tuple[str, str]  # module and function


def entries(call: Callable[[], Any]) -> list[Entry]:
    """The functions of the registry that a call enters, where it comes from another module."""
    found: list[Entry] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        module, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if event != "call" or not module.startswith(OWN) or module == __name__ or function in INSIDE:
            return
        if not found or found[-1][0] != module.removeprefix(OWN):
            found.append((module.removeprefix(OWN), function))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def returns(path: list[Entry]) -> list[int]:
    """The places of the entries into modules that were entered before."""
    return [i for i, (module, _) in enumerate(path) if module in {earlier for earlier, _ in path[:i]}]


def told(path: list[Entry]) -> str:
    """The path, a line per entry; an arrow where it comes back."""
    back = returns(path)
    lines = [f"{'<- ' if i in back else '   '}{module}: {function}" for i, (module, function) in enumerate(path)]
    return "\n".join([f"{len(back)} returns, at most {RETURNS} expected:", *lines])


def calls(op: str, n: int, **more: Any) -> Callable[[], Any]:
    """A call on rows of n."""
    tensors = [torch.randn(3, n), torch.randn(n)][: 1 + (op == "rms_norm")]
    return lambda: getattr(kx, op)(*tensors, **more)


def path_of(op: str, **more: Any) -> list[Entry]:
    """The path of the first call of a shape, after calls of other shapes."""
    dispatch._plans.clear()
    for n in range(5, 9):
        calls(op, n, **more)()
    return entries(calls(op, 47, **more))


@pytest.mark.parametrize("backend", [None, "torch_ref"])
@pytest.mark.parametrize("op", ["softmax", "rms_norm"])
def test_a_new_shape_returns_to_an_earlier_module_at_most_six_times(op: str, backend: str | None) -> None:
    path = path_of(op) if backend is None else path_of(op, backend=backend)
    assert len(returns(path)) <= RETURNS, told(path)


@pytest.mark.parametrize("op", ["softmax", "rms_norm"])
def test_the_rooms_are_entered_one_after_the_other(op: str) -> None:
    modules = [module for module, _ in path_of(op)]
    first = [modules.index(room) for room in ROOMS]
    assert first == sorted(first), told(path_of(op))
    assert len(set(modules)) <= 17, told(path_of(op))


def test_a_call_that_is_known_enters_two_modules_and_returns_to_none() -> None:
    call = calls("softmax", 47)
    for _ in range(4):
        call()
    path = entries(call)
    assert {module for module, _ in path} <= {"choice.scope", "call.plan", "call.fast_path"}, told(path)
    assert not returns(path), told(path)


# --- what is kept of backends does not outlive them ---------------------------------------------------------------


def best(op: str = "softmax") -> str:
    return dispatch.which(op, torch.zeros(2, 3))


def test_candidates_are_kept_for_an_operator_and_a_device() -> None:
    cpu = torch.device("cpu")
    found = registered.ladder("torch_ref", "softmax", cpu)
    assert registered.ladder("torch_ref", "softmax", cpu) is found and not found.down
    assert [c.name for c in found.candidates] == ["torch_ref/plain", "torch_ref/exact"]
    assert all(c.home.composite and c.own and not (c.emulated or c.varies or c.joined) for c in found.candidates)
    assert registered.ladder("torch_ref", "no_such_operator", cpu).down
    assert registered.ladder("nowhere", "softmax", cpu).down.startswith('unknown backend "nowhere"')
    assert rms_norm.VARIANTS.keys() == {c.variant for c in registered.ladder("torch_ref", "rms_norm", cpu).candidates}


def test_a_rung_that_is_added_is_seen_after_reread_and_gone_after_the_next() -> None:
    ladder = registered.variants("torch_ref", "softmax")
    assert best() == "torch_ref/exact"
    ladder["newer"] = Implementation(softmax.plain, "")
    try:
        precedence.reread()
        assert best() == "torch_ref/newer"
    finally:
        del ladder["newer"]
        precedence.reread()
    assert best() == "torch_ref/exact"


def test_a_backend_that_is_announced_stands_in_the_order_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    before, known = registered.by_priority(cpu), entry_points.find()
    packages = {**known.packages, "another": known.packages["torch_ref"]}
    monkeypatch.setattr(entry_points, "find", lambda: entry_points.EntryPointPackages(packages, known.wrong))
    assert registered.by_priority(cpu) == before, "its BACKEND has another name, so that it cannot be used"
    assert "another" in {v.backend for v in dispatch.explain("softmax", torch.zeros(2, 3)).verdicts}
    monkeypatch.undo()
    assert "another" not in {v.backend for v in dispatch.explain("softmax", torch.zeros(2, 3)).verdicts}
