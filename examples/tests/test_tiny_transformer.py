"""The example trains: its loss falls, a seed settles it, its operators are ours, and its files can be drawn."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

import kernelmux as kx
from kernelmux.nn.tests.counting import counted
from kernelmux.registry.backend import lookup as registered

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]
SHORT = ["--steps", "24", "--batch", "8", "--length", "32"]


def losses(module, tmp_path, *words):
    out = tmp_path / "losses.json"
    assert module.main([*SHORT, "--out", str(out), *words]) == 0
    return json.loads(out.read_text())["losses"]


def test_the_loss_falls_and_a_seed_settles_it(example, tmp_path):
    module = example("tiny_transformer")
    first = losses(module, tmp_path)
    assert len(first) == 24 and first[-1] < 0.75 * first[0], first
    assert losses(module, tmp_path) == first
    assert losses(module, tmp_path, "--seed", "1") != first
    nudged = losses(module, tmp_path, "--nudge")
    assert nudged != first and nudged[:3] == pytest.approx(first[:3], rel=1e-5)


def test_every_operator_of_a_step_is_ours(example, monkeypatch, capsys):
    ops = ("rms_norm", "matmul", "linear", "rope", "attention", "swiglu", "add", "cross_entropy")
    called = counted(monkeypatch, *ops)
    assert example("tiny_transformer").main(["--steps", "1", "--batch", "1", "--length", "8"]) == 0
    assert called == dict(zip(ops, (5, 1, 11, 4, 2, 2, 4, 1), strict=True))
    assert "torch_ref on cpu: loss 3." in capsys.readouterr().out


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.filterwarnings("ignore:.*on the emulator")
def test_a_step_and_its_gradients_run_on_one_backend(example, tmp_path, monkeypatch, backend):
    module, words = example("tiny_transformer"), ("--steps", "2", "--batch", "1", "--length", "8", "--device", "cpu")
    monkeypatch.setattr(module, "Transformer", partial(module.Transformer, layers=1))
    with kx.record() as log:
        found = losses(module, tmp_path, *words, "--backend", backend)
    assert {entry.variant.partition("/")[0] for entry in log.entries} == {backend}
    assert {"attention", "attention_backward"} <= {entry.operator for entry in log.entries}
    # The second loss comes after an update by all gradients; bf16 rounds attention at 2^-9.
    assert found == pytest.approx(losses(module, tmp_path, *words), rel=1e-3)


def test_an_error_of_ours_takes_no_traceback(example, monkeypatch, capsys):
    def refuse(*args, **kwargs):
        raise kx.UnsupportedError("rope: no requested backend can run this call")

    monkeypatch.setattr(kx, "rope", refuse)
    assert example("tiny_transformer").main(["--steps", "1"]) == 2
    assert capsys.readouterr().err == "tiny_transformer: rope: no requested backend can run this call\n"


def test_help_says_how_it_is_used(example, capsys):
    with pytest.raises(SystemExit) as end:
        example("tiny_transformer").main(["--help"])
    told = capsys.readouterr().out
    assert end.value.code == 0
    assert all(word in told for word in ("--backend", "--compile", "--out", "examples/draw_losses.py", "log(27)"))


def test_runs_are_drawn_on_each_other(example, tmp_path, capsys):
    made, run = example("draw_losses"), {"steps": 3, "batch": 1, "length": 8, "seed": 0, "device": "cpu"}
    for name, shift in (("torch_ref", 0.0), ("triton", 1e-5)):
        text = json.dumps(run | {"backend": name, "compile": False, "losses": [3.0 + shift, 2.0, 1.0 - shift]})
        (tmp_path / f"{name}.json").write_text(text)
    files = [str(tmp_path / f"{name}.json") for name in ("torch_ref", "triton")]
    picture = tmp_path / "losses.svg"
    assert made.main([*files, "--out", str(picture)]) == 0
    drawn = picture.read_text()
    (tmp_path / "nudged.json").write_text(json.dumps(json.loads(text) | {"nudge": True}))
    assert made.main([*files, str(tmp_path / "nudged.json"), "--out", str(tmp_path / "three.svg")]) == 0
    assert "triton, eager, nudged on cpu" in (tmp_path / "three.svg").read_text()
    assert drawn.count("triton, eager on cpu") == 1 and drawn.count("torch_ref, eager on cpu") == 2
    runs = [json.loads(Path(file).read_text()) for file in files]
    (tmp_path / "record.json").write_text(json.dumps({"run": run, "runs": runs}))
    made.main([str(tmp_path / "record.json"), "--out", str(picture)])
    assert picture.read_text() == drawn


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "expected what tiny_transformer.py --out wrote, got KeyError: 'losses'"),
        ('{"losses": [1], "backend": "cuda", "compile": true, "device": "cuda", "seed": 5}', "seed: expected runs"),
    ],
)
def test_what_cannot_be_drawn_is_named(example, tmp_path, capsys, text, problem):
    good = {"losses": [1], "backend": "cuda", "compile": False, "device": "cuda", "seed": 4}
    (tmp_path / "good.json").write_text(json.dumps(good))
    (tmp_path / "odd.json").write_text(text)
    picture = tmp_path / "x.svg"
    files = [str(tmp_path / name) for name in ("good.json", "odd.json")]
    assert example("draw_losses").main([*files, "--out", str(picture)]) == 2
    assert problem in capsys.readouterr().err and not picture.exists()
