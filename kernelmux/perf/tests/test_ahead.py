"""Rows compiled without a GPU: the files are those that a process with the GPU looks for; what it misses it compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelmux.backends.cuda._launch import launch_ahead
from kernelmux.backends.triton._launch.launch import overlaps
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.session import ahead
from kernelmux.perf.tests import as_on_a_gpu
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import cards
from kernelmux.runner import gpus
from kernelmux.runner.machine import Workers

pytest.importorskip("triton")
pytest.importorskip("cupy")

OPS = ("softmax", "layer_norm_backward")  # the second with kernels that may start before the one ahead has ended


def asked(step: str, home: Path) -> dict[str, Any]:
    """What `as_on_a_gpu` prints, with the caches of this folder."""
    caches = {name: str(home / name) for name in ("CUPY_CACHE_DIR", "TRITON_CACHE_DIR", "KERNELMUX_CACHE_DIR")}
    for path in caches.values():
        Path(path).mkdir(exist_ok=True)
    own = {gpus.VARIABLE: "", gpus.BESIDE: "9.0 NVIDIA H100 80GB HBM3", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", as_on_a_gpu.__name__, step, *OPS]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | caches | own, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_gpu_finds_what_was_compiled_beside_it_and_what_was_not_it_compiles_itself(tmp_path: Path) -> None:
    without = asked("there", tmp_path)
    assert without["missing"] == without["asked"] and min(without["asked"].values()) > 1
    (tmp_path / "made").mkdir()
    made = asked("ahead", tmp_path / "made")
    assert made["rows"] and not made["errors"] and not made["lost"]
    there = asked("there", tmp_path / "made")
    assert there["asked"] == without["asked"] and there["missing"] == {"triton": 0, "cuda": 0}


def test_launchers_choose_as_on_the_card_only_while_something_is_compiled_for_it() -> None:
    row = Row("add", "x=4099 y=4099", "fp32", "triton", "blocked")
    seen: list[tuple[bool, str]] = []
    take = ahead.Inputs.laid_out

    def watched(*given: Any) -> Any:
        seen.append((overlaps(-1), cards.of(-1).key))
        return take(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead.Inputs, "laid_out", watched)
        for key in ("h100", "a100"):
            ahead.compile(row, cards.table()[key])
    assert seen == [(True, "h100"), (False, "a100")]
    assert not overlaps(-1) and launch_ahead.card() is None


def test_the_card_is_that_of_the_gpu_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.BESIDE, "8.9 NVIDIA GeForce RTX 4090")
    assert ahead.card_beside() is cards.table()["rtx4090"]
    monkeypatch.setenv(gpus.BESIDE, "9.0 NVIDIA GH200 480GB")  # not in the table: one like it
    assert ahead.card_beside().capability == (9, 0)
    monkeypatch.setenv(gpus.BESIDE, "")
    with pytest.raises(ArgumentError, match="no GPU beside this process"):
        ahead.card_beside()


def test_each_kind_of_gpu_has_workers_beside_it_that_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Workers(cpu=True, alone=True).slots(cores=4) == []  # a machine without a GPU times nothing
    names = {"NVIDIA H200": "9.0", "NVIDIA L4": "8.9"}
    found = [gpus.VisibleGpu(f"GPU-{name}", name, 80 << 30, "", number) for name, number in names.items()]
    monkeypatch.setattr(gpus, "visible", lambda: found)
    for cores, each in ((1, 1), (4, 2)):
        slots = Workers(cpu=True, alone=True, timing=True).slots(cores=cores)
        told = [(slot.card, slot.environment.get(gpus.BESIDE), slot.ends) for slot in slots if not slot.gpus]
        assert told == [("nvidia_h200", "9.0 NVIDIA H200", True), ("nvidia_l4", "8.9 NVIDIA L4", True)] * each


def test_another_cupy_is_an_error_of_the_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy.cuda import compiler

    monkeypatch.delattr(compiler, "_get_arch")
    with pytest.raises(AttributeError):
        ahead.compile(Row("add", "x=4099 y=4099", "fp32", "cuda", "scalar"), cards.table()["h100"])
    assert launch_ahead.card() is None
