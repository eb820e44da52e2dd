"""The backend in a package of its own: pip installs it without a network, it is found, and it passes the suite."""

import re
import shutil
from pathlib import Path

from .conftest import run, search

TOP = Path(__file__).parents[2]
PACKAGE = TOP / "examples/backend_package"
README = (PACKAGE / "README.md").read_text(encoding="utf-8")


def words(pattern: str) -> list[str]:
    """A command of its README."""
    (found,) = re.findall(pattern, README, re.MULTILINE)
    return str(found).split()


def test_it_is_found_and_chosen_by_name(site: Path) -> None:
    told = run(site, "-m", "kernelmux", *words(r"^kernelmux (explain .*?)  +#"), path=search(site))
    assert told.returncode == 0 and "chosen: numpy/formula" in told.stdout, told.stdout + told.stderr


def test_its_kernels_pass_the_suite(site: Path) -> None:
    told = run(site, *words(r"^python (-m kernelmux\.conformance .*?)  +#"), "-n", "1", "-v", path=search(site))
    assert told.returncode == 0, told.stdout + told.stderr
    assert all(f"{op}" in told.stdout for op in ("rms_norm", "softmax", "transpose", "numpy/bits"))
    assert ": numpy on the CPU" in told.stdout.splitlines()[-1]


def test_its_own_test_runs_the_same_suite() -> None:
    text = (PACKAGE / "tests/test_conformance.py").read_text(encoding="utf-8")
    assert all(f'"{word}"' in text for word in words(r"^python (-m kernelmux\.conformance .*?)  +#")), text


def test_a_wrong_kernel_fails_it(site: Path, tmp_path: Path) -> None:
    packages = shutil.copytree(site / "packages", tmp_path / "packages")
    module = packages / "kernels_in_numpy/softmax.py"
    module.write_text(module.read_text().replace("e / e.sum(", "1.01 * e / e.sum("))
    path = search(tmp_path)
    command = ["-m", "kernelmux.conformance", "--op", "softmax", "--backend", "numpy", "--check", "accuracy"]
    told = run(tmp_path, *command, "--tier", "smoke", "--device", "cpu", "-n", "1", path=path)
    assert told.returncode == 1 and "FAILED softmax-numpy/formula-accuracy" in told.stdout, told.stdout + told.stderr
