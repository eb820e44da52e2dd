"""Right kernels: results as on a GPU, and no false alarm of the full checks."""

import numpy as np
import pytest
import torch

from kernelmux.emulator.tests.launching import launch, needs_nvrtc, source

pytestmark = [needs_nvrtc, pytest.mark.parametrize("mode", ["fast", "full"])]

i32 = np.int32


@pytest.mark.parametrize(("rows", "columns", "threads"), [(37, 1000, 256), (3, 31, 32), (5, 64, 1024), (1, 1, 64)])
def test_softmax(mode: str, rows: int, columns: int, threads: int) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 4
    y = torch.full_like(x, float("nan"))
    launch(source("rows"), "softmax_rows", rows, threads, x, y, i32(columns), mode=mode)
    torch.testing.assert_close(y, torch.softmax(x, 1), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("rows", "columns"), [(100, 131), (32, 64), (1, 1), (33, 31)])
def test_transpose(mode: str, rows: int, columns: int) -> None:
    x, y = torch.randn(rows, columns), torch.full((columns, rows), float("nan"))
    grid = (-(-columns // 32), -(-rows // 32))
    launch(source("tiles"), "transpose_tiles", grid, (32, 8), x, y, i32(rows), i32(columns), mode=mode)
    assert torch.equal(y, x.T)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 48, 40), (77, 45, 39), (16, 16, 1), (5, 200, 0)])
