"""The package of docs/backends_elsewhere.md, typed in by a machine: found, run on the emulator, and judged."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from kernelmux.backends.cuda import Source
from kernelmux.conformance.judging import resource_budgets
from kernelmux.conformance.session import expected_failures
from kernelmux.emulator import nvrtc

PAGE = (Path(__file__).parents[3] / "docs/backends_elsewhere.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`(our_\w+/\w+\.\w+)`[^`]*(?:`[^`\n]+`[^`]*)*?```\w+\n(.*?)```", PAGE, re.DOTALL))

pytestmark = [
    pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable())),
    pytest.mark.skipif(torch.cuda.is_available(), reason="runs without a GPU, on the emulator"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the path of a child process, as an installed project leaves it: packages and entry points."""
    pytest.importorskip("triton")
    made = tmp_path_factory.mktemp("elsewhere")
    for name, text in FILES.items():
        if not name.endswith(".toml"):
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_text(text, encoding="utf-8")
    project = tomllib.loads(on_page(r"```toml\n(\[project\].*?)```"))["project"]
    info = made / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["kernelmux.backends"].items()
    (info / "entry_points.txt").write_text("[kernelmux.backends]\n" + "".join(f"{k} = {v}\n" for k, v in points))
    return made


def on_page(pattern: str) -> str:
    """What the page says at the one place that fits."""
    (found,) = re.findall(pattern, PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the page, in the folder."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *(path for path in sys.path if path)])}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_page_has_every_file() -> None:
    assert sorted(name for name in FILES if not name.endswith(".toml")) == [
        "our_cuda/__init__.py",
        "our_cuda/ours.cuh",
        "our_cuda/transpose.cu",
        "our_cuda/transpose.py",
        "our_triton/__init__.py",
        "our_triton/rms_norm.py",
    ]


def test_the_backends_are_found_and_chosen_by_name(folder: Path) -> None:
    words = on_page(r"^kernelmux (explain [^\n]*?)  +#").split()
    told = run(folder, "-m", "kernelmux", *words)
    assert told.returncode == 0 and "chosen: our_cuda/plain" in told.stdout, told.stdout + told.stderr


def test_the_backends_pass_checks_of_the_suite(folder: Path) -> None:
    words = on_page(r"^python (-m kernelmux\.conformance [^\n]*?)  +#").split()
    told = run(folder, *words, "--check", "accuracy", "exact", "--tier", "smoke", "-n", "1")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "our_cuda" in told.stdout and "our_triton" in told.stdout


def test_without_fused_products_the_sum_of_squares_gives_no_warning(folder: Path) -> None:
    script = [
        "import functools, sys, torch, kernelmux as kx, our_triton.rms_norm as m; from kernelmux import emulator",
        "torch.manual_seed(0)",  # whether the sums of two lanes differ depends on the numbers
        "x, k = torch.randn(4, 100), m.rms_norm_kernel",
        "unfused = {'__getitem__': lambda s, g: functools.partial(k[g], enable_fp_fusion=False)}",
        "with emulator.checks('full'):",
        "    kx.rms_norm(x, x[0].clone(), backend='our_triton')",
        "    print('----', file=sys.stderr)",
        "    m.rms_norm_kernel = type('K', (), unfused)()",
        "    kx.rms_norm(x, x[0].clone(), backend='our_triton')",
    ]
    told = run(folder, "-W", "always", "-c", "\n".join(script))
    fused, unfused = told.stderr.split("----\n")
    assert told.returncode == 0 and "redundant store" in fused and "redundant store" not in unfused, told.stderr


def test_the_two_files_beside_the_package_are_well_formed(tmp_path: Path) -> None:
    for name, text in FILES.items():
        if name.endswith(".toml"):
            (tmp_path / Path(name).name).write_text(text)
    (entry,) = expected_failures.entries(tmp_path / expected_failures.NAME)
    assert entry.item == "transpose-our_cuda/plain-offsets"
    assert (
        tomllib.loads((tmp_path / resource_budgets.NAME).read_text())["variant"][0]["name"]
        == "transpose/our_cuda/plain"
    )


# --- the seam ---------------------------------------------------------------------------------------------------

KERNEL = '#include "value.cuh"\nextern "C" __global__ void put(float* y) { y[threadIdx.x] = VALUE; }\n'


def put(source: Source) -> float:
    y = torch.zeros(1)
    source.kernel("put", "y*")(1, 1, y)
    return y.item()


def test_a_header_beside_the_source_comes_first_and_a_change_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "put.cu").write_text(KERNEL)
    (tmp_path / "more" / "value.cuh").write_text("#define VALUE 2.f\n")
    assert put(Source(str(tmp_path / "put.py"), include=(tmp_path / "more",))) == 2
    (tmp_path / "value.cuh").write_text("#define VALUE 3.f\n")
    first = Source(str(tmp_path / "put.py"), include=(tmp_path / "more",))
    assert put(first) == 3
    (tmp_path / "value.cuh").write_text("#define VALUE 4.f\n")
    again = Source(str(tmp_path / "put.py"), include=(tmp_path / "more",))
    assert put(again) == 4
    assert again.options({}) != first.options({})  # a GPU's own cache of kernels sees the options alone


def test_our_headers_are_found_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "put.cu").write_text(KERNEL.replace("value.cuh", "common.cuh"))
    source = Source(str(tmp_path / "put.py"))
    y = torch.zeros(1)
    source.kernel("put", "y*", VALUE="5.f", ELEMENT="float", BLOCK=32)(1, 1, y)
    assert y.item() == 5
