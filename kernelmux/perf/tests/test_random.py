"""Random sweeps: the shapes that are drawn, the shares of the best peer, and the command."""

import io
import itertools
import json
import re
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from kernelmux.perf import peers
from kernelmux.perf.cli import main, random_sweep
from kernelmux.perf.pictures import figures
from kernelmux.perf.record import run_file
from kernelmux.perf.report import markdown, page, shares, tables
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.row_result import SecondTiming
from kernelmux.perf.sweeps.random_shapes import FP32_FLOPS, LARGEST, USUAL_FLOPS, draw, size
from kernelmux.perf.sweeps.random_texts import FAMILIES, FAMILY_OF, TEXTS
from kernelmux.perf.tests import synthetic
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError, KernelmuxError

SEEDS = 200
BACKEND = """
from kernelmux.registry.backend import Backend

BACKEND = Backend(name="theirs", summary="a test", priority=5, unavailable=lambda device: None)
"""
ADD = """
from kernelmux.registry.backend import Implementation

VARIANTS = {"right": Implementation(fn=lambda x, y: x + y, idea="")}
"""


def shapes_of(op, count=300, seed=3):
    return [case for case, _ in draw(catalog.spec(op), count, seed)]


def test_each_operator_is_in_one_family():
    assert set(TEXTS) == set(catalog.names())
    assert sum(map(len, FAMILIES.values())) == len(TEXTS)


@pytest.mark.parametrize("op", TEXTS)
def test_every_seed_gives_a_call_that_the_spec_permits(op):
    spec = catalog.spec(op)
    found = []
    for seed in range(SEEDS):
        ((case, dtype),) = draw(spec, 1, seed)
        call = spec.hypothetical(spec.case(case.text), dtype)
        assert 0 < size(call) <= LARGEST["cuda"]
        assert call.cost.flops <= (FP32_FLOPS if dtype == torch.float32 else USUAL_FLOPS)
        found.append((case.text, dtype))
    assert len(set(found)) > SEEDS * 0.8
    assert {dtype for _, dtype in found} == set(spec.dtypes)


@pytest.mark.parametrize("op", TEXTS)
def test_a_seed_gives_the_same_shapes_none_of_them_twice(op):
    spec = catalog.spec(op)
    found = draw(spec, 20, 7)
    assert found == draw(spec, 20, 7)
    assert found[:5] == draw(spec, 5, 7)
    assert len({(case.text, dtype) for case, dtype in found}) == 20
    assert found != draw(spec, 20, 8)


def test_hidden_sizes_have_any_alignment():
    lengths = [case.shapes["x"][1] for case in shapes_of("linear")]
    assert all(2000 <= n <= 20000 for n in lengths)
    assert {n % 8 for n in lengths} == set(range(8))
    assert any(n % 64 == 0 for n in lengths)
    lies = [case.turned for case in shapes_of("matmul")]
    assert {"b"} in lies and set() in lies
    assert any(case.shapes["b"][1] % 2 for case in shapes_of("matmul") if not case.turned)  # a leading dimension


def test_rows_are_few_and_many():
    rows, columns = zip(*(case.shapes["x"] for case in shapes_of("softmax", 600)), strict=True)
    assert set(rows) & set(range(1, 65)) > {1, 2, 3}
    assert 500_000 < max(rows) <= 1_000_000
    assert {n % 2 for n in columns} == {0, 1}
    vocabularies = [case.shapes["logits"][1] for case in shapes_of("cross_entropy")]
    assert {50257, 256_000} <= set(vocabularies)
    assert max(vocabularies) == 256_000


