"""The training of a Llama says what it needs; its times are of a GPU."""

import sys

import pytest
import torch

pytest.importorskip("transformers", reason="bazel/requirements.lock has it")


def test_without_a_gpu_it_says_so(monkeypatch, example):
    train_llama = example("train_llama")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["train_llama"])
    with pytest.raises(SystemExit, match="expected a GPU, got none"):
        train_llama.main()
