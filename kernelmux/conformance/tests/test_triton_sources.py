"""The lines of kernels that Triton is given are those that Python finds by tokenizing."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
from kernelmux.backends import triton as package
from kernelmux.emulator.compilers import triton_sources

TEXT = '''
@jit
def one(
    x,
):  # fmt: skip
    """A text

    in three quotes."""
    return x
    # behind it


# of the next
def two(x):
    return """
at the margin"""
'''.lstrip().splitlines(keepends=True)


def kernels():
    """All functions of the backend that Triton compiles."""
    home = Path(package.__file__).parent
    found: dict[int, Any] = {}
    for file in sorted(home.rglob("*.py")):
        name = ".".join([package.__name__, *file.relative_to(home).with_suffix("").parts]).removesuffix(".__init__")
        values = vars(importlib.import_module(name)).values()
        found |= {
            id(v.fn): v.fn for v in values if hasattr(v, "raw_src") and v.fn.__module__.startswith(package.__name__)
        }
    return list(found.values())


def test_the_lines_of_every_kernel_are_those_of_inspect():
    every = kernels()
    assert len(every) > 200
    wrong = [fn.__qualname__ for fn in every if triton_sources.source_lines(fn) != inspect.getsourcelines(fn)]
    assert not wrong
    tokenized = [fn.__qualname__ for fn in every if not triton_sources.function(inspect.getsourcelines(fn)[0])]
    assert not tokenized


def test_a_function_ends_where_something_else_begins():
    assert triton_sources.function(TEXT) == inspect.getblock(TEXT) == TEXT[:9]


def test_what_may_be_part_of_a_text_is_tokenized():
    assert triton_sources.function(TEXT[12:]) == [] and len(inspect.getblock(TEXT[12:])) == 3


def test_functions_of_others_are_tokenized(monkeypatch):
    asked = []
    monkeypatch.setattr(triton_sources, "function", asked.append)
    assert triton_sources.source_lines(inspect.getblock) == inspect.getsourcelines(inspect.getblock) and not asked
