"""Packages of others apart: stand-ins for their modules, whose functions are called in other processes."""

import builtins
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernelmux.candidate import implementation, packages
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import UnknownName
from kernelmux.registry.util import entry_points

MARK = "import builtins\nbuiltins.{0}_ran = True\n"
BACKEND = """
from kernelmux.registry.backend import Backend
BACKEND = Backend(name="NAME", summary="of another package", priority=1, unavailable=lambda device: device.type)
"""
SOFTMAX = """
import os
import torch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost
def softmax(x, axis):
    return torch.softmax(x, axis)
VARIANTS = {
    "pid": Implementation(fn=lambda x: torch.full_like(x, os.getpid()), idea="a number"),
    "plain": Implementation(fn=softmax, idea="torch's", layout={"x": "last"}, requires=(AtMost("N", 64),)),
}
"""
FILES = {
    "plain_theirs/__init__.py": MARK.format("theirs") + BACKEND.replace("NAME", "theirs"),
    "plain_theirs/softmax.py": MARK.format("theirs") + "import beside\n" + SOFTMAX,
    "beside.py": "",
    "vendor/__init__.py": MARK.format("vendor"),
    "vendor/kernels/__init__.py": MARK.format("vendor") + BACKEND.replace("NAME", "inner"),
    "vendor/kernels/softmax/__init__.py": MARK.format("vendor") + SOFTMAX,
    "more/backends/theirs/softmax.py": MARK.format("more") + SOFTMAX,
    "more/backends/torch_ref/softmax.py": MARK.format("more") + SOFTMAX,
    "both/__init__.py": MARK.format("both") + BACKEND.replace("NAME", "both"),
    "both/ops/cube.py": "",
    "both/backends/torch_ref/cube.py": "",
}
BACKENDS = {"theirs": "plain_theirs", "inner": "vendor.kernels", "both": "both"}
X = torch.randn(3, 4)


@pytest.fixture(scope="module")
def announced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files in a folder of the path, and their packages known to this process."""
    folder = tmp_path_factory.mktemp("packages")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sys.path.insert(0, str(folder))
    for name, package in BACKENDS.items():
        entry_points.announce(name, package)
    for name in ("more", "both"):
        entry_points.announce_operators(name, name)
    yield folder
    sys.path.remove(str(folder))
    entry_points._announced.clear()
    entry_points._with_operators.clear()
    entry_points.find.cache_clear()
    importlib.import_module("kernelmux.registry.call.dispatch").refresh()


@pytest.fixture
def apart(announced: Path) -> Iterator[None]:
    with packages.apart("cpu"):
        yield


@pytest.mark.parametrize("name", ["theirs", "inner"])
def test_a_backend_is_found_as_it_declares_itself_and_called_elsewhere(name: str, apart: None) -> None:
    assert registered.backend(name).summary == "of another package"
    assert registered.unavailable(name, torch.device("cpu")) == "cpu"
    assert "on cpu, alone" in str(registered.unavailable(name, torch.device("cuda")))
    found = registered.variants(name, "softmax")["plain"]
    assert (found.idea, found.layout) == ("torch's", {"x": "last"})
    assert [c.text for c in found.requires] == ["N <= 64", "scale at its default"]
    assert torch.equal(found.fn(X, -1, 1.0), torch.softmax(X, -1))
    first, second = (registered.variants(name, "softmax")["pid"].fn(X, -1, 1.0) for _ in range(2))
    assert torch.equal(first, second)
    for module in ("theirs", "vendor"):
        assert not hasattr(builtins, f"{module}_ran")
    process = implementation.process_of(found.fn)
    assert process is not None and process.begins == "VARIANTS" and process.path.suffix == ".py"
    assert not registered.implements(name, "matmul")


def test_variants_that_join_a_backend_are_called_elsewhere_too(apart: None) -> None:
    assert list(registered.variants("theirs", "softmax")) == ["more.pid", "more.plain", "pid", "plain"]
    fn = registered.variants("theirs", "softmax")["more.plain"].fn
    assert torch.equal(fn(X, -1, 1.0), torch.softmax(X, -1)) and not hasattr(builtins, "more_ran")


def test_where_torch_has_to_see_into_calls_what_joins_is_refused(apart: None) -> None:
    assert not [name for name in registered.variants("torch_ref", "softmax") if name.startswith("more.")]
    assert "torch_ref is composite" in registered.refused["torch_ref", "softmax", "more"]


def test_few_processes_run_at_a_time(apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "RUNNING", 1)
    ladder = registered.variants("theirs", "softmax")
    for variant in ("pid", "plain"):
        ladder[variant].fn(X, -1, 1.0)
    (running,) = packages.VariantProcess._running
    assert running is implementation.process_of(ladder["plain"].fn) and running._worker
    assert implementation.process_of(ladder["pid"].fn)._worker is None


def test_a_module_with_a_backend_around_operators_is_imported_and_named(announced: Path) -> None:
    why = packages.reasons(("inner",))
    assert why["inner"] == "--in-process says so" and "theirs" not in why and "more" not in why
    assert why["both"] == "both is imported with the operators of both, which it holds"
    with pytest.raises(UnknownName, match="theirs"):
        packages.check_names(("their",))


def test_behind_it_an_import_is_an_import_again(announced: Path) -> None:
    with packages.apart("cpu"):
        importlib.import_module("plain_theirs")
        started = [*packages.VariantProcess._running]
        stand_in = sys.modules["plain_theirs"]
    assert "plain_theirs" not in sys.modules and not any(one._worker for one in started)
    assert not isinstance(sys.meta_path[0], packages.StandIns)
    found = importlib.import_module("plain_theirs")
    assert found is not stand_in and builtins.__dict__.pop("theirs_ran")
    with packages.apart("cpu"):
        assert importlib.import_module("plain_theirs") is not found
    assert sys.modules.pop("plain_theirs") is found
    dispatch._plans.clear()
