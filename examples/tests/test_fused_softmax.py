"""The comparison of fused and unfused softmax: everything is checked, counted and written."""

import json

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROWS, COLUMNS = 32, 64


class Traffic(TorchDispatchMode):
    """Elements that each call of torch reads and writes."""

    def __init__(self):
        super().__init__()
        self.read = self.written = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.read += sum(a.numel() for a in args if isinstance(a, torch.Tensor))
        self.written += out.numel()
        return out


@pytest.fixture
def fused(example):
    return example("fused_softmax")


def test_the_count_is_that_of_the_calls(fused):
    x = torch.randn(ROWS, COLUMNS)
    with Traffic() as traffic:
        fused.five_calls(x)
    assert traffic.read == 5 * ROWS * COLUMNS + 2 * ROWS and traffic.written == 3 * ROWS * COLUMNS + 2 * ROWS
    (moved,) = (one.moved for one in fused.contestants(COLUMNS, "cpu") if one.name == "five torch calls")
    assert moved * ROWS * COLUMNS == traffic.read + traffic.written


def test_a_run_writes_every_row(fused, tmp_path):
    out = tmp_path / "times.json"
    assert fused.main(["--shape", "32x64", "--rounds", "2", "--dtype", "bf16", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == ["five torch calls", "torch.softmax", "copy"]
    assert all(row["us"] > 0 and row["shape"] == "32x64" for row in rows)


def test_a_wrong_result_and_a_wrong_shape_are_refused(fused, monkeypatch, capsys):
    monkeypatch.setattr(fused, "five_calls", lambda x: 1.2 * torch.softmax(x, 1))
    assert fused.main(["--shape", "32x64", "--dtype", "fp32"]) == 2
    assert "five torch calls: off by 0.2" in capsys.readouterr().err
    assert fused.main(["--shape", "32"]) == 2 and "expected ROWSxCOLUMNS" in capsys.readouterr().err
