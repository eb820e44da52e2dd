"""The CUDA row family: how rows are dealt to threads, and long rows that start misaligned."""

from __future__ import annotations

import math
import re
from itertools import product

import pytest
import torch

from kernelmux import emulator
from kernelmux.backends.cuda import (
    add_rms_norm_backward,
    layer_norm,
    layer_norm_backward,
    log_softmax_backward,
    rms_norm,
    rms_norm_backward,
    softmax,
)
from kernelmux.backends.cuda._families import row_gradients, rows
from kernelmux.backends.cuda._families.row_gradients import gradient_plan
from kernelmux.backends.cuda._families.rows import RowPlan, RowWork, cluster_plan, row_plan, row_width
from kernelmux.backends.cuda.rms_norm import rms_norm_registers
from kernelmux.backends.cuda.softmax import softmax_cluster
from kernelmux.backends.cuda.softmax_backward import softmax_backward
from kernelmux.conformance.tests.launches import launched, ptx
from kernelmux.emulator import nvrtc, recorder
from kernelmux.registry.call import dispatch
from kernelmux.registry.util import cards

LENGTHS = (1, 2, 7, 31, 33, 100, 127, 515, 768, 1000, 1025, 4099, 5000, 5120, 7168, 8191, 9001, 12288, 18432, 32768)
LONG = (20003, 32769, 50257, 65536, 100000, 131072, 262144)
OPS = (rms_norm_backward._GRADIENTS, layer_norm_backward._GRADIENTS, add_rms_norm_backward._GRADIENTS)
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def widths(n: int, itemsize: int) -> list[int]:
    return [w for w in (1, 2, 4, 8) if n % w == 0 and w * itemsize <= 16]


def check(plan: RowPlan, n: int) -> None:
    part = plan.group * plan.vectors * plan.width
    assert part * plan.cluster >= n, "the row fits"
    assert plan.threads <= 1024
    assert plan.threads * plan.blocks <= 2048
    last = n - part * (plan.cluster - 1)  # columns of the last block
    assert plan.inside <= plan.vectors
    assert not plan.inside or plan.inside * plan.group * plan.width <= last, "what is inside lies in the row"


@pytest.mark.parametrize("itemsize", [2, 4])
def test_a_plan_holds_its_row(itemsize: int) -> None:
    for n in LENGTHS:
        for width in widths(n, itemsize):
            check(row_plan(n, itemsize, width), n)
            check(cluster_plan(n, itemsize, width), n)
    for n, width in product(LONG, (1, 2, 4)):
        if n % width == 0:
            check(cluster_plan(n, itemsize, width), n)


@pytest.mark.parametrize("n", [5000, 5120, 7168, 8192, 12288, 16384, 18432])
def test_few_threads_of_a_block_idle(n: int) -> None:
    plan = row_plan(n, 2, 8)
    slots = plan.group * plan.vectors * plan.width
    assert slots - n <= 0.03 * n


def test_peeled_vectors_lie_inside_wherever_the_row_starts() -> None:
    for n, itemsize in product((8191, 9001, 20003, 50257, 262143), (2, 4)):
        width = 16 // itemsize
        plan = cluster_plan(n, itemsize, width, peeled=True)
        part = plan.group * plan.vectors
        units = n // width - 1
        assert width - 1 + units * width <= n, "wherever the row starts"
        assert part * plan.cluster >= units
        assert not plan.inside or plan.inside * plan.group <= units - part * (plan.cluster - 1)


@pytest.mark.parametrize(
    ("n", "dtype", "weights", "found"),
    [
        (8000, torch.bfloat16, 0, (8, False)),
        (8001, torch.bfloat16, 0, (8, True)),
        (8001, torch.float32, 2, (4, True)),
        (513, torch.bfloat16, 1, (4, True)),
        (513, torch.bfloat16, 2, (1, False)),
        (33, torch.bfloat16, 0, (1, False)),
        (1026, torch.bfloat16, 0, (2, False)),
        (2050, torch.bfloat16, 0, (8, True)),
        (2050, torch.bfloat16, 1, (2, False)),
        (4100, torch.bfloat16, 0, (4, False)),
        (1025, torch.float32, 0, (4, True)),
        (1025, torch.float32, 2, (1, False)),
    ],
)
def test_rows_of_odd_lengths_are_peeled_where_that_pays(
    n: int, dtype: torch.dtype, weights: int, found: tuple[int, bool]
) -> None:
    assert rows.accesses((torch.empty(2, n, dtype=dtype),), n, weights) == found


