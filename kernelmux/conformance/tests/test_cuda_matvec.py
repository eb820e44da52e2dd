"""matvec on CUDA: which blocks the rules choose, and the order of sums."""

from __future__ import annotations

import pytest
import torch

from kernelmux.backends.cuda import linear, matvec
from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._families.vectors import block
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda.matmul import _few_rows as few_rows
from kernelmux.emulator import nvrtc

pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("K", [64, 2048, 4096, 8192, 14336])
def test_the_order_of_sums_does_not_follow_the_number_of_vectors(K: int, itemsize: int) -> None:
    assert len({block(K, itemsize, vectors)[1] for vectors in (1, 2, 3, 4, 9)}) == 1


def test_one_vector_of_16_bits_has_blocks_of_one_row() -> None:
    """Bytes and many vectors have more to compute for each access, and share what they read of x."""
    assert [block(4096, 2, vectors) for vectors in (1, 2, 3, 4)] == [(1, 8), (2, 8), (4, 8), (4, 8)]
    assert block(4096, 1, 1) == (4, 4)


@needs_nvrtc
@pytest.mark.parametrize(("dtype", "tiles"), [(torch.bfloat16, 2), (torch.float16, 2), (torch.int8, 1)])
def test_tiles_share_what_is_read_of_the_vectors(dtype: torch.dtype, tiles: int) -> None:
    rng = torch.Generator().manual_seed(0)
    weight = torch.randint(-3, 4, (75, 1040), generator=rng).to(dtype)
    x = torch.randint(-3, 4, (11, 1040), generator=rng).to(torch.bfloat16 if dtype == torch.int8 else dtype)
    y = matvec.tensor_cores(weight, x, None)
    assert torch.equal(y, (x.double() @ weight.double().T).to(y.dtype))
    some = torch.randn(11, 520, generator=rng).to(x.dtype)
    cancels = torch.cat((some, -some), 1)  # what is left of the sums of equal halves are the roundings of their order
    weight[:, 520:] = weight[:, :520]
    alone, among = matvec.tensor_cores(weight, cancels[:1], None), matvec.tensor_cores(weight, cancels, None)
    launch = matvec._tensor_cores(layout(weight), layout(x))
    assert launch._kernel.defines["ROW_TILES"] == tiles and launch._grid[0] == -(-75 // (16 * tiles))
    assert torch.equal(alone, among[:1])


@pytest.mark.parametrize(
    ("rows", "K", "as_vectors"),
    [(1, 2048, True), (2, 2048, False), (3, 4096, True), (4, 4096, False), (16, 4096, False)],
)
def test_a_product_of_a_row_or_two_is_one_of_vectors(rows: int, K: int, as_vectors: bool) -> None:
    """Where both factors have K contiguous, as those of linear; more rows are for tensor cores."""
    a, weight = Layout((rows, K), (K, 1), torch.bfloat16, 0), Layout((K, 6144), (1, K), torch.bfloat16, 0)
    assert (few_rows.vectors_plan(a, weight, PLAIN.ending) is not None) == as_vectors
    assert few_rows.vectors_plan(a, weight._replace(strides=(6144, 1)), PLAIN.ending) is None


@needs_nvrtc
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (3,)])
def test_linear_of_a_row_or_two_has_its_bias_and_activation(shape: tuple[int, ...], activation: str) -> None:
    rng = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randint(-3, 4, s, generator=rng).bfloat16() for s in ((*shape, 264), (70, 264), (70,)))
    y, z = linear.VARIANTS["wgmma"].fn(x, weight, bias, activation, "ieee")
    want = x.double() @ weight.double().T + bias.double()
    if activation == "relu":
        assert torch.equal(z, want.bfloat16())
        want = want.relu()
    assert torch.equal(y, want.bfloat16())
