"""Who was asked: defaults changed while calls run, the environment, chains; and the public names."""

import importlib
import os
import pkgutil
import subprocess
import sys
import warnings

import pytest
import torch

import kernelmux
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence, requests
from kernelmux.registry.errors import ArgumentError, UnknownName
from kernelmux.registry.tests import made_up

X = torch.zeros(3, 4)


@pytest.fixture(autouse=True)
def fresh():
    requests.environment.cache_clear()
    dispatch._plans.clear()
    yield
    requests.environment.cache_clear()
    dispatch._plans.clear()


def test_no_public_name_is_the_name_of_a_part():
    parts = {m.name for m in pkgutil.iter_modules(kernelmux.__path__)}
    assert not parts & {*kernelmux._API, *catalog.names()}
    assert {"backends", "registry"} <= parts


def test_every_public_name_can_be_had_after_a_call():
    kernelmux.softmax(X)
    for name in kernelmux._API:
        assert getattr(kernelmux, name) is getattr(
            importlib.import_module(f"kernelmux.registry.{kernelmux._API[name]}"), name
        )
    assert "torch_ref" in kernelmux.backend_names()


class Interrupting(dict[str, requests.Request]):
    """A table of defaults during whose every change a call is made."""

    def _call(self):
        self.during = dispatch.function("softmax")(X, backend=None)

    def __setitem__(self, op, request):
        self._call()
        super().__setitem__(op, request)

    def pop(self, *args):
        self._call()
        return super().pop(*args)


def test_a_call_during_a_change_of_default_is_not_remembered_for_afterwards(monkeypatch):
    monkeypatch.setattr(precedence, "_defaults", Interrupting())
    ran: list[str] = []
    real = dispatch._plan

    def plan(spec, values, argument, *read):
        ran.append(precedence.requested(spec.name, argument).source)
        return real(spec, values, argument, *read)

    monkeypatch.setattr(dispatch, "_plan", plan)
    precedence.set_default("softmax", "torch_ref/exact")
    dispatch.function("softmax")(X)
    assert ran[-1] == "set_default('softmax')"
    precedence.set_default("softmax", None)
    dispatch.function("softmax")(X)
    assert ran[-1] == "auto"


def test_the_environment_is_read_once_for_all_operators(monkeypatch):
    monkeypatch.setenv("KERNELMUX_BACKEND", "torch_ref")
    assert precedence.requested("softmax", None).source == "KERNELMUX_BACKEND"
    monkeypatch.setenv("KERNELMUX_BACKEND", "cuda")
    monkeypatch.setenv("KERNELMUX_BACKEND_ADD", "cuda")
    assert {precedence.requested(op, None).names for op in catalog.names()} == {("torch_ref",)}


@pytest.mark.parametrize("argument", [None, "torch_ref"])
def test_a_variable_of_an_unknown_operator_is_an_error_at_the_first_call(monkeypatch, argument):
    monkeypatch.setenv("KERNELMUX_BACKEND_SOFTMX", "cuda")
    for ask in (dispatch.function("add"), lambda *a, **k: dispatch.explain("add", *a, **k)):
        with pytest.raises(UnknownName, match=r'"KERNELMUX_BACKEND_SOFTMX".*did you mean "KERNELMUX_BACKEND_SOFTMAX"'):
            ask(X, X, backend=argument)


@pytest.mark.parametrize("chain", ["torch_ref,torch_ref/exat", ["torch_ref", "torch_ref/exat"]])
def test_a_misspelt_variant_in_a_chain_is_an_error_wherever_it_stands(chain):
    for ask in (
        dispatch.function("softmax"),
        lambda x, **k: dispatch.explain("softmax", x, **k),
        lambda x, **k: dispatch.which("softmax", x, **k),
    ):
        with pytest.raises(UnknownName, match=r'unknown variant of torch_ref for softmax "exat".*did you mean "exact"'):
            ask(X, backend=chain)


def test_a_name_in_capitals_or_cut_short_is_told_as_such(monkeypatch):
    softmax = dispatch.function("softmax")
    with pytest.raises(UnknownName, match=r'unknown backend "TRITON".*did you mean "triton"'):
        softmax(X, backend="TRITON")
    with pytest.raises(
        ArgumentError, match='expected the name of a variant behind "/", got "torch_ref/" from call argument'
    ):
        softmax(X, backend="torch_ref/")
    with pytest.raises(ArgumentError, match=r"use\(\): ops: expected an operator or several, got none"):
        kernelmux.use("torch_ref", ops=[])
    monkeypatch.setenv("KERNELMUX_BACKENDS", "cuda")
    precedence.reread()
    with pytest.raises(
        UnknownName, match=r'unknown environment variable "KERNELMUX_BACKENDS".*did you mean "KERNELMUX_BACKEND"'
    ):
        softmax(X)


def test_what_an_interactive_session_shows_of_a_decision_is_one_line():
    found = repr(kernelmux.explain("softmax", X))
    assert found == "<decision for softmax: torch_ref/exact, from auto; print() gives every reason>"


def python(code, **variables):
    """What a process of its own prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    return found.stdout + found.stderr


def test_a_plain_call_on_the_cpu_imports_no_compiler_and_no_emulator():
    code = """
