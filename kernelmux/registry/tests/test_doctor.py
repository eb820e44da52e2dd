"""`kernelmux doctor`, and the other commands, on machines that lack something: what is missing is said, the rest works."""

import os
import sys
from importlib import metadata

import pytest
import torch

from kernelmux.registry.backend import device_tables, timings
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import package_versions as packages
from kernelmux.registry.backend.description import Backend
from kernelmux.registry.choice import requests
from kernelmux.registry.cli import doctor, main
from kernelmux.registry.tests import made_up
from kernelmux.registry.util import cards, cuda_driver, entry_points

WIDTHS = pytest.mark.parametrize("width", [80, 140])


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No setting of ours, read anew."""
    for name in [name for name in os.environ if name.startswith("KERNELMUX_BACKEND")]:
        monkeypatch.delenv(name)
    requests.environment.cache_clear()
    yield
    requests.environment.cache_clear()


def told(width=140):
    return doctor.text(doctor.report(), width)


def section(title):
    return next((s for s in doctor.report() if s.title == title), doctor.Section(title, ()))


@WIDTHS
def test_a_healthy_machine_has_no_problems_and_fits_its_terminal(width):
    text = told(width)
    assert text.splitlines()[-1] == "no problems"
    assert not [line for line in text.splitlines() if len(line) > width and "/" not in line]  # a path is not broken
    for part in ("packages\n", "GPUs\n", "backends\n", "caches\n", f"  {'torch':<20} {metadata.version('torch')}"):
        assert part in text


def test_versions_are_those_that_are_installed():
    assert any(line.split()[:2] == ["numpy", metadata.version("numpy")] for line in section("packages").lines)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("broken_on_import", "OSError: libtorch.so: cannot open"),
    ],
)
def test_a_package_that_is_installed_and_cannot_be_imported_is_a_problem(module, text, monkeypatch, tmp_path):
    (tmp_path / "broken_on_import.py").write_text("raise OSError('libtorch.so: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "PACKAGES", {module: ("torch",)})
    packages = section("packages")
    assert packages.problems == 1
    assert packages.lines[-2] == f"! torch {metadata.version('torch')}: cannot be imported: {text}"


def test_a_torch_that_is_newer_than_what_was_tested_is_no_problem_and_said(monkeypatch):
    monkeypatch.setitem(packages.TESTED, "torch", ("2.0", "2.1"))
    (line,) = [line for line in section("packages").lines if line.startswith("torch ")]
    assert line.endswith("; newer than what was tested, 2.0 to 2.1: it may work")
    assert section("packages").problems == 0


@pytest.mark.parametrize("found", ["5.24.1", ""])
def test_the_versions_of_transformers_that_were_tested_are_said_and_it_is_not_imported(found, monkeypatch):
    versions = packages.version
    monkeypatch.setattr(doctor, "version", lambda name: found if name == "transformers" else versions(name))
    monkeypatch.setitem(packages.TESTED, "transformers", ("5.23", "5.24"))
    monkeypatch.setitem(sys.modules, "transformers", None)  # an import would raise
    (line,) = [line for line in section("packages").lines if line.startswith("transformers ")]
    assert (
        line.split() == f"transformers {found or 'not installed'}; kernelmux.patch was tested with 5.23 to 5.24".split()
    )
    assert section("packages").problems == 0


def test_a_package_that_is_not_installed_is_no_problem(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", {"nowhere_to_be_found": ("nowhere-to-be-found",)})
    assert f"{'nowhere-to-be-found':<20} not installed" in section("packages").lines


def test_each_gpu_and_the_health_of_each_backend_on_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(device_tables, "gpu", lambda device: "NVIDIA H200")
    monkeypatch.setattr(device_tables, "card", lambda device: cards.named("h200"))
    made_up.install(monkeypatch, made_up.BACKENDS)
    assert section("GPUs").lines == tuple(f"{f'cuda:{i}':<20} NVIDIA H200, sm_90, 141 GiB" for i in range(2))
    lines = section("backends").lines
    start = lines.index(f"{'swift':<20} made up; priority 40; from the package fake")
    assert lines[start + 1 : start + 4] == tuple(f"  {d:<18} yes" for d in ("cpu", "cuda:0", "cuda:1"))
    start = next(i for i, line in enumerate(lines) if line.startswith("closed"))
    assert lines[start + 3] == f"  {'cuda:1':<18} no: the package closed is not installed"


@pytest.mark.parametrize(
    ("name", "card", "told"),
    [
        (
            "NVIDIA RTX 4090",
            "rtx4090",
            "no measured times for NVIDIA RTX 4090: backends by priority; `kernelmux",
        ),
        (
            "NVIDIA H100",
            "h100",
            "NVIDIA H100: by the times of NVIDIA H200, which has the same multiprocessors; `",
        ),
        ("NVIDIA H200", "h200", ""),
    ],
)
def test_a_gpu_without_times_of_its_own_is_named_with_the_command(name, card, told, monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELMUX_HOME", str(tmp_path))
    monkeypatch.setattr(device_tables, "gpu", lambda device: name)
    monkeypatch.setattr(device_tables, "card", lambda device: cards.named(card))
    monkeypatch.setattr(doctor, "_devices", lambda: [torch.device("cpu"), *map(torch.device, ("cuda:0", "cuda:1"))])
    timings.forget()
    lines = list(doctor._times())
    timings.forget()
    assert lines[-1].split() == ["folder", "of", "yours", str(tmp_path)]
    assert [line[: len(told)] for line in lines[1:-1]] == [told] * bool(told)


def test_the_compilers_of_each_backend_that_works(monkeypatch):
    def compilers(device):
        if device.type == "cuda":
            raise RuntimeError("no driver")
        return ("NVRTC 13.0: here", "ptxas 12.9: there")

    there = Backend("there", "made up", 5, lambda device: None, compilers=compilers)
    gone = Backend("gone", "made up", 5, lambda device: "it is gone", compilers=compilers)
    made_up.install(monkeypatch, {"there": (there, {}), "gone": (gone, {})})
    monkeypatch.setattr(doctor, "_devices", lambda: [torch.device("cpu"), torch.device("cuda", 0)])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    lines = section("backends").lines
    assert [line.split(maxsplit=1)[0] for line in lines] == [
        "there",
        "cpu",
        "NVRTC",
        "ptxas",
        "cuda:0",
        "its",
        "gone",
        "cpu",
        "cuda:0",
    ]
    assert lines[2].strip() == "NVRTC 13.0: here"
    assert lines[5].strip() == "its compilers cannot be found: RuntimeError: no driver"


@pytest.mark.parametrize("name", ["cuda", "triton"])
def test_our_backends_say_which_compiler_they_found(name):
    lines = section("backends").lines
    at = next(i for i, line in enumerate(lines) if line.startswith(name))
    if lines[at + 1].split(maxsplit=1)[1] != doctor.EMULATED:
        pytest.skip(lines[at + 1])
    tool, number, *_, place = lines[at + 2].split()
    assert tool == {"cuda": "NVRTC", "triton": "ptxas"}[name] and float(number) > 12 and os.path.exists(place)


def test_a_driver_that_is_too_old_for_torch_is_the_problem(monkeypatch):
    monkeypatch.setattr(cuda_driver, "version", lambda: (12, 4))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    found = section("GPUs")
    assert found.problems == 1 and found.lines[0] == (
        "! the NVIDIA driver is too old: it supports CUDA 12.4, and torch was built for CUDA 13.0; "
        "expected version 580 or newer: install it, or a torch that was built for CUDA 12"
    )


def test_without_any_backend_that_works_that_is_the_problem(monkeypatch, capsys):
    made_up.install(monkeypatch, {"closed": made_up.BACKENDS["closed"]})
    assert main.main(["doctor"]) == 1
    assert "! no backend works on any device of this machine" in capsys.readouterr().out


class Properties:
    name, major, minor, total_memory = "NVIDIA H200", 9, 0, 141 << 30


PLUGIN = """
from kernelmux.registry.backend import Backend
BACKEND = Backend(name="{0}", summary="a plugin", priority=1, unavailable=lambda device: None)
"""
WRONG = """
from kernelmux.registry.backend import Implementation
VARIANTS = {"best": Implementation(fn=lambda x, dim, scale: x, idea="")}
"""


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """Packages from outside: one fails to import, one has a wrong signature, one a name of ours, two the same name."""
    announced = [
        ("fails", "fails_pkg"),
        ("wrong", "wrong_pkg"),
        ("cuda", "cuda_pkg"),
        ("two", "a_pkg"),
        ("two", "b_pkg"),
    ]
    for name, package in announced:
        (tmp_path / package).mkdir()
        text = "import nowhere_to_be_found" if name == "fails" else PLUGIN.format(name)
        (tmp_path / package / "__init__.py").write_text(text)
    (tmp_path / "wrong_pkg" / "softmax.py").write_text(WRONG)
    (tmp_path / "wrong_pkg" / "gelu.py").write_text("import nowhere_to_be_found")
    (tmp_path / "wrong_pkg" / "add.py").write_text("import nowhere_to_be_found")
    monkeypatch.syspath_prepend(tmp_path)
    found = entry_points.add(dict(entry_points.find().packages), announced)
    caches = (registered.backend, registered.unavailable, registered.variants)
    monkeypatch.setattr(entry_points, "find", lambda: found)
    for cached in caches:
        cached.cache_clear()
    yield
    registered._broken.clear()
    for cached in caches:
        cached.cache_clear()


def test_backends_from_outside_that_cannot_be_used_are_named_with_their_reason(plugged, capsys):
    assert main.main(["doctor"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    for line in (
        '! fails: backend "fails" is registered but cannot be imported: ModuleNotFoundError: No module named \'nowhere',
        "! wrong: softmax: wrong/best registered softmax(x, dim, scale) but the spec is (x, axis, scale): the spec has"
        " no dim; did you mean axis?",
        "! wrong: add, gelu: its module for each cannot be imported: ModuleNotFoundError: No module named 'nowhere",
        '! cuda (cuda_pkg): backend "cuda (cuda_pkg)" cannot be used: the name "cuda" belongs to a backend of kernelmux',
        '! two: backend "two" cannot be used: the name "two" is announced by a_pkg and b_pkg: uninstall all but one',
        "wrong a plugin; priority 1; from the package wrong_pkg",
        "torch_ref PyTorch eager; priority 10",
        "5 problems, marked with !",
    ):
        assert line in out


def test_explain_and_support_name_them_as_well_and_the_rest_works(plugged, capsys):
    assert main.main(["explain", "softmax", "--shape", "x=3x4"]) == 0
    out = capsys.readouterr().out
    assert "chosen: torch_ref/exact" in out and "the spec has no dim" in out and 'backend "two" cannot be used' in out
    assert main.main(["support", "--device", "sm_90"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert 'fails: backend "fails" is registered but cannot be imported' in out and "wrong/best registered" in out


def test_settings_and_who_they_choose(monkeypatch):
    monkeypatch.setenv("KERNELMUX_BACKEND_ADD", "torch_ref/plain")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert {"KERNELMUX_BACKEND_ADD=torch_ref/plain", "CUDA_HOME=/nowhere"} <= set(section("environment").lines)
    assert section("who runs what").lines == (f"{'add':<20} torch_ref/plain (from KERNELMUX_BACKEND_ADD)",)


def test_a_misspelt_setting_is_a_problem_and_not_the_end(monkeypatch, capsys):
    monkeypatch.setenv("KERNELMUX_BACKEND_SOFTMX", "cuda")
    assert main.main(["doctor"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert '! unknown environment variable "KERNELMUX_BACKEND_SOFTMX"' in out and "caches" in out


def test_caches_that_cannot_be_written_are_a_problem(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", f"{os.devnull}/triton")
    monkeypatch.setenv("CUPY_CACHE_DIR", "/proc/kernelmux")
    lines = section("caches").lines
    assert sum(line.startswith("! ") for line in lines) == 2
    assert any(f"{os.devnull}/triton cannot be written" in line for line in lines)


def test_without_a_folder_for_the_cache_that_is_said(monkeypatch):
    monkeypatch.setattr(doctor, "CACHES", {"kernels": lambda: None})
    assert section("caches").lines == ("! kernels: there is no folder for them, so every process compiles anew",)


BARE = """
from kernelmux.registry.cli import main as cli
for words in ("doctor", "list", "support", "support softmax --device sm_90", "show softmax",
              "explain softmax --shape x=4096x8192:bf16", "explain softmax --shape x=4096x8192:bf16 --device sm_90"):
    print("$", words, flush=True)
    assert cli.main(words.split()) == 0, words
"""


def test_without_triton_cupy_and_nvrtc_every_command_works_and_says_what_is_missing():
    found = made_up.python(
        made_up.without("triton", "cupy", "nvidia") + BARE, CUDA_HOME="/nowhere", CUDA_PATH="/nowhere"
    )
    assert not found.returncode and not found.stderr, found.stdout + found.stderr
    doctors, listed, support, one, _, here, elsewhere = (
        part.split("\n", 1)[1] for part in found.stdout.split("$ ")[1:]
    )
    assert "triton               not installed" in doctors and "no problems" in doctors
    for text in (doctors, support, here):
        assert "the package triton is not installed: pip install triton" in " ".join(text.split())
    assert "exact" in listed and "chosen: torch_ref/exact" in here
    for text in (one, elsewhere):  # a question about another machine: cuda is known without what launches it
        flat = " ".join(text.split())
        assert "cuda/online" in flat and "its module for softmax cannot be imported: ModuleNotFoundError" in flat
