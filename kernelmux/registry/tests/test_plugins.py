"""Backends from outside: a bad one is one line with a reason, and everything else goes on as if it were not there."""

import sys

import pytest
import torch

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import BackendUnavailable, SpecError, UnsupportedError
from kernelmux.registry.util import entry_points

X = torch.zeros(3, 4)
GOOD = """
from kernelmux.registry.backend import Backend
BACKEND = Backend(name="NAME", summary="a plugin", priority=99, unavailable=lambda device: None)
"""
SOFTMAX = """
import torch
from kernelmux.registry.backend import Implementation
VARIANTS = {"best": Implementation(fn=lambda x, axis, scale: torch.softmax(x * scale, axis), idea="[bold] idea [/]")}
"""
GELU = SOFTMAX.replace("x, axis, scale: torch.softmax(x * scale, axis)", "x, approximate: x + 0")
CPU = torch.device("cpu")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """install(name, files): a package that announces a backend; its files by name."""
    announced: list[tuple[str, str]] = []
    monkeypatch.syspath_prepend(tmp_path)
    own = entry_points.find().packages

    def fresh() -> None:
        registered.forget()
        registered._broken.clear()
        dispatch._plans.clear()

    def add(name: str, package: str, **files: str) -> None:
        (tmp_path / package).mkdir(exist_ok=True)
        for stem, text in ({"__init__": GOOD} | files).items():
            (tmp_path / package / f"{stem}.py").write_text(text.replace("NAME", name))
        announced.append((name, package))
        found = entry_points.add(own, announced)
        monkeypatch.setattr(entry_points, "find", lambda: found)
        fresh()

    yield add
    for module in [m for m in sys.modules if m.split(".")[0] in {package for _, package in announced}]:
        del sys.modules[module]
    fresh()


def everything_else_works() -> None:
    for name in registered.backends():
        reason = registered.unavailable(name, CPU)
        assert reason is None or (isinstance(reason, str) and reason)
    assert dispatch.which("softmax", X) == "torch_ref/exact"
    assert torch.equal(dispatch.function("softmax")(X), torch.softmax(X, -1))
    assert torch.equal(dispatch.function("softmax")(X, backend="torch_ref"), torch.softmax(X, -1))
    assert len(dispatch.explain("softmax", X).verdicts) >= len(registered.backends())


def test_a_good_plugin_works(install):
    install("theirs", "theirs_package", softmax=SOFTMAX)
    assert dispatch.which("softmax", X) == "theirs/best" and dispatch.which("gelu", X) == "torch_ref/plain"


