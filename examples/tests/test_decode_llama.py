"""The decoding of a Llama: every contestant is checked first and timed in every round; the cache is written."""

import json

import pytest
import torch

import kernelmux as kx

SMALL = ["--hidden", "32", "--heads", "4", "--groups", "2", "--inner", "48", "--layers", "2", "--vocabulary", "40"]
SMALL += ["--context", "6", "--batch", "3", "--device", "cpu", "--rounds", "2"]


@pytest.fixture
def decode(example):
    return example("decode_llama")


def rows(decode, tmp_path, *words):
    out = tmp_path / "decode.json"
    status = decode.main([*SMALL, "--out", str(out), *words])
    return status, {row["name"]: row for row in json.loads(out.read_text())["rows"]}


def test_ours_and_torchs_are_checked_and_timed_in_every_round(decode, tmp_path, capsys):
    status, found = rows(decode, tmp_path)
    assert status == 0 and set(found) == {"torch_eager", "torch_ref"}
    for row in found.values():
        assert len(row["times"]) == 2 and min(row["times"]) > 0
        assert 0 < row["error"] < 0.03  # bf16 rounds at 2^-9, some ten times one after another
    assert "2 layers, vocabulary 40, bfloat16; 3 sequences, context 6" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::kernelmux.EmulationWarning")
def test_kernels_decode_too(decode, tmp_path):
    status, found = rows(decode, tmp_path, "--contestants", "torch_eager", "cuda", "--rounds", "1")
    assert status == 0 and found["cuda"]["error"] < 0.03


def test_a_wrong_contestant_is_left_out_and_fails_the_run(decode, tmp_path, monkeypatch, capsys):
    fn = kx.swiglu
    monkeypatch.setattr(kx, "swiglu", lambda a, b: fn(a, b) * 1.05)
    status, found = rows(decode, tmp_path)
    assert status == 1 and found["torch_ref"]["problem"].startswith("wrong: off by")
    assert not found["torch_ref"]["times"] and found["torch_eager"]["times"]
    assert "left out: torch_ref: wrong" in capsys.readouterr().out


def test_a_step_writes_the_keys_and_values_of_its_tokens_and_takes_the_next_ones(decode):
    shape = decode.parsed(SMALL)
    for name in ("torch_eager", "torch_ref"):
        made = decode.decoder(name, shape, torch.bfloat16)
        before = [w["cache"].clone() for w in made.layers]
        logits = decode.prepared(name, made)()
        for old, w in zip(before, made.layers, strict=True):
            changed = (old != w["cache"]).any(-1)
            assert changed[:, :, -1].all() and not changed[:, :, :-1].any()
        assert made.tokens.equal(logits.argmax(-1))


def test_sizes_that_do_not_fit_are_refused(decode, capsys):
    with pytest.raises(SystemExit):
        decode.main([*SMALL, "--heads", "5"])
    assert "hidden a multiple of 2 * heads" in capsys.readouterr().err
