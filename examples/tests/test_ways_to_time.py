"""Ways to time a call: a run writes each of them, and what is wrong is not timed."""

import json

import pytest
import torch


@pytest.fixture
def ways(example):
    return example("ways_to_time")


def test_a_run_writes_every_way(ways, tmp_path):
    out = tmp_path / "ways.json"
    assert ways.main(["--shape", "32x64", "--rounds", "2", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert [row["name"] for row in record["rows"]][1:] == list(ways.ways(lambda: torch.zeros(1), device))
    assert all(row["us"] >= 0 and row["shape"] == "32x64" for row in record["rows"]) and record["machine"]["name"]


def test_a_wrong_result_and_a_wrong_shape_are_refused(ways, monkeypatch, capsys):
    monkeypatch.setattr(ways.kx, "softmax", lambda x, backend: 1.2 * torch.softmax(x, 1))
    assert ways.main(["--shape", "32x64"]) == 2 and "off by 0.2" in capsys.readouterr().err
    assert ways.main(["--shape", "32"]) == 2 and "expected ROWSxCOLUMNS" in capsys.readouterr().err
