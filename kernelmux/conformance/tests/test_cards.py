"""A suite that runs as a card: the emulator stands for it, in every process, and records stay out of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelmux.conformance.cli import arguments
from kernelmux.conformance.cli.main import main
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import tested_backends, time_budget
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.verified import ledger
from kernelmux.emulator import nvrtc
from kernelmux.registry.cli import target_device
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import cards

COMPILES = pytest.mark.skipif(nvrtc.unavailable() is not None, reason="needs NVRTC")
ADD = ("--op", "add", "--backend", "cuda", "--check", "accuracy", "--tier", "smoke")


@COMPILES
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_run_as_a_card_says_so_and_leaves_nothing_behind(
    processes: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cards.VARIABLE, raising=False)
    before = cards.emulated()
    assert main([*ADD, "--card", "rtx4090", "-n", processes, "--out", str(tmp_path)]) == 0
    assert "cuda emulated on the CPU as NVIDIA GeForce RTX 4090" in " ".join(capfd.readouterr().out.split())
    assert cards.emulated() is before and cards.VARIABLE not in os.environ


def test_processes_that_start_inside_stand_for_the_card_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cards.VARIABLE, "a100")
    cards.reread()
    code = "from kernelmux.registry.util import cards; print(cards.emulated().key)"
    with target_device.standing("8.9", "--card") as card:
        assert card is cards.emulated() and card is not None and card.key == "rtx4090"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "rtx4090\n"
    assert os.environ[cards.VARIABLE] == "a100" and cards.emulated().key == "a100"


def test_failures_are_shown_again_with_the_card_and_no_record_says_less_is_to_be_asked() -> None:
    words = ["--card", "sm_89", "--tier", "smoke", "--program", "suite"]
    with target_device.standing("sm_89", "--card"):
        chosen = arguments.options_of(arguments.parser().parse_args(words))
    assert (chosen.card, chosen.program, chosen.verified) == ("rtx4090", "suite --card sm_89", ())
    assert tested_backends.place(chosen, "cuda") == "emulated on the CPU as NVIDIA GeForce RTX 4090"
    plain = arguments.options_of(arguments.parser().parse_args(words[2:]))
    assert plain.verified and tested_backends.place(plain, "torch_ref") == "on the CPU"


def test_what_is_asked_in_any_case_is_the_rung_that_the_card_picks() -> None:
    items = [Item("matmul", "cuda", variant, "accuracy") for variant in ("tensor_cores", "wgmma")]
    assert [time_budget._picked(item) for item in items] == [False, True]
    with cards.standing_for("rtx4090"):
        assert [time_budget._picked(item) for item in items] == [True, False]


def test_a_gpu_that_stands_for_a_card_verifies_nothing() -> None:
    with pytest.raises(ArgumentError, match="--record: the GPU stands for a lesser card"):
        ledger.check_recordable(Options(device="cuda", card="a100"))


def test_a_gpu_stands_for_no_newer_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    with pytest.raises(ArgumentError, match="--card: expected a card of at most sm_90, as here, got b200, sm_100"):
        target_device.standing("b200", "--card", gpu=True).__enter__()
    with target_device.standing("a100", "--card", gpu=True):
        assert os.environ[cards.AS_VARIABLE] == "a100"
    assert cards.AS_VARIABLE not in os.environ