def test_matmul(mode: str, m: int, n: int, k: int) -> None:
    """Integers: every order of the sums gives the same bits."""
    a, b = torch.randint(-9, 9, (m, k)).float(), torch.randint(-9, 9, (k, n)).float()
    c = torch.full((m, n), float("nan"))
    grid = (-(-n // 16), -(-m // 16))
    launch(source("tiles"), "matmul_tiles", grid, (16, 16), a, b, c, i32(m), i32(n), i32(k), mode=mode)
    assert torch.equal(c, a @ b)


def test_histogram(mode: str) -> None:
    x, counts = torch.randint(0, 256, (20000,), dtype=torch.uint8), torch.zeros(256, dtype=torch.int32)
    launch(source("atomics"), "histogram", 8, 128, x, counts, i32(len(x)), shared=1024, mode=mode)
    assert torch.equal(counts.long(), torch.bincount(x.long(), minlength=256))


def test_last_block_sums(mode: str) -> None:
    """Blocks hand values to the last one with a fence and an atomic: no race. Twice, because the ticket is reset."""
    x = torch.randint(-50, 50, (30001,)).float()
    for _ in range(2):
        partial, out = torch.empty(100), torch.empty(1)
        launch(source("atomics"), "sum_last_block", 100, 256, x, partial, out, i32(len(x)), mode=mode)
        assert out.item() == x.sum().item()


def test_spin_lock(mode: str) -> None:
    count = torch.zeros(1, dtype=torch.int32)
    launch(source("atomics"), "locked_increment", 3, 128, count, mode=mode)
    assert count.item() == 12


BLOCK_LOCK = """
extern "C" __global__ void increment_in_turn(int* lock, volatile int* count) {
    __shared__ int taken;
    do {
        if (threadIdx.x == 0) taken = atomicCAS(lock, 0, 1) == 0;
        __syncthreads();
        int mine = taken;
        __syncthreads();
        if (mine) break;
    } while (true);
    for (int i = 0; i < 4; i++) {
        if (threadIdx.x == 0) *count = *count + 1;
        __syncthreads();
    }
    __threadfence();
    if (threadIdx.x == 0) atomicExch(lock, 0);
}"""


def test_a_block_that_spins_with_barriers_does_not_starve_the_one_it_waits_for(mode: str) -> None:
    lock, count = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    launch(BLOCK_LOCK, "increment_in_turn", 6, 64, lock, count, mode=mode)
    assert count.item() == 24


def test_blocks_wait_for_one_another(mode: str) -> None:
    """More blocks than run in one chunk otherwise."""
    x = torch.arange(132, dtype=torch.int32)
    text = source("atomics") + f"__device__ int grid_of_{mode} = 1;\n"
    launch(text, "reverse_blocks", 132, 256, x, mode=mode)
    assert torch.equal(x, torch.arange(131, -1, -1, dtype=torch.int32))


def test_atomics_return_what_they_found(mode: str) -> None:
    keys = torch.randint(0, 5, (1000,), dtype=torch.int32)
    following, place = torch.zeros(5, dtype=torch.int32), torch.empty(1000, dtype=torch.int32)
    launch(source("atomics"), "positions", 8, 128, keys, following, place, i32(1000), mode=mode)
    for key in range(5):
        assert sorted(place[keys == key].tolist()) == list(range(int((keys == key).sum())))


def test_recursive_calls(mode: str) -> None:
    x, y = torch.rand(64), torch.empty(64)
    launch(source("language"), "calls", 1, 64, x, y, mode=mode)
    want = x.clone()
    for depth in range(1, 4):
        deeper = torch.arange(64) % 4 >= depth
        want[deeper] = (want * x + 1)[deeper]
    torch.testing.assert_close(y, want)


def test_structs_by_value(mode: str) -> None:
    x, y = torch.rand(32), torch.empty(32)
    line = np.array([(1.5, 3, 0)], dtype=[("slope", "f4"), ("offset", "i4"), ("unused", "i4")]).tobytes()
    launch(source("language"), "structs", 1, 32, x, y, line, mode=mode)
    torch.testing.assert_close(y, x * 1.5 + 3 + 3 + torch.arange(32))


def test_switch(mode: str) -> None:
    x = torch.arange(64, dtype=torch.int32) % 8
    y, i = torch.empty_like(x), torch.arange(64, dtype=torch.int32)
    launch(source("language"), "switches", 1, 64, x, y, mode=mode)
    ways = [i * 3, i + 100, i ^ 5, i // 7, -i, i << 2, i % 3, torch.full_like(i, 1000)]
    assert torch.equal(y, torch.stack(ways)[x.long(), i.long()])


def test_local_array(mode: str) -> None:
    x, y = torch.rand(40), torch.empty(40)
    launch(source("language"), "sorted_windows", 1, 40, x, y, i32(40), mode=mode)
    windows = torch.stack([x.roll(-j) for j in range(8)], 1).sort(1).values
    assert torch.equal(y, windows[torch.arange(40), (x * 100).int().abs() & 7])


def test_printf(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.arange(32) / 8
    launch(source("language"), "prints", 1, 32, x, mode=mode)
    assert capsys.readouterr().out == "thread 3 has 0.375, done\nthread 19 has 2.375, done\n"


def test_variables_keep_their_values(mode: str) -> None:
    """Device variables live as long as their module, constant ones begin with their initial values."""
    x, y = torch.ones(32), torch.empty(32)
    text = source("language") + f"__device__ int module_of_{mode} = 1;\n"
    for start in (7, 8):
        launch(text, "variables", 1, 32, x, y, mode=mode)
        assert torch.equal(y, torch.tensor([1.0, 2.0, 4.0, 8.0]).repeat(8) + start)


def test_generic_pointers(mode: str) -> None:
    x, y = torch.rand(64), torch.empty(64)
    launch(source("language"), "spaces", 1, 64, x, y, mode=mode)
    odd = torch.arange(64) % 2 == 1
    assert torch.equal(y, torch.where(odd, 2 * x + 100, x))


def test_neighbouring_halves(mode: str) -> None:
    """Two threads write the two halves of a word, and the four bytes of another: no race."""
    text = """extern "C" __global__ void k(unsigned short* y, unsigned char* z) {
        for (int i = 0; i < 3; i++) { y[threadIdx.x + i * 32] = 100 * i + threadIdx.x; z[3 * threadIdx.x + i] = i; }
    }"""
    y, z = torch.zeros(96, dtype=torch.int16), torch.zeros(96, dtype=torch.uint8)
    launch(text, "k", 1, 32, y, z, mode=mode)
    assert torch.equal(y.view(3, 32).long(), 100 * torch.arange(3)[:, None] + torch.arange(32))
    assert torch.equal(z.view(32, 3).long(), torch.arange(3).expand(32, 3))