@pytest.mark.parametrize("op", ["attention", "attention_backward"])
def test_heads_of_all_depths_share_keys(op):
    asked = [(case.shapes["q"], case.shapes["k"], case.scalars) for case in shapes_of(op, 600)]
    assert {q[3] for q, _, _ in asked} == set(range(64, 257, 8))
    assert {1, 2, 4, 7, 8} == {q[1] // k[1] for q, k, _ in asked}
    assert {q[2] % 8 for q, _, _ in asked} == set(range(8))
    assert any("window" in scalars for _, _, scalars in asked)
    assert {scalars.get("causal", False) for _, _, scalars in asked} == {False, True}


def test_pages_hold_the_keys_of_a_cache():
    found = shapes_of("paged_attention")
    assert {case.shapes["k_pages"][2] for case in found} == {16, 32, 64, 128, 256}
    assert all(
        case.shapes["k_pages"][0] == case.shapes["page_table"][0] * case.shapes["page_table"][1] for case in found
    )


def test_convolutions_have_the_windows_and_strides_of_networks():
    found = shapes_of("conv2d", 600)
    assert {case.shapes["weight"][2] for case in found} == {1, 2, 3, 4, 5, 7}
    assert {case.scalars["stride"] for case in found} == {1, 2, 4}
    assert {case.scalars["dilation"] for case in found} == {1, 2}
    assert {case.channels_last for case in found} == {False, True}
    assert {3, 64, 96, 512, 768} <= {case.shapes["x"][1] for case in found}
    assert any(case.shapes["x"][2] != case.shapes["x"][3] for case in found)


def test_the_gradients_of_a_convolution_belong_to_an_image():
    spec = catalog.spec("conv2d_backward_input")
    for case in shapes_of("conv2d_backward_input", 50):
        side = spec.hypothetical(case).axes
        assert side["H"] >= 7 and side["W"] >= 7


@pytest.mark.parametrize("op", TEXTS)
def test_little_memory_gives_small_shapes(op):
    spec = catalog.spec(op)
    for case, dtype in draw(spec, 2, 1, largest=200_000):
        assert size(spec.hypothetical(case, dtype)) <= 200_000


def test_memory_for_nothing_is_an_error():
    with pytest.raises(ArgumentError, match=r"--largest: found no further conv2d in .* of at most 100 bytes"):
        draw(catalog.spec("conv2d"), 1, 1, largest=100)


def timed(op, backend, us, shape, variant="plain"):
    return replace(synthetic.row(op=op, variant=variant, us=us, workload=shape), backend=backend)


def sweep_rows():
    """Three shapes of rows and two of products: with peers, without, failed, and not run."""
    one = [timed("softmax", "torch_ref", 120, "x=1x8"), timed("softmax", "peers", 90, "x=1x8", "quack")]
    one += [timed("softmax", "cuda", 100, "x=1x8"), timed("softmax", "triton", 45, "x=1x8")]
    two = [timed("softmax", "torch_ref", 100, "x=2x8"), timed("softmax", "peers", 160, "x=2x8", "quack")]
    two += [timed("softmax", "cuda", 102, "x=2x8"), synthetic.failed(backend="triton", workload="x=2x8")]
    three = [
        timed("rms_norm", "cuda", 10, "x=3x8"),
        synthetic.failed(op="rms_norm", backend="torch_ref", workload="x=3x8"),
    ]
    three += [synthetic.skipped(op="rms_norm", backend="triton", workload="x=3x8")]
    three += [timed("rms_norm", "torch_ref", 9000, "x=3x8", "exact")]  # no form that users write: not a peer
    four = [timed("matmul", "torch_ref", 50, "a=1x8 b=8x8"), timed("matmul", "cuda", 25, "a=1x8 b=8x8")]
    five = [timed("matmul", "torch_ref", 50, "a=2x8 b=8x8"), timed("matmul", "cuda", 400, "a=2x8 b=8x8")]
    return [*one, *two, *three, *four, *five]


def test_shares_are_of_the_best_peer_by_family_and_backend():
    cuda, triton, products = sorted(
        shares.shares(sweep_rows(), FAMILY_OF), key=lambda s: (s.family != "rows", s.backend)
    )
    assert (cuda.family, cuda.backend, cuda.shapes) == ("rows", "cuda", 2)
    assert cuda.mean == pytest.approx((0.9 * (100 / 102)) ** 0.5)  # QuACK is the best peer of one, torch of the other
    assert cuda.at_least == (1, 1)
    assert (cuda.worst, cuda.worst_shape, cuda.worst_peer) == (0.9, "softmax x=1x8 bf16", "quack")
    assert (cuda.no_peer, cuda.failed, cuda.not_run) == (1, 0, 0)
    assert (triton.backend, triton.shapes, triton.at_least, triton.worst) == ("triton", 1, (1, 1), 2.0)
    assert (triton.no_peer, triton.failed, triton.not_run) == (0, 1, 1)
    assert products.mean == pytest.approx((2 / 8) ** 0.5)
    assert (products.family, products.worst, products.worst_peer) == ("products", 0.125, "torch")


def test_a_backend_without_any_peer_has_no_mean():
    (found,) = shares.shares([timed("softmax", "cuda", 100, "x=1x8")], FAMILY_OF)
    assert (found.shapes, found.no_peer, found.mean, found.worst) == (0, 1, None, None)
    assert shares.lines([found])[0][:4] == ("rows", "cuda", "0", "")


def test_a_level_is_reached_at_its_own_share():
    rows = [timed("softmax", "cuda", 100, f"x={n}x8") for n in (1, 2, 3)]
    rows += [timed("softmax", "torch_ref", us, f"x={n}x8") for n, us in ((1, 98), (2, 95), (3, 94.9))]
    assert shares.shares(rows, FAMILY_OF)[0].at_least == (1, 2)


def test_of_two_timings_the_lesser_counts():
    """A disturbed moment is in neither our time nor a peer's."""
    ours, peer = timed("softmax", "cuda", 300, "x=1x8"), timed("softmax", "torch_ref", 98, "x=1x8")
    rows = [
        replace(ours, second=SecondTiming(again_us=100.0, apart=2.0)),
        replace(peer, second=SecondTiming(again_us=150.0, apart=0.5)),
    ]
    assert shares.shares(rows, FAMILY_OF)[0].worst == 0.98


def test_every_report_has_the_shares(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "available", lambda: False)  # the charts are not what is looked at
    rows = sweep_rows()
    measured = synthetic.results(rows, shares=shares.shares(rows, FAMILY_OF))
    run_file.write(measured, tmp_path / "results.json")
    assert run_file.read(tmp_path / "results.json").shares == measured.shares
    terminal = Console(file=io.StringIO(), width=200)
    tables.random_shares(terminal, measured.shares)
    for text in (markdown.whole(measured, ""), page.html(measured), terminal.file.getvalue()):
        assert "hare of the best peer on random shapes" in text
        assert "softmax x=1x8 bf16, quack" in text
    assert "random shapes" not in markdown.whole(synthetic.results(rows), "") + page.html(synthetic.results(rows))


def asked(count=4, family=(), largest=None):
    return Namespace(random=count, family=list(family), largest=largest)


def test_a_run_has_one_variant_of_each_backend_beside_every_peer_in_turns(gpu):
    options = PerfOptions(device="cuda", peers=True)
    rows = random_sweep.rows(asked(family=["products", "rows"]), options, 5)
    groups = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row.group)]
    assert len(groups) == 8
    assert {FAMILY_OF[group[0].op] for group in groups} == {"products", "rows"}
    for group in groups:
        first = [row for row in group if not row.again]
        ours = [row.backend for row in first if row.backend != peers.NAME]
        assert {"cuda", "triton"} <= set(ours) <= {"cuda", "triton", "torch_ref"} and len(ours) == len(set(ours))
        assert {row.variant for row in first if row.backend == "torch_ref"} <= {"plain"}
        known = [v for v in registered.variants(peers.NAME, first[0].op)]
        assert [row.variant for row in first if row.backend == peers.NAME] == known
        assert {row.variant for row in group if row.again} == {row.variant for row in first if not row.problem}
    assert rows == random_sweep.rows(asked(family=["products", "rows"]), options, 5)