import sys, torch, kernelmux
kernelmux.softmax(torch.zeros(3, 4)); kernelmux.softmax(torch.zeros(3, 4), backend=["torch_ref", "triton", "cuda"])
print([m for m in sys.modules if m == "triton" or m.startswith(("triton.", "kernelmux.emulator", "cupy"))])
"""
    assert python(code).strip() == "[]"


@pytest.mark.parametrize("value", ["1", "true", "ON"])
def test_triton_that_interprets_has_a_reason(value, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", value)
    reason = registered.backend("triton").unavailable(torch.device("cpu"))
    assert reason is not None and reason.startswith("TRITON_INTERPRET is set")


def test_triton_that_interprets_is_unavailable_with_that_reason():
    pytest.importorskip("triton")
    code = """
import torch, kernelmux
print(kernelmux.explain("softmax", torch.zeros(3, 4)))
kernelmux.softmax(torch.zeros(3, 4), backend="triton")
"""
    out = python(code, TRITON_INTERPRET="ON")
    assert "TRITON_INTERPRET is set" in out.partition("Traceback")[0]
    assert "BackendUnavailable: no requested backend can run this call" in out


@pytest.fixture
def nothing_told(monkeypatch):
    monkeypatch.setattr(requests, "_told", set())


def test_every_variable_of_ours_that_is_misspelt_is_a_warning_once(monkeypatch, nothing_told):
    monkeypatch.setenv("KERNELMUX_BACKNED", "torch_ref")
    monkeypatch.setenv("KERNELMUX_CONFG", "file.toml")
    monkeypatch.setenv("KERNELMUX_BCKEND_SOFTMAX", "torch_ref")
    monkeypatch.setenv("KERNELMUX_" + "Z" * 5000, "1")
    monkeypatch.setenv("KERNELMUX_NOTHING", "")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            requests.environment.cache_clear()
            dispatch._plans.clear()
            kernelmux.softmax(X)
    assert {w.category for w in told} == {kernelmux.VariableWarning} and {w.filename for w in told} == {__file__}
    texts = sorted(str(w.message) for w in told)
    assert len(texts) == 4 and "nothing reads it" in texts[0] and max(map(len, texts)) < 600
    for name, meant in (("BACKNED", "BACKEND"), ("CONFG", "CONFIG"), ("BCKEND_SOFTMAX", "BACKEND_SOFTMAX")):
        start = f'unknown environment variable "KERNELMUX_{name}"; did you mean "KERNELMUX_{meant}"? known: '
        assert any(text.startswith(start) for text in texts)


def test_a_misspelt_variable_stops_one_call_where_warnings_are_errors(monkeypatch, nothing_told):
    monkeypatch.setenv("KERNELMUX_BACKNED", "torch_ref")
    with warnings.catch_warnings():
        warnings.simplefilter("error", kernelmux.VariableWarning)
        with pytest.raises(kernelmux.VariableWarning, match="BACKNED"):
            kernelmux.softmax(X)
        assert kernelmux.softmax(X).shape == X.shape


@pytest.mark.parametrize("name", requests.VARIABLES)
def test_a_variable_of_ours_is_no_warning(monkeypatch, nothing_told, tmp_path, name):
    monkeypatch.setenv(name, "")
    if name not in (requests.VARIABLE, "KERNELMUX_CONFIG"):
        monkeypatch.setenv(name, "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernelmux.softmax(X)


@pytest.mark.parametrize(
    "ask",
    [
        lambda name: kernelmux.use(name),
        lambda name: kernelmux.softmax(X, backend=name),
        lambda name: kernelmux.softmax(X, backend=f"torch_ref/{name}"),
        lambda name: kernelmux.softmax(X, backend=f"torch_ref,{name}/"),
        lambda name: kernelmux.which(name, X),
        lambda name: kernelmux.set_default(name, "cuda"),
        lambda name: kernelmux.bind("softmax", (X,), backend=name),
    ],
)
def test_a_long_name_is_cut_in_the_error(ask):
    with pytest.raises(kernelmux.KernelmuxError) as told:
        ask("z" * 5000)
    assert len(str(told.value)) < 1500


@pytest.mark.parametrize(
    "line",
    [
        "from kernelmux.registry import cards, measured, packages, plugins, selection",
        "from kernelmux.registry.backend import Ahead, Backend, Implementation, backends, variants",
        "from kernelmux.registry.cases import Case, exact_range, integers",
        "from kernelmux.registry.conditions import AtMost, Capability, Dtypes, Multiple, SharedMemory",
        "from kernelmux.registry.cost import Cost",
        "from kernelmux.registry.dtypes import FLOATS, SHORT",
        "from kernelmux.registry.numerics import CHOSEN, EQUAL, ErrorModel, Rounding, compare",
        "from kernelmux.registry.spec import Call, Composed, Gradient, NoExact, OpSpec, Output, Scalar, Tensor",
    ],
)
def test_what_packages_elsewhere_import_stays_where_it_is(line: str) -> None:
    exec(line, {})


def test_a_launcher_finds_the_tuned_tables_whatever_was_imported_first() -> None:
    code = (
        "from kernelmux.registry.backend import search_space, tuned_configs as t; assert search_space.lookup is t.find"
    )
    alone = "from kernelmux.registry.backend.search_space import lookup; assert lookup.__name__ == 'find'"
    for text in (code, alone):
        assert made_up.python(text).returncode == 0
