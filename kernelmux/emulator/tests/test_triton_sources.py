"""Where a function ends, found without tokenizing it."""

import inspect

import pytest

pytest.importorskip("triton")
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


def test_a_function_ends_where_something_else_begins():
    assert triton_sources.function(TEXT) == inspect.getblock(TEXT) == TEXT[:9]


def test_what_may_be_part_of_a_text_is_tokenized():
    assert triton_sources.function(TEXT[12:]) == [] and len(inspect.getblock(TEXT[12:])) == 3


def test_functions_of_others_are_tokenized(monkeypatch):
    asked: list[object] = []
    monkeypatch.setattr(triton_sources, "function", asked.append)
    assert triton_sources.source_lines(inspect.getblock) == inspect.getsourcelines(inspect.getblock) and not asked
