"""What Triton's variants launch on cards that are not an H200: tiles that fit, and refusals where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")


from kernelmux.backends.triton import int8_matmul
from kernelmux.backends.triton._launch import card
from kernelmux.backends.triton._launch.launch import Config, shared_bytes
from kernelmux.backends.triton._rows import row_gradients
from kernelmux.backends.triton.matmul import _tiles
from kernelmux.backends.triton.matmul._epilogue import PLAIN
from kernelmux.backends.triton.matmul._problem import MatmulShapes
from kernelmux.conformance.inputs import trials
from kernelmux.emulator import recorder
from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.util import cards

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = [(64, 48, 32), (512, 2048, 7168), (4096, 4096, 4096), (3072, 3072, 3072)]


def product(m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16) -> MatmulShapes:
    return MatmulShapes(-1, m, n, k, (k, 1), (n, 1), None, dtype, "tf32", PLAIN.ending)


def tiles() -> list[Config]:
    """Of products on this card, large and small."""
    found = [_tiles.persistent_rule(product(*size)) for size in SIZES]
    found += [_tiles.k_major_rule(product(*size, torch.float32)) for size in SIZES]
    return found + [
        int8_matmul.persistent_rule(int8_matmul.Int8Problem(-1, *size, (1, 1), (1, 1), 0, 0)) for size in SIZES
    ]


def untouched(op: str, text: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """Arguments of a call whose memory is never touched."""
    spec = catalog.spec(op)
    case = spec.case(text)
    return trials.values(spec, case, spec.untouched(case, dtype), torch.device("cpu"))


def test_an_h200_takes_the_tiles_that_were_fitted_to_it() -> None:
    found = tiles()
    assert [(c["BLOCK_M"], c["BLOCK_N"], c["num_stages"]) for c in found[2:4]] == [(128, 256, 4), (128, 128, 5)]
    assert (found[6]["BLOCK_N"], found[10]["BLOCK_N"]) == (256, 256)
    with cards.standing_for("h100"):  # of another bandwidth and L2
        assert tiles() == found and card.of_l2(2**28, -1) == 2**28 and card.enough(-1) == 100


@pytest.mark.parametrize("name", ["t4", "a100", "rtx3090", "rtx4090", "b200", "rtx5090", "gb10"])
def test_numbers_follow_the_card(name: str) -> None:
    with cards.standing_for(name) as gpu:
        assert card.of_l2(2**28, -1) == 2**28 * gpu.l2 // cards.table()["h200"].l2
        assert card.enough(-1) == 100 * gpu.processors // 132
        for n in (512, 4096, 8192, 16384):
            config = row_gradients.rule(n, 4, 2, shared_bytes(-1))
            assert config["PER_SM"] * (config["STAGES"] - 1) * 8 * n <= gpu.shared_per_block


@pytest.mark.parametrize(
    ("variant", "text", "dtype"),
    [
        ("matmul/persistent", "a=512x7168 b=7168x2048", torch.bfloat16),
        ("matmul/persistent", "a=4096x4096 b=4096x4096", torch.float16),
        ("matmul/k_major", "a=4096x4096 b=4096x4096 precision=tf32", torch.float32),
        ("int8_matmul/persistent", "a=8192x8192 b=8192x8192.mT", torch.int8),
        ("rms_norm_backward/fused", "grad_out=4096x8192 x=4096x8192 weight=8192", torch.float32),
    ],
)
def test_what_a_5090_takes_fits(variant: str, text: str, dtype: torch.dtype) -> None:
    """Triton refuses what needs more shared memory than there is."""
    op, name = variant.split("/")
    given = untouched(op, text, dtype)
    with cards.standing_for("rtx5090"), recorder(run=False) as launches:
        assert dispatch.which(op, *given, backend="triton") == f"triton/{name}"
        dispatch.function(op)(*given, backend="triton")
    assert launches


@pytest.mark.parametrize(
    ("op", "text"),
    [
        ("matmul", "a=64x64 b=64x64"),
        ("linear", "x=64x64 weight=64x64 bias=64"),
        ("attention", "q=1x2x64x64 k=1x2x64x64 v=1x2x64x64"),
        ("attention", "q=1x2x1x64 k=1x2x64x64 v=1x2x64x64"),
    ],
)
def test_a_t4_refuses_products_of_halves(op: str, text: str) -> None:
    """Triton makes them of fp32 instructions there, of which those of fp32 are."""
    with cards.standing_for("t4"):
        halves = dispatch.explain(op, *untouched(op, text, torch.float16), backend="triton")
        assert halves.chosen is None and "needs sm_80 or newer" in " ".join(str(halves).split())
        assert dispatch.explain(op, *untouched(op, text, torch.float32), backend="triton").chosen


def test_a_t4_convolves_halves_term_by_term() -> None:
    given = untouched("conv2d", "x=1x8x7x7 weight=16x8x3x3 bias=16 padding=1", torch.float16)
    with cards.standing_for("t4"):
        assert dispatch.which("conv2d", *given, backend="triton") == "triton/direct"


def test_queries_of_sm_120_stay_in_registers() -> None:
    """By descriptors up to 128 columns, with 8 warps."""
    text = "q=1x2x256x{0} k=1x2x256x{0} v=1x2x256x{0}"
    short, wide = (untouched("attention", text.format(d), torch.bfloat16) for d in (128, 256))
    with cards.standing_for("rtx5090"):
        assert dispatch.which("attention", *short, backend="triton") == "triton/descriptors"
        assert dispatch.which("attention", *wide, backend="triton") == "triton/online"
    with cards.standing_for("b200"):
        assert dispatch.which("attention", *wide, backend="triton") == "triton/descriptors"


def test_gradients_of_256_columns_in_fp32_do_not_fit_a_t4() -> None:
    text = "grad_out=1x1x8x{0} q=1x1x8x{0} k=1x1x8x{0} v=1x1x8x{0} y=1x1x8x{0} lse=1x1x8"
    with cards.standing_for("t4"):
        short, wide = (untouched("attention_backward", text.format(d), torch.float32) for d in (128, 256))
        refused = dispatch.explain("attention_backward", *wide, backend="triton")
        assert refused.chosen is None and "shared memory" in str(refused)
        assert dispatch.which("attention_backward", *short, backend="triton") == "triton/pointers"
