"""matvec on CUDA: which blocks the rules choose, and the order of sums."""

from __future__ import annotations

import pytest
import torch

from kernelmux.backends.cuda import matvec
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.emulator import nvrtc

pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("K", [64, 2048, 4096, 8192, 14336])
def test_the_order_of_sums_does_not_follow_the_number_of_vectors(K: int, itemsize: int) -> None:
    assert len({matvec._block(K, itemsize, vectors)[1] for vectors in (1, 2, 3, 4, 9)}) == 1


def test_one_vector_of_16_bits_has_blocks_of_one_row() -> None:
    """Bytes and many vectors have more to compute for each access, and share what they read of x."""
    assert [matvec._block(4096, 2, vectors) for vectors in (1, 2, 3, 4)] == [(1, 8), (2, 8), (4, 8), (4, 8)]
    assert matvec._block(4096, 1, 1) == (4, 4)


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
