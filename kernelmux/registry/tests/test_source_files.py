"""Which files an implementation consists of: what its modules import, found by patterns as a parser finds it."""

import ast
from pathlib import Path

import pytest

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import fingerprint

TEXT = """
from ours import one, two as other  # and a comment
from ours.deep.down import (
    three,  # among them, too
)
if True: from ours import four
def late():
    from ours import (five, six as
        seven)
    from ours import eight, \\
        nine; from ours.other import ten
    from oursolves import eleven
    return Source("a.cu"), 'b.cu', "no cu"
"""


def parsed(text, package):
    """The same from the tree of a module."""
    nodes = list(ast.walk(ast.parse(text)))
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    modules = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == package:
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module.startswith(f"{package}."):
            modules.append(node.module.removeprefix(f"{package}."))
    return tuple(v for v in values if isinstance(v, str) and v.endswith(".cu")), tuple(modules)


def test_every_form_of_an_import_is_found():
    cuda, modules = fingerprint._named(TEXT, "ours")
    assert cuda == ("a.cu", "b.cu")
    assert sorted(modules) == sorted(["one", "two", "deep.down", "four", "five", "six", "eight", "nine", "other"])
    assert [set(names) for names in parsed(TEXT, "ours")] == [set(cuda), set(modules)]


@pytest.mark.parametrize("backend", ["cuda", "triton", "torch_ref"])
def test_the_files_of_every_implementation_are_those_of_a_parser(backend, monkeypatch):
    home = registered.folder(backend)
    assert isinstance(home, Path)
    package = f"kernelmux.backends.{backend}"
    found = {op: fingerprint.sources(home, package, op) for op in catalog.names()}
    monkeypatch.setattr(fingerprint, "_named", parsed)
    assert found == {op: fingerprint.sources(home, package, op) for op in found}
