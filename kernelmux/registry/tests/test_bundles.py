"""Kept calls: what lies in the folder, and the command that runs it again."""

import os
import subprocess
import sys

import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import judge
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import repro_bundle
from kernelmux.registry.cli import rerun

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def test_strided_expanded_and_unaligned_inputs_are_kept_as_they_lie():
    base = torch.randn(13)
    for x in (base[1:].view(3, 4), torch.randn(8, 3).t()[:, ::2], torch.randn(1, 4).expand(3, 4), torch.tensor(2.0)):
        again = rerun.unpacked(repro_bundle._packed(x), torch.device("cpu"))
        assert torch.equal(again, x) and again.stride() == x.stride()
        assert again.data_ptr() % 16 == x.data_ptr() % 16


def test_the_command_refuses_what_is_no_kept_call(tmp_path, capsys):
    assert rerun.main([str(tmp_path)]) == 2
    assert "expected a folder with call.json, inputs.pt and outputs.pt" in capsys.readouterr().err


def test_the_command_runs_a_kept_call_in_a_process_of_its_own(tmp_path, monkeypatch):
    """With a result that was wrong when it was kept, of a backend that is right."""
    monkeypatch.setenv(repro_bundle.VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(repro_bundle, "_kept", {})
    exact = registered.variants("torch_ref", "softmax")["exact"]
    call = catalog.spec("softmax").bind(X)
    wrong = judge.Result("torch_ref/exact", exact, (X,))
    folder, lack = repro_bundle.keep(call, wrong, None, judge.judge(call, wrong, None))
    assert folder and not lack
    command = (tmp_path / "kept" / folder / "finding.txt").read_text().splitlines()[-1].split()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, *command[1:]], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "torch_ref/exact: other bits than were kept" in done.stdout, done.stderr
    assert "within the bound" in done.stdout
