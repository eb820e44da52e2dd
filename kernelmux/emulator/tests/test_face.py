"""The names of `kernelmux.emulator`, which stay where modules move."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from kernelmux import emulator
from kernelmux.emulator.tests.launching import needs_nvrtc

HOME = Path(emulator.__file__).parent
README = (HOME / "README.md").read_text(encoding="utf-8")
MODULES = ("triton_cache", "triton_driver")
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
@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_backends_ask_for(name: str) -> None:
    found = getattr(emulator, name)
    assert isinstance(found, ModuleType) and found is sys.modules[f"kernelmux.emulator.compilers.{name}"]


def test_the_readme_names_the_whole_face() -> None:
    modules = {path.stem for path in HOME.glob("*.py")} - {"__init__"}
    folders = {path.parent.name for path in HOME.glob("*/__init__.py")} - {"tests"}
    told = set(re.findall(r"`(?:emulator\.)?([\w]+)/?(?:\(.*?\))?`", README))
    assert {*emulator.__all__, *MODULES, *modules, *folders} <= told


@needs_nvrtc
def test_the_example_of_the_readme_reports_the_race(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with pytest.raises(emulator.EmulatorError) as raised:
        exec(code, {})
    assert str(raised.value).splitlines()[0].removeprefix("EmulatorError: ") in README


def test_an_unknown_name_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'parser_of_yesterday'"):
        emulator.parser_of_yesterday  # noqa: B018
