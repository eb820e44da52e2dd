"""A backend whose first call comes from inside a transform, a mode or a trace: its modules are imported outside of it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from kernelmux.conformance.judging import first_call
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.tests.made_up import python

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]
X = torch.linspace(-2, 2, 12).reshape(3, 4)


def total(import_, x):
    import_()
    return x.sum()


WAYS = {
    "vmap": lambda import_: torch.vmap(lambda x: total(import_, x))(X),
    "grad": lambda import_: torch.func.grad(lambda x: total(import_, x))(X),
    "jvp": lambda import_: torch.func.jvp(lambda x: total(import_, x), (X,), (X,)),
    "vmap of grad": lambda import_: torch.vmap(torch.func.grad(lambda x: total(import_, x)))(X),
    "functionalize": lambda import_: torch.func.functionalize(lambda x: total(import_, x))(X),
    "fake": lambda import_: inside(FakeTensorMode(), import_),
    "make_fx": lambda import_: make_fx(lambda x: total(import_, x), tracing_mode="fake")(X),
    "jit": lambda import_: torch.jit.trace(lambda x: total(import_, x), (X,), check_trace=False),
    "meta": lambda import_: inside(torch.device("meta"), import_),
    "inference": lambda import_: inside(torch.inference_mode(), import_),
}
MODULE = """import torch
TABLE = torch.arange(4.0) * 2
NUMBERS = TABLE.numpy().tolist() + torch.get_rng_state().numpy()[:0].tolist()
"""


def inside(mode, import_):
    with mode:
        import_()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_what_a_module_makes_while_it_is_imported_is_real(way, tmp_path, monkeypatch):
    name = f"first_imported_{way.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        registered, "around_imports", [first_call._import]
    )  # looks at torch's settings, as a suite does
    found = []
    WAYS[way](lambda: found.append(registered._module("made_up", name, "it")))
    table = found[0].TABLE
    assert (type(table), table.device.type, table.is_inference()) == (torch.Tensor, "cpu", False)
    assert table.tolist() == found[0].NUMBERS == [0, 2, 4, 6]


@pytest.mark.parametrize("around", [nullcontext, FakeTensorMode], ids=["nothing", "fake"])
def test_a_module_may_change_what_stays(around, tmp_path, monkeypatch):
    """Such a change is told (`ambience`), so it must be seen: nothing of it is put back."""
    name = f"changes_{around.__name__}"
    (tmp_path / f"{name}.py").write_text("import torch\ntorch.set_default_device('meta')\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with around():
            registered._module("made_up", name, "it")
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)


# What `kernelmux conformance` looks at around an import reads the states of random generators, tensors themselves.
FIRST_CALL = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
import kernelmux as kx
import kernelmux.conformance.judging.first_call

X = torch.linspace(-2, 2, 12).reshape(3, 4)

def add(x):
    for backend in sys.argv[1:]:
        x = kx.add(x, x, backend=backend)
    return x

def fake(x):
    with FakeTensorMode() as mode:
        return add(mode.from_tensor(x))

def meta(x):
    with torch.device("meta"):
        return add(x)

{way}(X)
"""
FIRST = {
    "vmap": "torch.vmap(add)",
    "grad": "torch.func.grad(lambda x: add(x).sum())",
    "FakeTensorMode": "fake",
    "default device": "meta",
    "torch.compile": "torch.compile(add, backend='eager')",
}


@pytest.mark.parametrize("way", FIRST)
def test_a_backend_is_imported_wherever_it_is_first_called(way):
    found = python(FIRST_CALL.replace("{way}", FIRST[way]), *KERNELS)
    assert found.returncode == 0, found.stderr
