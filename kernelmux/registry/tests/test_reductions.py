"""Reductions on the emulator in ways that no case of a spec reaches."""

import pytest
import torch

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch

pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")
EMULATED = [n for n in registered.backends() if registered.emulates(n, torch.device("cpu"))]
AVAILABLE = [n for n in EMULATED if registered.unavailable(n, torch.device("cpu")) is None]
VARIANTS = [(n, op, v) for n in AVAILABLE for op in ("reduce_sum", "argmax") for v in registered.variants(n, op)]


@pytest.mark.skipif("cuda" not in AVAILABLE, reason="emulates no CUDA C++")
@pytest.mark.parametrize(("op", "variant"), [(op, v) for n, op, v in VARIANTS if n == "cuda"])
def test_an_axis_beyond_what_a_block_counts_is_cut(monkeypatch, op, variant):
    """A block counts in 32 bits; here in chunks of 64, which no variant may go beyond."""
    from kernelmux.backends.cuda._families import reductions

    monkeypatch.setattr(reductions, "MOST", 64)
    x = torch.arange(1000.0).reshape(500, 2).roll(-3, 0)
    for axis in (None, 0, 1):
        got = dispatch.function(op)(x, axis=axis, backend=f"cuda/{variant}")
        torch.testing.assert_close(got, dispatch.function(op)(x, axis=axis, backend="torch_ref"))
    assert reductions._rows.cache_info().currsize


@pytest.mark.parametrize(("name", "op", "variant"), VARIANTS)
def test_rows_that_start_anywhere_between_accesses(name, op, variant):
    """Rows longer than a block, of odd lengths, some of them in a wider tensor: first and last elements count."""
    wide = torch.full((3, 16405), 1000.0)
    for start, length in ((0, 16405), (5, 16391), (8, 16385)):
        x = wide[:, start : start + length]
        x.copy_(torch.linspace(-1, 0, length).expand(3, length))
        x[0, 0], x[1, -1], x[2, length // 2] = 7, 7, 7
        got = dispatch.function(op)(x, axis=1, backend=f"{name}/{variant}")
        want = [0, length - 1, length // 2] if op == "argmax" else x.double().sum(1).tolist()
        torch.testing.assert_close(got.double(), torch.tensor(want, dtype=torch.float64), rtol=1e-5, atol=0)
        x.fill_(1000.0)


@pytest.mark.skipif("triton" not in AVAILABLE, reason="emulates no Triton")
@pytest.mark.parametrize("elements", [2**29 - 8, 2**29, 2**31 + 2, 2**35])
def test_a_grid_has_room_for_the_chunks_of_any_axis(elements):
    """A card refuses more than 65535 programs in the second dimension; the call would go to a variant without chunks."""
    from kernelmux.backends.triton._families import reductions, sums

    for step in reductions.everything(sums.SUM, -1, (elements,), (1,), 2, True):
        x, y, z = step.launch.grid
        assert x < 2**31 and y <= 65535 and z == 1
    assert y == 1