def test_the_operators_of_a_family_take_turns(gpu):
    rows = random_sweep.rows(asked(11, ["products"]), PerfOptions(device="cuda", backends=("cuda",)), 1)
    shapes = {row.group for row in rows}
    counted = [sum(op == group[0] for group in shapes) for op in FAMILIES["products"]]
    assert sorted(counted) == [2, 2, 2, 2, 3]
    (only,) = {row.op for row in random_sweep.rows(asked(3), PerfOptions(device="cuda", ops=("matvec",)), 1)}
    assert only == "matvec"
    of_bf16 = random_sweep.rows(asked(8, ["products"]), PerfOptions(device="cuda", dtypes=("bf16",)), 1)
    assert {row.op for row in of_bf16} == {"matmul", "linear", "matvec"}
    assert {row.dtype for row in of_bf16} == {"bf16"}


def test_an_operator_of_another_family_is_an_error():
    with pytest.raises(ArgumentError, match="--op add: expected one of --family rows"):
        random_sweep.operators(["add"], ["rows"])
    with pytest.raises(KernelmuxError, match=re.escape('unknown operator "ad"')):
        random_sweep.operators(["ad"], [])


def _status(words):
    """The exit status of a command line, of one that the parser refuses too."""
    try:
        return main.main(words)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "3"], "--seed: expected --random N beside it"),
        (["--family", "rows"], "--family: expected --random N beside it"),
        (["--largest", "1e6"], "--largest: expected --random N beside it"),
        (["--random", "0"], "expected a whole number from 1 on, got '0'"),
        (["--random", "2", "--seed", "x"], "expected a whole number from 0 on, got 'x'"),
        (["--random", "2", "--largest", "big"], "expected a number of bytes such as 2e9, got 'big'"),
        (["--random", "2", "--largest", "nan"], "expected a number of bytes such as 2e9, got 'nan'"),
        (["--random", "2", "--workload", "large"], "--random: it draws the workloads itself; leave out --workload"),
        (["--random", "2", "--sweep", "softmax:N=1..8"], "leave out --sweep"),
        (["--random", "2", "--quick", "--every-row"], "leave out --every-row, --quick"),
        (["--random", "2", "--record"], "leave out --record"),
        (["--random", "2", "--resume"], "--resume: expected the --seed of the run beside --random"),
        (["--random", "2", "--family", "row"], 'unknown family "row" in --family; did you mean "rows"?'),
        (["--random", "2", "--op", "sofmax"], 'did you mean "softmax"?'),
        (["--random", "2", "--family", "paged", "--dtype", "fp32"], "no operator of --family paged has --dtype fp32"),
        (["--random", "2", "--op", "fp8_matmul", "--dtype", "bf16"], "expected one of"),
    ],
)
def test_a_usage_error_says_what_is_expected(arguments, message, capsys, tmp_path):
    assert _status([*arguments, "--device", "cpu", "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_the_list_names_the_shapes_of_a_seed(capsys):
    def listed(*more):
        assert main.main(["--random", "2", "--op", "softmax", "--device", "cpu", "--list", *more]) == 0
        return capsys.readouterr().out

    assert listed("--seed", "4") == listed("--seed", "4")
    assert listed("--seed", "4") != listed("--seed", "5")
    assert len({listed() for _ in range(3)}) > 1  # a new seed each time


def test_a_run_without_a_gpu_reports_the_shares(tmp_path):
    env = synthetic.backend_of_their_own(tmp_path, BACKEND, ADD)
    command = [sys.executable, "-m", "kernelmux.perf", "--device", "cpu", "--op", "add", "--random", "2", "--seed", "1"]
    command += ["--backend", "theirs", "--largest", "1e5", "--samples", "5", "--out", "out"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    read = json.loads((tmp_path / "out" / "results.json").read_text())
    (found,) = read["shares"]
    by_shape: dict[str, dict[str, float]] = {}
    for row in read["rows"]:
        by_shape.setdefault(row["workload"], {})[row["backend"]] = row["median_us"]
    ratios = sorted(times["torch_ref"] / times["theirs"] for times in by_shape.values())
    assert (found["family"], found["backend"], found["shapes"]) == ("elementwise", "theirs", 2)
    assert found["worst"] == pytest.approx(ratios[0])
    assert found["mean"] == pytest.approx((ratios[0] * ratios[1]) ** 0.5)
    assert read["command"].endswith("--seed 1")
    assert "share of the best peer on random shapes" in ended.stdout
    assert "Share of the best peer" in (tmp_path / "out" / "report.md").read_text()
    assert [case.text for case, _ in draw(catalog.spec("add"), 2, 1, largest=100_000)] == list(by_shape)
