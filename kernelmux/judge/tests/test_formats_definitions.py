"""Definitions of flashinfer-bench of the shapes that published ones have: lengths under constraints, lawful integers."""

import json

import pytest
import torch

from kernelmux.judge import formats
from kernelmux.judge.formats.bounds import expected
from kernelmux.judge.formats.projects import flashinfer_inputs
from kernelmux.judge.formats.task import FormatError
from kernelmux.judge.tests.task_files import only


def definition(
    axes: dict[str, int | None], inputs: dict[str, tuple[list[str], str]], reference: str, *constraints: str
):
    """A definition; axes: None for a variable one."""
    return {
        "name": "one",
        "op_type": "other",
        "axes": {n: {"type": "var"} if v is None else {"type": "const", "value": v} for n, v in axes.items()},
        "inputs": {n: {"shape": shape, "dtype": dtype} for n, (shape, dtype) in inputs.items()},
        "outputs": {"y": {"shape": inputs["x"][0], "dtype": inputs["x"][1]}},
        "constraints": list(constraints),
        "reference": f"import torch\n\ndef run({', '.join(inputs)}):\n    {reference}\n",
    }


def problem(folder, told) -> formats.Problem:
    (folder / "one.json").write_text(json.dumps(told))
    return formats.problem(only("flashinfer_bench", folder))


STATE = definition(
    {"batch": None, "pool": None, "tokens": None, "wide": 512},
    {
        "x": (["batch", "tokens", "wide"], "float32"),
        "state": (["pool", "wide", "wide"], "float32"),
        "state_indices": (["batch"], "int32"),
    },
    "assert x.shape[1] > 1\n    return x + state[state_indices.long()][:, :1]",
    "tokens > 1",
)


def test_flashinfer_bench_states_are_distinct_and_lengths_keep_constraints(tmp_path):
    trial = problem(tmp_path, STATE).trial(4, limit=1 << 20)
    x, state, indices = trial.args
    assert x.shape[1] == 2 and len(state) >= len(x) and "pool 64 -> " in trial.note
    assert len(indices.unique()) == len(x) and int(indices.max()) < len(state)
    expected.of(trial, 4)


def test_flashinfer_bench_lengths_that_follow_others_end(tmp_path):
    told = definition(
        {"batch_size": None, "len_indptr": None, "pages": None, "page_size": 16, "wide": 4096, "topk": 100},
        {"x": (["batch_size", "wide"], "float32"), "kv_indptr": (["len_indptr"], "int32")},
        "return x * (kv_indptr.diff()[:, None] + 1)",
        "topk <= pages * page_size",
    )
    axes = flashinfer_inputs.DefinitionAxes(told)
    lengths = axes.lengths({"batch_size": 3, "pages": 1})
    assert (lengths["len_indptr"], lengths["pages"]) == (4, 7)
    seen = 0
    while (shorter := axes.halved(lengths)) is not None:
        lengths, seen = shorter, seen + 1
    assert seen < 10 and (lengths["batch_size"], lengths["len_indptr"], lengths["pages"]) == (1, 2, 7)
    with pytest.raises(FormatError, match=r"no lengths below \d+ bytes run, and the limit is 128"):
        problem(tmp_path, told).trial(0, limit=128)


def test_flashinfer_bench_constant_axes_leave_room_for_variable_ones(tmp_path):
    told = definition(
        {"rows": None, "n": 512, "k": 256},
        {"x": (["rows", "k"], "float32"), "w": (["k", "k"], "float32")},
        "return x @ w",
    )
    trial = problem(tmp_path, told).trial(0, limit=1 << 16)  # w alone takes four times as much
    assert 1 < len(trial.args[0]) < 64 and "reduced: rows 64 ->" in trial.note


def test_flashinfer_bench_is_reduced_where_a_reference_goes_step_by_step(tmp_path):
    told = definition(
        {"rows": None}, {"x": (["rows"], "float32")}, "return torch.stack([a * b * 2 for a in x for b in x])"
    )
    trial = problem(tmp_path, told).trial(0, limit=1 << 20)
    assert "reduced: rows 64 -> 16" in trial.note or len(trial.args[0]) < 32


def test_flashinfer_bench_integers_are_lawful(tmp_path):
    told = definition(
        {
            "batch": None,
            "total": None,
            "len": None,
            "num_pages": None,
            "page_size": 8,
            "max_num_pages": None,
            "max_seq_len": 5,
        },
        {
            "x": (["total"], "float32"),
            "qo_indptr": (["len"], "int32"),
            "cu_seqlens": (["len"], "int64"),
            "kv_last_page_len": (["batch"], "int32"),
            "seq_lens": (["batch"], "int32"),
            "positions": (["batch"], "int64"),
            "sparse_indices": (["batch"], "int32"),
            "kv_indices": (["batch"], "int32"),
        },
        "return x",
        "total == qo_indptr[-1].item()",
        "total == cu_seqlens[-1].item()",
    )
    axes = {"batch": 500, "total": 40, "len": 9, "num_pages": 3, "page_size": 8, "max_num_pages": 2, "max_seq_len": 5}
    made = flashinfer_inputs.DrawnInputs(told, axes, 1)
    drawn = {name: made.draw(name) for name in told["inputs"]}
    assert torch.equal(drawn["qo_indptr"].long(), drawn["cu_seqlens"])  # all of a call cut at the same shares
    assert (
        drawn["cu_seqlens"][0] == 0 and drawn["cu_seqlens"][-1] == 40 and bool((drawn["cu_seqlens"].diff() >= 0).all())
    )
    for name, low, high in (
        ("kv_last_page_len", 1, 8),
        ("seq_lens", 1, 16),
        ("positions", 0, 4),
        ("sparse_indices", 0, 23),
        ("kv_indices", 0, 2),
    ):
        assert (int(drawn[name].min()), int(drawn[name].max())) == (low, high), name


def test_flashinfer_bench_random_definitions_are_out_of_scope(tmp_path):
    told = definition({"rows": None}, {"x": (["rows"], "float32")}, "return torch.multinomial(x.softmax(0), 3)")
    (tmp_path / "one.json").write_text(json.dumps(told))
    assert only("flashinfer_bench", tmp_path).scope.startswith("random")