@needs_nvrtc
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [65, 131, 1025, 8001, 8003])
def test_rows_that_start_anywhere_are_right(n: int, dtype: torch.dtype) -> None:
    """Nine rows of an odd length start at every distance from an aligned address."""
    rng = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(9, n, generator=rng).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(n, generator=rng).to(dtype) for _ in range(2))
    tolerance = max(2 * torch.finfo(dtype).eps, 1e-5)
    weights = torch.softmax(x.double(), -1)
    rms = torch.nn.functional.rms_norm(x.double(), (n,), weight.double(), 1e-5)
    layer = torch.nn.functional.layer_norm(x.double(), (n,), weight.double(), bias.double(), 1e-5)
    for walk in ("registers", "cluster", "looped"):
        if walk == "cluster" and n < 1000:
            continue
        y = softmax._ROWS.run(walk, (x,), (1.0, math.log2(math.e)))[0]
        assert torch.allclose(y.double(), weights, rtol=tolerance, atol=0)
        want = y.double() * (grad.double() - (grad.double() * y.double()).sum(-1, keepdim=True))
        assert torch.allclose(softmax_backward(walk, grad, y, 1, 1.0).double(), want, rtol=tolerance, atol=1e-7)
        assert torch.allclose(
            rms_norm._ROWS.run(walk, (x, weight), (1e-5,))[0].double(), rms, rtol=tolerance, atol=1e-5
        )
        got = layer_norm.layer_norm(walk, x, weight, bias, 1e-5).double()
        assert torch.allclose(got, layer, rtol=tolerance, atol=tolerance)


