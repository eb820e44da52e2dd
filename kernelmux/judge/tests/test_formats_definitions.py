"""Definitions of flashinfer-bench of the shapes that published ones have: lengths under constraints, lawful integers."""

import json

import pytest
import torch

from kernelmux.judge import formats
from kernelmux.judge.formats.bounds import expected
from kernelmux.judge.formats.projects import flashinfer_inputs
from kernelmux.judge.formats.task import FormatError
from kernelmux.judge.tests.task_files import answers, imports_undone, only, solved


@pytest.fixture(autouse=True)
def _imports_undone():
    with imports_undone():
        yield


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
    with pytest.raises(FormatError, match=r"no lengths below \d+ bytes run, and the limit is 2"):
        problem(tmp_path, told).trial(0, limit=2)


def test_flashinfer_bench_constant_axes_leave_room_for_variable_ones(tmp_path):
    told = definition(
        {"rows": None, "n": 512, "k": 256},
        {"x": (["rows", "k"], "float32"), "w": (["k", "k"], "float32")},
        "return x @ w",
    )
    trial = problem(tmp_path, told).trial(0, limit=1 << 16)  # w alone takes four times as much
    assert 1 < len(trial.args[0]) < 64 and "reduced: rows 64 ->" in trial.note


# Of the shape of a mixture of experts: its sizes stand in its text too, a weight for each expert, a scale for each block.
EXPERTS = definition(
    {
        "rows": None,
        "num_experts": 256,
        "num_local_experts": 32,
        "hidden": 7168,
        "inner": 2048,
        "hidden_blocks": 56,
        "top_k": 2,
    },
    {
        "x": (["rows", "hidden"], "float32"),
        "weights": (["num_local_experts", "inner", "hidden"], "float32"),
        "scales": (["hidden_blocks"], "float32"),
        "topk_ids": (["rows", "top_k"], "int32"),
    },
    """H = 7168
    BLOCK = 128
    assert weights.shape == (32, 2048, 7168) or (E := weights.shape[0]) == 32 and weights.shape[1] == 2048
    scaled = x * scales[: H // BLOCK].repeat_interleave(BLOCK)
    chosen = (topk_ids >> 16) % weights.shape[0]
    factors = (topk_ids & 0xFFFF).to(torch.int16).view(torch.bfloat16).to(torch.float32)
    y = [sum(f * (r @ weights[e].T).sum() for e, f in zip(es, fs)) for r, es, fs in zip(scaled, chosen, factors)]
    return scaled * torch.stack(y)[:, None]""",
)


def test_flashinfer_bench_constants_are_reduced_with_the_numbers_of_the_text(tmp_path):
    told = {**EXPERTS, "inputs": {name: EXPERTS["inputs"][name] for name in ("weights", "x", "topk_ids", "scales")}}
    told["inputs"]["topk_ids"]["description"] = "Packed: the upper 16 bits are the expert."
    trial = problem(tmp_path, told).trial(1, limit=1 << 20)
    x, weights, scales, topk_ids = trial.args  # in the order of the reference's arguments
    assert x.shape[1] == 128 * len(scales) < 7168 and weights.shape[2] == x.shape[1]
    assert len(weights) * 8 == 256 // (32 // len(weights)) and f"num_local_experts 32 -> {len(weights)}" in trial.note
    assert topk_ids.shape[1] == 2 and 0 < float((topk_ids & 0xFFFF).max()) < 0x4000
    (tmp_path / "solution.json").write_text(
        json.dumps(
            {
                "name": "s",
                "definition": "one",
                "spec": {"language": "python", "entry_point": "main.py::run"},
                "sources": [{"path": "main.py", "content": told["reference"]}],
            }
        )
    )
    got = answers(trial, solved(trial.task, tmp_path), tmp_path / "run")
    assert not expected.of(trial, 1).wrong(got)


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
