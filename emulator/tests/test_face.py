"""The names of `kernelmux.emulator`, which stay where modules move."""

import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

from kernelmux import emulator
from kernelmux.emulator.compilers import nvrtc

TRITON = {"triton_active"}
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.mark.parametrize("name", [n for n in emulator.__all__ if n not in TRITON])
def test_a_name_is_what_its_module_defines(name: str) -> None:
    found = getattr(emulator, name)
    assert callable(found) and found.__name__ == name
    assert found.__module__.startswith("kernelmux.emulator.")


@needs_triton
@pytest.mark.parametrize("name", sorted(TRITON))
def test_a_name_that_needs_triton(name: str) -> None:
    assert callable(getattr(emulator, name))


@needs_triton
@pytest.mark.parametrize("name", ["triton_cache", "triton_driver"])
def test_a_module_that_backends_ask_for(name: str) -> None:
    found = getattr(emulator, name)
    assert isinstance(found, ModuleType) and found is sys.modules[f"kernelmux.emulator.compilers.{name}"]


def test_the_compiler_has_one_home_and_a_second_name() -> None:
    from kernelmux.emulator import nvrtc as public

    assert {name: getattr(nvrtc, name) for name in public.__all__} == {n: getattr(public, n) for n in public.__all__}


def test_an_unknown_name_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'parser_of_yesterday'"):
        emulator.parser_of_yesterday  # noqa: B018
