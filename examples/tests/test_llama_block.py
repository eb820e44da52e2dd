"""The timing of a block: every contestant is checked first, runs in every round, and is reported."""

import json

import pytest
import torch

import kernelmux as kx

SMALL = ["--hidden", "32", "--heads", "4", "--groups", "2", "--inner", "48", "--batch", "1", "--length", "16"]
SMALL += ["--device", "cpu", "--rounds", "4", "--warmup", "1"]


@pytest.fixture
def block(example):
    return example("llama_block")


def rows(block, tmp_path, *words):
    out = tmp_path / "block.json"
    status = block.main([*SMALL, "--out", str(out), *words])
    return status, {row["name"]: row for row in json.loads(out.read_text())["rows"]}


def test_ours_and_torchs_are_checked_and_timed_in_every_round(block, tmp_path, capsys):
    status, found = rows(block, tmp_path)
    assert status == 0 and set(found) == {"torch_eager", "torch_ref"}
    for row in found.values():
        assert len(row["times"]) == 4 and min(row["times"]) > 0
        assert 0 < row["error"] < 0.03  # bf16 rounds at 2^-9, some ten times one after another
    told = capsys.readouterr().out
    assert "100%" in told and "hidden 32, 4/2 heads, inner 48, 1 x 16 tokens, bfloat16" in told


def test_a_wrong_contestant_is_left_out_and_fails_the_run(block, tmp_path, monkeypatch, capsys):
    fn = kx.swiglu
    monkeypatch.setattr(kx, "swiglu", lambda a, b: fn(a, b) * 1.05)
    status, found = rows(block, tmp_path)
    assert status == 1 and found["torch_ref"]["problem"].startswith("wrong: off by")
    assert not found["torch_ref"]["times"] and found["torch_eager"]["times"]
    assert "left out: torch_ref: wrong" in capsys.readouterr().out


def test_a_wrong_gradient_alone_is_found(block, tmp_path, monkeypatch):
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g / 2

    fn = kx.rope
    monkeypatch.setattr(kx, "rope", lambda x, cos, sin: Halved.apply(fn(x, cos, sin)))
    _, found = rows(block, tmp_path)
    assert found["torch_ref"]["problem"].startswith("wrong")


def test_a_compiled_contestant_runs_on_the_backend_of_its_name(block, tmp_path, monkeypatch):
    compiled, asked = [], []

    def fn(module):
        compiled.append(type(module).__name__)
        return lambda *values: (asked.append(kx.which("swiglu", values[0], values[0])), module(*values))[1]

    monkeypatch.setattr(torch, "compile", fn)
    status, found = rows(block, tmp_path, "--contestants", "torch_eager", "auto_compile")
    assert status == 0 and len(found["auto_compile"]["times"]) == 4
    assert compiled == ["Block"] and set(asked) == {"torch_ref/exact"}


def test_who_cannot_take_part_is_named(block, tmp_path, capsys):
    status, found = rows(block, tmp_path, "--contestants", "torch_eager", "liger")
    assert status == 0 and "liger" in found["liger"]["problem"].lower()
    assert f"left out: liger: {found['liger']['problem']}" in capsys.readouterr().out


def test_sizes_that_do_not_fit_are_refused(block, capsys):
    with pytest.raises(SystemExit):
        block.main([*SMALL, "--heads", "5"])
    assert "hidden a multiple of 2 * heads" in capsys.readouterr().err
