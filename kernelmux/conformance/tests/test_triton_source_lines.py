"""The lines of our kernels that Triton is given are those that Python finds by tokenizing."""

import importlib
import inspect
from pathlib import Path

import pytest

pytest.importorskip("triton")
from triton.runtime import jit

from kernelmux.backends import triton as package


def kernels():
    """All functions of the backend that Triton compiles."""
    home = Path(package.__file__).parent
    for file in sorted(home.rglob("*.py")):
        name = ".".join([package.__name__, *file.relative_to(home).with_suffix("").parts]).removesuffix(".__init__")
        for value in vars(importlib.import_module(name)).values():
            if hasattr(value, "raw_src") and value.fn.__module__ == name:
                yield value.fn


def test_the_lines_of_every_kernel_are_those_of_inspect_without_tokenizing(monkeypatch):
    every = list(kernels())
    wanted = [inspect.getsourcelines(fn) for fn in every]
    monkeypatch.setattr(inspect, "getblock", None)
    assert len(every) > 200 and [jit.inspect.getsourcelines(fn) for fn in every] == wanted
