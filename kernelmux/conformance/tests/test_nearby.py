"""Trials near another one."""

import torch

from kernelmux.conformance.checks import scalars
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.variations import neighbouring_trials
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered


def _probe(op: str) -> Probe:
    variant, found = [*registered.variants("torch_ref", op).items()][-1]
    return Probe(catalog.spec(op), "state", "torch_ref", variant, found, Options())


def _trial(probe: Probe, text: str, dtype: torch.dtype = torch.float32) -> Trial:
    return probe.make(probe.spec.case(text), dtype)


def test_all_scalars_take_other_values() -> None:
    probe = _probe("gelu")
    assert neighbouring_trials.otherwise(probe, _trial(probe, "x=4")).values[1] == "tanh"
    assert neighbouring_trials.otherwise(probe, _trial(probe, "x=4 approximate=tanh")).values[1] == "none"
    transpose = _probe("transpose")
    trial = _trial(transpose, "x=3x4")
    assert neighbouring_trials.otherwise(transpose, trial) is trial


def test_a_call_with_other_scalars_has_long_sums() -> None:
    probe = _probe("conv2d_backward_input")
    (made,) = scalars._long_sums(probe)
    assert made.call.scalars["stride"] != (1, 1) and neighbouring_trials.terms(made.call) >= scalars.LONG
    assert not list(scalars._long_sums(_probe("transpose")))


def test_lengths_that_the_operator_refuses_give_no_trial() -> None:
    probe = _probe("attention")
    trial = _trial(probe, "q=1x2x5x64 k=1x2x7x64 v=1x2x7x64 causal=True", torch.float16)
    lengths = {axis.letter: axis for axis in neighbouring_trials.axes(probe, trial)}
    assert neighbouring_trials.resized(probe, trial, {lengths["H"]: 3}) is None  # H must be a multiple of G
    made = neighbouring_trials.resized(probe, trial, {lengths["M"]: 9})
    assert made is not None and made.values[0].shape == (1, 2, 9, 64)


def test_one_length_for_all_axes() -> None:
    probe = _probe("transpose")
    made = neighbouring_trials.square(probe, _trial(probe, "x=3x4"))
    assert made is not None and made.values[0].shape == (neighbouring_trials.SQUARE, neighbouring_trials.SQUARE)
    vector = _probe("add")
    assert neighbouring_trials.square(vector, _trial(vector, "x=5 y=5")) is None


def test_the_largest_of_each_input_and_the_longest_axes() -> None:
    trials = list(neighbouring_trials.largest(_probe("rms_norm")))
    assert {t.text.split(" eps")[0] for t in trials} >= {"x=37x1000 weight=1000", "x=1x16392 weight=16392"}
    assert len({t.text for t in trials}) == len(trials)
    assert all(t.values[1].numel() <= 4096 for t in neighbouring_trials.largest(_probe("rms_norm"), 4096))


def test_indices_of_the_ends_of_their_axis() -> None:
    """The last two places, the middle and an ignored row; of a single index the last place."""
    probe = _probe("cross_entropy")
    several, one = _trial(probe, "logits=5x100 target=5"), _trial(probe, "logits=1x100 target=1")
    ends = neighbouring_trials.at_ends(several)["target"].tolist()
    assert ends[:3] + ends[4:] == [99, -100, 50, 98] and ends[3] == several.tensors["target"][3]
    assert neighbouring_trials.at_ends(one)["target"].tolist() == [99]
