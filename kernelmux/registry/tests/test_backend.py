"""The hash over a backend's sources, by which records know that they are stale."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelmux.registry.backend import lookup as registered


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A backend in a folder of its own."""
    folder = tmp_path / "hashed_backend"
    folder.mkdir()
    for name in (
        "__init__.py",
        "softmax.py",
        "softmax.cu",
        "softmax_rows.cu",
        "add.py",
        "_launch.py",
        "common.cuh",
        "_launch_emulated.py",
        "transpose.py",
        "transpose_tiled.cu",
        "_other.py",
        "inner.cuh",
        "other.cuh",
        "softmax_backward.py",
        "softmax_backward.cu",
        "softmax_backward_rows.cu",
        "matmul/__init__.py",
        "matmul/_tiles.py",
        "matmul/_spaces.py",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"x = '{name}'\n")
    (folder / "softmax.py").write_text(
        "from hashed_backend._launch import x\nfrom hashed_backend import transpose\nROWS = 'softmax_rows.cu'\n"
        "from hashed_backend.matmul._tiles import x\n"
    )
    (folder / "softmax.cu").write_text('#include "common.cuh"\n#include <cuda_fp16.h>\n')
    (folder / "common.cuh").write_text('  # include "inner.cuh"\n')
    (folder / "transpose.py").write_text("def f():\n    return Source(__file__, 'transpose_tiled.cu')\n")
    (folder / "_launch.py").write_text("def f():\n    from hashed_backend._launch_emulated import x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registered, "_packages", lambda: {"hashed": "hashed_backend"})
    yield folder
    sys.modules.pop("hashed_backend", None)


@pytest.mark.parametrize(
    "name",
    [
        "softmax.py",
        "softmax.cu",
        "softmax_rows.cu",
        "_launch.py",
        "common.cuh",
        "inner.cuh",
        "transpose.py",
        "transpose_tiled.cu",
        "matmul/_tiles.py",
    ],
)
def test_what_an_operator_is_made_of_counts(home: Path, name: str) -> None:
    before = registered.source_hash("hashed", "softmax")
    with (home / name).open("a") as file:
        file.write("y = 1\n")
    assert registered.source_hash("hashed", "softmax") != before


@pytest.mark.parametrize(
    "name",
    [
        "__init__.py",
        "add.py",
        "_launch_emulated.py",
        "_other.py",
        "other.cuh",
        "softmax_backward.py",
        "softmax_backward.cu",
        "softmax_backward_rows.cu",
        "matmul/__init__.py",
        "matmul/_spaces.py",
    ],
)
def test_other_operators_and_what_never_runs_on_a_gpu_do_not(home: Path, name: str) -> None:
    before = registered.source_hash("hashed", "softmax")
    with (home / name).open("a") as file:
        file.write("y = 1\n")
    assert registered.source_hash("hashed", "softmax") == before


@pytest.mark.parametrize("name", ["matmul/__init__.py", "matmul/_tiles.py", "matmul/_spaces.py"])
def test_all_files_of_its_own_folder_count(home: Path, name: str) -> None:
    before = registered.source_hash("hashed", "matmul")
    with (home / name).open("a") as file:
        file.write("y = 1\n")
    assert registered.source_hash("hashed", "matmul") != before
