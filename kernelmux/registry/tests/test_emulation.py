"""Emulated calls: what is entered around them, and what the public call leaves behind."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.call import dispatch

pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")
X = torch.linspace(-1, 1, 12).reshape(3, 4)
EMULATED = [n for n in registered.backends() if registered.emulates(n, torch.device("cpu"))]
AVAILABLE = [n for n in EMULATED if registered.unavailable(n, torch.device("cpu")) is None]


def test_emulation_is_entered_around_each_emulated_call(monkeypatch):
    events = []

    @contextmanager
    def emulation():
        events.append("in")
        try:
            yield
        finally:
            events.append("out")

    def softmax(x, axis, scale):
        events.append("call")
        if scale == 3.0:
            raise KeyError
        return x.clone()

    home = Backend("odd", "a fake", 1, lambda device: None, emulates=True, emulation=emulation)
    monkeypatch.setattr(registered, "_packages", lambda: {"odd": "fake"})
    monkeypatch.setattr(registered, "backend", lambda name: home)
    monkeypatch.setattr(registered, "unavailable", lambda name, device: None)
    monkeypatch.setattr(registered, "variants", lambda name, op: {"one": Implementation(softmax, "")})
    dispatch._plans.clear()
    run = dispatch.function("softmax")
    run(X, backend="odd")
    run(X, backend="odd")
    with pytest.raises(KeyError):
        run(X, scale=3.0, backend="odd")
    dispatch._plans.clear()
    assert events == ["in", "call", "out"] * 3


@pytest.mark.parametrize("name", AVAILABLE)
def test_kernels_on_the_emulator_read_negative_views(name):
    softmax = dispatch.function("softmax")
    negative = torch.complex(X, X).conj().imag
    assert torch.allclose(softmax(negative, backend=name), torch.softmax(-X, -1))


@pytest.mark.parametrize("op", ["add", "gelu", "reduce_sum", "transpose"])
@pytest.mark.parametrize("name", AVAILABLE)
def test_negative_views_in_other_operators(name, op):
    run, negative = dispatch.function(op), torch.complex(X, X).conj().imag
    tensors = (negative, X) if op == "add" else (negative,)
    plain = (-X, X) if op == "add" else (-X,)
    assert torch.allclose(run(*tensors, backend=name), run(*plain, backend="torch_ref"), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif("triton" not in AVAILABLE or torch.cuda.is_available(), reason="emulates no Triton")
def test_a_process_keeps_its_driver_of_triton(tmp_path):
    """Another library's kernel gets Triton's own error before and after an emulated call."""
    script = tmp_path / "script.py"
    script.write_text("""
import torch, triton, triton.language as tl, kernelmux

@triton.jit
def foreign(out):
    tl.store(out, 1)

for _ in range(2):
    kernelmux.softmax(torch.zeros(2, 3), backend="triton")
    assert triton.runtime.driver._active is None
    try:
        foreign[(1,)](torch.zeros(1))
    except RuntimeError as error:
        print(error)
""")
    command, paths = [sys.executable, "-W", "ignore", str(script)], os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": paths}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert found.stdout.count("0 active drivers") == 2 and not found.stderr
