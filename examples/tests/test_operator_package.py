"""Operators in a package of their own: pip installs it without a network, they are found, used as ours are, and judged."""

import os
import re
import shutil
from pathlib import Path

from .conftest import run, search

TOP = Path(__file__).parents[2]
PACKAGE = TOP / "examples/operator_package"
README = (PACKAGE / "README.md").read_text(encoding="utf-8")
PAGE = (TOP / "docs/operators_elsewhere.md").read_text(encoding="utf-8")


def commands(pattern: str) -> list[list[str]]:
    """The commands of its README that fit."""
    return [str(found).split() for found in re.findall(pattern, README, re.MULTILINE)]


def test_every_file_of_the_page_is_that_of_the_package() -> None:
    shown = dict(re.findall(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    assert len(shown) == 6 and "our_ops/backends/cuda/hardswish.cu" in shown
    for name, text in {**shown, "pyproject.toml": re.findall(r"```toml\n(.*?)^```", PAGE, re.M | re.S)[0]}.items():
        assert (PACKAGE / name).read_text(encoding="utf-8") == text, name


def test_it_is_found_by_its_entry_point(site: Path) -> None:
    (words,) = commands(r"^kernelmux (explain .*?)  +#")
    told = run(site, "-m", "kernelmux", *words, path=search(site))
    assert told.returncode == 0 and "chosen: triton/blocked" in told.stdout, told.stdout + told.stderr


def test_its_operators_are_all_that_ours_are(site: Path) -> None:
    path = str(PACKAGE / "tests/test_use.py")
    options = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:benchmark", "--rootdir", str(site)]
    told = run(site, "-m", "pytest", *options, "-c", os.devnull, path, path=search(site))
    assert told.returncode == 0, told.stdout + told.stderr


def test_its_operators_and_its_variant_pass_the_suite(site: Path) -> None:
    found = commands(r"^python (-m kernelmux\.conformance .*?)  +#")
    assert len(found) == 2
    for words in found:  # in workers, which see the entry point too
        told = run(site, *words, "-n", "2", path=search(site))
        assert told.returncode == 0 and " 0 failed" in told.stdout.splitlines()[-1], told.stdout + told.stderr
        imported = "our_ops was imported by the suite: for its variants in torch_ref" in told.stdout
        assert imported == ("hardswish" in words), told.stdout


def test_perf_compiles_and_times_it_and_fuzz_draws_calls_of_it(site: Path) -> None:
    told = run(site, "-m", "kernelmux.perf", "--op", "hardswish", "--device", "cpu", "--quick", path=search(site))
    assert told.returncode == 0 and "1 rows timed and right" in told.stdout, told.stdout + told.stderr
    assert "cuda/vectorized" in told.stdout and "triton/blocked" in told.stdout
    told = run(site, "-m", "kernelmux.conformance", "--fuzz", "4", "--op", "hardswish", "-n", "1", path=search(site))
    assert told.returncode == 0 and "4 calls of 1 operator" in told.stdout, told.stdout + told.stderr


def test_a_wrong_kernel_fails_it(site: Path, tmp_path: Path) -> None:
    packages = shutil.copytree(site / "packages", tmp_path / "packages")
    module = packages / "our_ops/backends/torch_ref/hardswish.py"
    module.write_text(module.read_text().replace(".contiguous()", ".contiguous() * 1.01"))
    path = search(tmp_path)
    command = ["-m", "kernelmux.conformance", "--op", "hardswish", "--backend", "torch_ref", "--check", "accuracy"]
    told = run(tmp_path, *command, "--tier", "smoke", "--device", "cpu", "-n", "1", path=path)
    assert told.returncode == 1 and "FAILED hardswish-torch_ref/plain-accuracy" in told.stdout, (
        told.stdout + told.stderr
    )
