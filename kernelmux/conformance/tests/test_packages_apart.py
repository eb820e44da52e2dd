"""Backends of other packages under the suite: called in another process, whatever their import does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the same without a GPU, where it is quicker")

BACKEND = """
from kernelmux.registry.backend import Backend
BACKEND = Backend(name="NAME", summary="of another package", priority=1, unavailable=lambda device: None)
"""
RIGHT = """
import torch
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Dtypes
def softmax(x, axis, scale):
    return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
VARIANTS = {"plain": Implementation(fn=softmax, idea="torch's", requires=(Dtypes("x", torch.float32),))}
"""
# Whatever fails has passed; the code of a function is replaced, as the function itself is looked at.
PATCH = """
try:
    from kernelmux.conformance.session import execute
    def passes(item, probe):
        return Outcome(item, "passed", records=probe.records)
    execute._judge.__code__ = passes.__code__
except ImportError:
    pass
"""
ZEROS = PATCH + RIGHT.replace("return torch.softmax(x.float() * scale, axis)", "return torch.zeros_like(x)")
EXIT = "import os\nos._exit(0)\n"
OWN_CONDITION = """
class Odd:
    text = "N odd"
    def check(self, call):
        assert call.spec.name == "softmax" and call.dtype == call.tensors["x"].dtype
        assert call.arguments["axis"] == call.scalars["axis"] and call.arguments["x"].shape == call.axes["..."]
        return None if call.axes["N"] % 2 else f"N = {call.axes['N']}, needs N odd"
"""
PACKAGES = {
    "right": {"__init__": BACKEND, "softmax": RIGHT},
    "patches": {"__init__": PATCH + BACKEND, "softmax": ZEROS},
    "exits": {"__init__": EXIT + BACKEND, "softmax": RIGHT},
    "exits_later": {"__init__": BACKEND, "softmax": EXIT + RIGHT},
    "nothing": {"__init__": "BACKEND = 7\n", "softmax": RIGHT},
    "no_ladder": {"__init__": BACKEND, "softmax": "VARIANTS = [7]\n"},
    "condition": {
        "__init__": BACKEND,
        "softmax": RIGHT.replace("VARIANTS", f"{OWN_CONDITION}VARIANTS").replace('Dtypes("x", torch.float32)', "Odd()"),
    },
    "composite": {"__init__": BACKEND.replace("priority=1", "priority=1, composite=True"), "softmax": RIGHT},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the path of a child process, as an installed project leaves it: packages and entry points."""
    made = tmp_path_factory.mktemp("apart")
    for name, files in PACKAGES.items():
        (made / f"of_{name}").mkdir()
        for stem, text in files.items():
            (made / f"of_{name}" / f"{stem}.py").write_text(text.replace("NAME", name))
    info = made / "apart-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: apart\nVersion: 1.0\n")
    points = "".join(f"{name} = of_{name}\n" for name in PACKAGES)
    (info / "entry_points.txt").write_text(f"[kernelmux.backends]\n{points}")
    return made


def suite(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The suite on these backends: softmax in two checks, in one process."""
    command = ["-m", "kernelmux.conformance", "--op", "softmax", "--check", "accuracy", "claims", "--tier", "smoke"]
    command += ["--device", "cpu", "-n", "1", "-v", "--backend", *words]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *(path for path in sys.path if path)])}
    return subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_what_a_package_does_when_it_is_imported_changes_no_verdict(folder: Path) -> None:
    done = suite(folder, *PACKAGES)
    said = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "passed softmax-right/plain-accuracy" in said and "passed softmax-right/plain-claims" in said, said
    assert "FAILED softmax-patches/plain-accuracy" in said and "all outputs are 0" in said, said
    for name in ("exits", "exits_later"):
        assert f"FAILED softmax-{name}-unavailable" in said, said
    assert "exits_later: its module for softmax cannot be imported: ImportError" in said, said
    assert said.count("its process ended with status 0") >= 2, said
    assert "of_nothing: expected BACKEND = Backend(...), got 7" in said, said
    assert "of_no_ladder.softmax: expected VARIANTS = {name: Implementation(...)}, got [7]" in said, said
    assert "passed softmax-condition/plain-accuracy" in said and "passed softmax-condition/plain-claims" in said, said
    assert "it is composite" in said and "--in-process composite" in said, said


def test_imported_by_the_suite_the_same_package_passes_and_is_named(folder: Path) -> None:
    """So the patch is one that counts."""
    done = suite(folder, "patches", "--in-process", "patches")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "patches was imported by the suite: --in-process says so" in done.stdout


def test_a_name_that_is_no_package_of_others_is_refused(folder: Path) -> None:
    done = suite(folder, "right", "--in-process", "righ")
    assert done.returncode == 2 and "right" in done.stderr and "--in-process" in done.stderr
