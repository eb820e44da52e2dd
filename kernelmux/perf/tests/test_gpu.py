"""A whole run on a real GPU."""

import json

import pytest
import torch

from kernelmux.perf.cli import main

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_every_row_is_timed_right_and_below_its_ceiling(tmp_path):
    arguments = ["--op", "softmax", "--workload", "x=4096x4096", "--dtype", "bf16", "--samples", "10"]
    assert main.main([*arguments, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["ceilings"]["copy"] > 1e11
    assert {r["backend"] for r in found["rows"] if r["status"] == "ok"} >= {"torch_ref", "triton"}
    for row in (r for r in found["rows"] if r["status"] == "ok"):
        assert 0 < row["share"] < 1.05
        assert row["median_us"] > found["ceilings"]["gap"] * 1e6