BAD = {
    "ImportError": "import nowhere_to_be_found",
    "OSError": "raise OSError('no library')",
    "SystemExit": "raise SystemExit(3)",
    "SyntaxError": "def",
    "no BACKEND": "x = 1",
    "BACKEND of another type": "BACKEND = 'theirs'",
    "another name": GOOD.replace("NAME", "ours"),
    "priority": GOOD.replace("priority=99", "priority='high'"),
    "summary": GOOD.replace('"a plugin"', "None"),
    "unavailable is no function": GOOD.replace("lambda device: None", "None"),
    "unavailable raises": GOOD.replace("lambda device: None", "lambda device: 1 / 0"),
    "unavailable takes nothing": GOOD.replace("lambda device: None", "lambda: None"),
    "unavailable returns a number": GOOD.replace("lambda device: None", "lambda device: 7"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_package_is_one_line(install, how):
    install("theirs", "theirs_package", __init__=BAD[how], softmax=SOFTMAX)
    everything_else_works()
    line = next(v for v in dispatch.explain("softmax", X).verdicts if v.backend == "theirs")
    assert line.reasons and not line.able
    with pytest.raises((BackendUnavailable, SpecError)) as caught:
        dispatch.function("softmax")(X, backend="theirs")
    assert line.reasons[0] in str(caught.value)
    assert dispatch.which("softmax", X, backend="theirs,torch_ref") == "torch_ref/exact"


MODULES = {
    "ImportError": "import nowhere_to_be_found",
    "RuntimeError": "raise RuntimeError('no driver')",
    "SystemExit": "raise SystemExit",
    "no VARIANTS": "x = 1",
    "empty": "VARIANTS = {}",
    "no Implementation": "VARIANTS = {'a': 5}",
    "signature": SOFTMAX.replace("x, axis, scale:", "x, scale, axis:"),
    "no function": SOFTMAX.replace("fn=lambda x, axis, scale: torch.softmax(x * scale, axis)", "fn=None"),
    "name with a slash": SOFTMAX.replace('"best"', '"a/b"'),
    "layout of no tensor": SOFTMAX.replace("idea=", "layout={'y': 'last'}, idea="),
    "layout of no kind": SOFTMAX.replace("idea=", "layout={'x': 'best'}, idea="),
    "layout a list": SOFTMAX.replace("idea=", "layout=['x'], idea="),
    "requires": SOFTMAX.replace("idea=", "requires=(5,), idea="),
    "pays": SOFTMAX.replace("idea=", "pays=[], idea="),
    "arithmetic": SOFTMAX.replace("idea=", "arithmetic='fp4', idea="),
    "idea": SOFTMAX.replace('idea="[bold] idea [/]"', "idea=None"),
}


@pytest.mark.parametrize("how", MODULES)
def test_a_bad_module_is_one_line_for_its_operator(install, how):
    install(
        "theirs",
        "theirs_package",
        softmax=MODULES[how],
        gelu=GELU,
    )
    everything_else_works()
    assert dispatch.which("gelu", X) == "theirs/best"
    lines = [v for v in dispatch.explain("softmax", X).verdicts if v.backend == "theirs"]
    assert len(lines) == 1 and lines[0].reasons
    with pytest.raises((BackendUnavailable, SpecError, UnsupportedError)) as caught:
        dispatch.function("softmax")(X, backend="theirs")
    assert lines[0].reasons[0] in str(caught.value)


@pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.FallbackWarning")
def test_a_condition_that_fails_is_a_reason(install):
    odd = SOFTMAX.replace("idea=", "requires=(Odd(),), idea=").replace(
        "VARIANTS",
        """
class Odd:
    text = "odd"
    def check(self, call):
        return call.axes["Q"]
VARIANTS""",
    )
    install("theirs", "theirs_package", softmax=odd)
    everything_else_works()
    assert "a condition of theirs/best fails: KeyError: 'Q'" in str(dispatch.explain("softmax", X))


@pytest.mark.parametrize("name", ["a/b", "a,b", "auto", "", " x"])
def test_a_name_that_cannot_be_asked_for_is_one_line(install, name):
    install(name, "theirs_package", softmax=SOFTMAX)
    everything_else_works()
    assert f'the name "{name}"' in registered.unavailable(
        name, CPU
    ) or f'in the name "{name}"' in registered.unavailable(name, CPU)
    if name not in ("auto", ""):
        with pytest.raises(BackendUnavailable, match="theirs_package needs another one"):
            dispatch.function("softmax")(X, backend=name)


def test_our_names_win_and_the_plugin_is_a_line_of_its_own(install):
    install("torch_ref", "theirs_package", softmax=SOFTMAX)
    everything_else_works()
    assert registered.backend("torch_ref").composite
    with pytest.raises(BackendUnavailable, match='the name "torch_ref" belongs to a backend of kernelmux'):
        dispatch.function("softmax")(X, backend="torch_ref (theirs_package)")


def test_a_name_announced_twice_is_used_by_neither(install):
    install("theirs", "theirs_package", softmax=SOFTMAX)
    install("theirs", "theirs_package", softmax=SOFTMAX)  # installed twice: the same package
    assert dispatch.which("softmax", X) == "theirs/best"
    install("theirs", "another_package", softmax=SOFTMAX)
    everything_else_works()
    with pytest.raises(
        BackendUnavailable, match="announced by another_package and theirs_package: uninstall all but one"
    ):
        dispatch.function("softmax")(X, backend="theirs")