@needs_nvrtc
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [8192, 8003])
def test_long_rows_are_in_parts(n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two launches, of which the second needs what the first found of all parts of a row."""
    monkeypatch.setattr(rows, "_LONGEST", 4096)
    monkeypatch.setattr(rows, "_PART_BLOCK", 64)
    cards.forget()
    rng = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(3, n, generator=rng).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(n, generator=rng).to(dtype) for _ in range(2))
    tolerance = max(2 * torch.finfo(dtype).eps, 1e-5)
    with recorder() as log, emulator.checks("full"):
        y = softmax._ROWS.run("looped", (x,), (1.0, math.log2(math.e)))[0].double()
        got = layer_norm.layer_norm("looped", x, weight, bias, 1e-5).double()
        back = softmax_backward("looped", grad, y.to(dtype), 1, 1.0).double()
    cards.forget()
    assert [launch.kernel.rpartition("_")[2] for launch in log] == ["parts", "results"] * 3
    assert math.prod(log[0].grid) > 3
    assert torch.allclose(y, torch.softmax(x.double(), -1), rtol=tolerance, atol=0)
    want = torch.nn.functional.layer_norm(x.double(), (n,), weight.double(), bias.double(), 1e-5)
    assert torch.allclose(got, want, rtol=tolerance, atol=tolerance)
    want = y * (grad.double() - (grad.double() * y).sum(-1, keepdim=True))
    assert torch.allclose(back, want, rtol=tolerance, atol=1e-7)


@needs_nvrtc
def test_weights_of_peeled_rows_are_whole_vectors() -> None:
    """Only columns beside them are read alone: one of a thread, of x and of the weight."""
    x, weight = torch.empty(9, 8001, dtype=torch.bfloat16), torch.empty(8001, dtype=torch.bfloat16)
    loads = re.findall(r"ld\.global\S*\.([bu]16|v4\.[bu]32)", ptx(launched("rms_norm", "cuda/registers", x, weight)))
    assert loads.count("v4.u32") + loads.count("v4.b32") == 3 * 4, "of x, and two of weights"
    assert len(loads) == 3 * 4 + 2


@needs_nvrtc
def test_gradients_beside_a_weight_that_starts_misaligned_are_not_peeled() -> None:
    rng = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(9, 2051, generator=rng) for _ in range(2))
    weight = torch.randn(2052, generator=rng)[1:]
    exact, w = x.double().requires_grad_(), weight.double().requires_grad_()
    torch.nn.functional.rms_norm(exact, (2051,), w, 1e-5).backward(grad.double())
    for variant in ("pipelined", "two_pass"):
        with emulator.checks("full"):
            got = rms_norm_backward._GRADIENTS.run(variant, (grad, x), weight, 1e-5)
        assert exact.grad is not None and w.grad is not None
        assert torch.allclose(got[0].double(), exact.grad, atol=1e-5)
        assert torch.allclose(got[1].double(), w.grad, atol=1e-4)


@needs_nvrtc
def test_rows_of_a_view_that_starts_misaligned_are_not_peeled() -> None:
    x = torch.randn(3 * 8001 + 1, generator=torch.Generator().manual_seed(0))[1:].view(3, 8001)
    assert rows.accesses((x,), 8001, 0) == (1, False)
    assert torch.allclose(softmax_cluster(x, 1, 1.0), torch.softmax(x, -1), rtol=1e-5, atol=0)


def test_threads_that_hold_four_vectors_keep_their_registers() -> None:
    for vectors, blocks in ((2, 3), (4, 2)):
        work = RowWork(8, 4096 * vectors, 1, torch.bfloat16, 8, 0)
        kernel = log_softmax_backward._ROWS.kernel(
            "registers", "resident", work, GROUP=512, MIN_BLOCKS=2, VECTORS=vectors
        )
        assert kernel.defines["MIN_BLOCKS"] == blocks


@pytest.mark.parametrize(
    ("n", "threads", "vectors", "hold"),
    [
        (2048, 64, 4, False),
        (4096, 256, 2, True),
        (5120, 320, 2, True),
        (8192, 512, 2, True),
        (9216, 256, 5, False),
        (12288, 256, 6, False),
        (18432, 768, 3, False),
    ],
)
def test_gradients_have_more_threads_for_rows_of_middle_length(n: int, threads: int, vectors: int, hold: bool) -> None:
    plan, holds = gradient_plan(n, 2, 8)
    assert (plan.group, plan.vectors, holds) == (threads, vectors, hold)


@needs_nvrtc
def test_blocks_of_a_cluster_wait_for_what_they_are_sent() -> None:
    """And not for a fence, which a barrier of the cluster that releases what was written needs."""
    text = ptx(launched("softmax", "cuda/cluster", torch.empty(2, 65536, dtype=torch.bfloat16)))
    assert "st.async" in text and "barrier.cluster.arrive.relaxed" in text
    assert "barrier.cluster.arrive.release" not in text


@needs_nvrtc
def test_what_is_read_of_large_inputs_is_the_last_to_leave_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(8192, dtype=torch.bfloat16)
    for count, hint in ((2, False), (16384, True)):
        x = torch.empty(count, 8192, dtype=torch.bfloat16)
        assert ("L2::cache_hint" in ptx(launched("rms_norm", "cuda/registers", x, weight))) == hint
    monkeypatch.setattr(rows, "_lasting", lambda x, inputs: True)
    x = torch.randn(3, 8192, generator=torch.Generator().manual_seed(0)).bfloat16()
    want = torch.nn.functional.rms_norm(x.double(), (8192,), eps=1e-5)
    assert torch.allclose(rms_norm_registers(x, weight, 1e-5).double(), want, rtol=2**-7, atol=0)


@needs_nvrtc
@pytest.mark.parametrize("variant", ["pipelined", "two_pass"])
def test_sums_of_gradients_start_while_rows_are_walked(variant: str) -> None:
    """They wait for the walk themselves, which says when they may start."""
    x, weight = torch.empty(16, 4096, dtype=torch.bfloat16), torch.empty(4096, dtype=torch.bfloat16)
    with recorder(run=False) as log:
        dispatch.function("rms_norm_backward")(x, x, weight, backend=f"cuda/{variant}")
    assert len(log) == 2
    walk, total = ptx(log[-2]), ptx(log[-1])
    assert "griddepcontrol.launch_dependents" in walk and "griddepcontrol.wait" in total


@pytest.mark.parametrize(
    ("name", "mebibytes"), [("h100", 256), ("h200", 256), ("rtx3090", 32), ("rtx4090", 512), ("b200", 512)]
)
def test_what_lasts_is_several_times_as_large_as_l2(name: str, mebibytes: int) -> None:
    with cards.standing_for(name):
        assert rows._lasting(torch.empty(mebibytes << 20, dtype=torch.int8))
        assert not rows._lasting(torch.empty((mebibytes << 20) - 1, dtype=torch.int8))


@pytest.mark.parametrize(("name", "mebibytes"), [("h100", 75), ("h200", 90), ("rtx4090", 512)])
def test_two_inputs_last_where_they_are_large_together(name: str, mebibytes: int) -> None:
    with cards.standing_for(name):
        assert rows._lasting(torch.empty(mebibytes << 20, dtype=torch.int8), 2)
        assert not rows._lasting(torch.empty((mebibytes << 20) - 1, dtype=torch.int8), 2)


@pytest.mark.parametrize(
    ("name", "walk"), [("t4", "looped"), ("rtx4090", "looped"), ("h200", "cluster"), ("gb10", "cluster")]
)
def test_long_rows_are_in_clusters_where_there_are_some(name: str, walk: str) -> None:
    with cards.standing_for(name) as card:
        assert rows._fastest(50257, 2, 1, card.capability) == walk
        assert rows._fastest(32768, 2, 1, card.capability) == "registers"
        assert rows._fastest(32767, 2, 1, card.capability, divides=True) == {"looped": "registers"}.get(walk, walk)
        assert rows._fastest(2**19, 4, 2, card.capability) == "looped"


@pytest.mark.parametrize("name", ["t4", "rtx3090", "a100", "h200", "rtx5090"])
def test_rows_of_gradients_fit_in_the_ring_of_a_card(name: str) -> None:
    with cards.standing_for(name) as card:
        for op, itemsize in product(OPS, (2, 4)):
            dtype = torch.float32 if itemsize == 4 else torch.bfloat16
            for n in (128, 1000, 4096, 7931, 8192, 9216, 16700, 18432):
                work = RowWork(4096, n, 1, dtype, row_width((torch.empty(1, n, dtype=dtype),), n), 1)
                if not op.holds(work, card):
                    continue
                launch, blocks = row_gradients._staying(op, work, 1e-5, card.processors, card.shared_per_processor)
                assert launch._shared + 512 <= card.shared_per_block
                resident = -(-blocks // card.processors)
                assert resident * (launch._shared + 1024 + 512) <= card.shared_per_processor


def test_the_ring_of_a_card_decides_whether_rows_are_walked_once() -> None:
    x, weight = torch.empty(2, 18432, dtype=torch.bfloat16), torch.empty(18432, dtype=torch.bfloat16)
    for name, able in (("t4", False), ("rtx4090", True), ("h200", True)):
        with cards.standing_for(name):
            found = dispatch.which("rms_norm_backward", x, x, weight, 1e-5, backend="cuda/pipelined,cuda/two_pass")
        assert found == ("cuda/pipelined" if able else "cuda/two_pass")


@needs_nvrtc
def test_operators_of_rows_run_on_turing() -> None:
    """Without cp.async, cache policies, max.NaN and clusters."""
    x = torch.randn(3, 515, generator=torch.Generator().manual_seed(0))
    x[1, 7], x[2, 9] = torch.nan, 2.0**-140
    with cards.standing_for("t4"):
        for op, want in (("reduce_max", x.amax(1)), ("reduce_min", x.amin(1))):
            assert torch.equal(dispatch.function(op)(x, axis=1, backend="cuda").nan_to_num(7), want.nan_to_num(7))
        small = torch.tensor([[-0.0, 0.0, -(2.0**-149)], [-1.0, -0.0, -0.0]])
        assert dispatch.function("reduce_max")(small, axis=1, backend="cuda").signbit().tolist() == [False, True]
        weight, rows = torch.ones(515), x.nan_to_num()
        grad_x, grad_weight = dispatch.function("rms_norm_backward")(rows, rows, weight, 1e-5, backend="cuda")
        large = torch.empty(16384, 8192)
        with recorder(run=False):
            dispatch.function("softmax")(large, backend="cuda")
            dispatch.function("log_softmax")(torch.empty(2, 50257), backend="cuda")
    exact, w = rows.double().requires_grad_(), weight.double().requires_grad_()
    torch.nn.functional.rms_norm(exact, (515,), w, 1e-5).backward(rows.double())
    assert exact.grad is not None and w.grad is not None
    assert torch.allclose(grad_x.double(), exact.grad, atol=1e-5)
    assert torch.allclose(grad_weight.double(), w.grad, atol=1e-5)
