"""Arguments, limits and memory of launches."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from kernelmux.emulator import EmulatorError, checks, compile_ptx, load, time_limit
from kernelmux.emulator.running import executor
from kernelmux.emulator.settings import Deadline
from kernelmux.emulator.tests.launching import launch, needs_nvrtc

pytestmark = needs_nvrtc

SCALE = """
extern "C" __global__ void scale(const float* x, float* y, long long stride_x, long long stride_y, int n,
                                 float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i * stride_y] = x ? x[i * stride_x] * factor : factor;
}
"""
NAMES = ("x", "y", "stride_x", "stride_y", "n", "factor")


def scale(
    x: Any, y: Any, stride_x: int = 1, stride_y: int = 1, n: int | None = None, factor: float = 2.0, **options: Any
) -> None:
    count = (y.shape[0] if n is None else n) if y is not None else n or 0
    args = (x, y, np.int64(stride_x), np.int64(stride_y), np.int32(count), np.float32(factor))
    launch(SCALE, "scale", -(-count // 64), 64, *args, names=NAMES, **options)


def refused(*words: str, kind: str | None = None) -> Any:
    class Refusal:
        def __enter__(self) -> None:
            self.context = pytest.raises(EmulatorError)
            self.caught = self.context.__enter__()

        def __exit__(self, *error: Any) -> bool:
            result = bool(self.context.__exit__(*error))
            text = str(self.caught.value)
            assert all(word in text for word in words), text
            assert kind is None or self.caught.value.kind == kind, text
            return result

    return Refusal()


def test_strided_and_expanded_views() -> None:
    x, y = torch.arange(24.0).view(4, 6), torch.zeros(12)
    scale(x[:, 1], y[::3], stride_x=6, stride_y=3)
    assert torch.equal(y[::3], 2 * x[:, 1])
    scale(torch.tensor([3.0]).expand(12), y, stride_x=0)
    assert torch.equal(y, torch.full((12,), 6.0))


def test_hull_is_the_limit() -> None:
    """What lies between the first and the last element of a view may be touched, what lies outside may not."""
    base = torch.zeros(100)
    scale(base[10:20], base[50:60])
    with refused("out of bounds", "byte offset 40 of x of shape 10", "has 40 bytes"):
        scale(base[10:20], torch.zeros(11), n=11)
    with refused("byte offset -4 of y", kind="out of bounds"):
        scale(base[10:20], base[50:60], stride_y=-1, n=2)


def test_arguments_that_share_a_storage() -> None:
    """Overlapping views see one another's writes, and pointers between them keep their distance."""
    base = torch.arange(20.0)
    scale(base[0:10], base[5:15], n=5)
    assert base[5:10].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    text = 'extern "C" __global__ void k(float* a, float* b) { a[b - a] = 7.f; }'
    launch(text, "k", 1, 1, base[:4], base[16:])
    assert base[16] == 7


def test_zero_size_tensors_and_grids() -> None:
    scale(torch.empty(0), torch.empty(0), n=0)
    launch(SCALE, "scale", (3, 0, 1), 64, None, None, np.int64(1), np.int64(1), np.int32(5), np.float32(1))
    with refused("empty of shape 0", kind="out of bounds"):
        launch('extern "C" __global__ void k(float* y) { y[0] = 1.f; }', "k", 1, 1, torch.empty(0), names=("empty",))


def test_null_pointer() -> None:
    y = torch.zeros(8)
    scale(None, y)
    assert torch.equal(y, torch.full((8,), 2.0))
    with refused("null pointer", kind="bad pointer"):
        scale(y, None, n=8)


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 8])
def test_alignment_is_that_of_the_real_address(offset: int) -> None:
    """A view that begins in the middle of 16 bytes is found, as on a GPU."""
    text = """extern "C" __global__ void k(const float4* x, float* y) {
        float4 v = x[threadIdx.x];
        y[threadIdx.x] = v.x + v.y + v.z + v.w;
    }"""
    base, y = torch.arange(64.0), torch.zeros(8)
    x = base[offset : offset + 32]
    if x.data_ptr() % 16 == 0:
        launch(text, "k", 1, 8, x, y)
        assert torch.equal(y, x.view(8, 4).sum(1))
    else:
        with refused("multiple of 16", "x of shape 32", kind="misaligned"):
            launch(text, "k", 1, 8, x, y, names=("x", "y"))


def test_scalars_are_typed() -> None:
    x, y = torch.zeros(4), torch.zeros(4)
    good = [x, y, np.int64(1), np.int64(1), np.int32(4), np.float32(1)]
    launch(SCALE, "scale", 1, 64, *good)
    for at, wrong, words in [
        (4, np.int64(4), ("the parameter has 4 bytes, got 8", "n:")),
        (4, np.float32(4), (".u32", "float32")),
        (5, np.int32(1), (".f32", "int32")),
        (5, np.float64(1), ("4 bytes, got 8",)),
        (4, 4, ("numpy scalar", "got int")),
        (0, 5, ("numpy scalar",)),
        (2, b"abc", ("8 bytes, got 3",)),
    ]:
        with refused(*words, kind="argument"):
            launch(SCALE, "scale", 1, 64, *good[:at], wrong, *good[at + 1 :], names=NAMES)
    with refused("takes 6 arguments, got 5", kind="argument"):
        launch(SCALE, "scale", 1, 64, *good[:5])


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        (1, 1025, 0),
        (1, (32, 33), 0),
        (1, (1, 1, 65), 0),
        (1, 0, 0),
        ((1, 65536), 32, 0),
        ((1, 1, 65536), 32, 0),
        (-1, 32, 0),
        (1, 32, 232449),
        (1, 32, -4),
    ],
)
def test_limits(grid: Any, block: Any, shared: int) -> None:
    with refused(kind="argument"):
        launch(
            'extern "C" __global__ void k() { extern __shared__ float s[]; s[0] = 1.f; }',
            "k",
            grid,
            block,
            shared=shared,
        )


def test_launch_bounds() -> None:
    text = 'extern "C" __global__ void __launch_bounds__(64) k() {}'
    launch(text, "k", 1, 64)
    with refused("at most 64", kind="argument"):
        launch(text, "k", 1, 96)


def test_dynamic_shared_memory() -> None:
    text = """extern "C" __global__ void k(float* y, int n) {
        extern __shared__ float dynamic[]; __shared__ float fixed[4];
        for (int i = threadIdx.x; i < n; i += 32) dynamic[i] = i;
        fixed[threadIdx.x & 3] = 1.f; __syncthreads();
        for (int i = threadIdx.x; i < n; i += 32) y[i] = dynamic[n - 1 - i] + fixed[i & 3];
    }"""
    y = torch.zeros(100)
    launch(text, "k", 1, 32, y, np.int32(100), shared=400)
    assert torch.equal(y, torch.arange(99.0, -1, -1) + 1)
    with refused("shared memory", "396 of them dynamic", kind="out of bounds"):
        launch(text, "k", 1, 32, y, np.int32(100), shared=396)


def test_unknown_kernel_and_parameters() -> None:
    module = load(compile_ptx(SCALE, arch="sm_90a", filename="kernel.cu"))
    with refused("no kernel named 'skale'", "scale", kind="argument"):
        module.kernel("skale")
    sizes = [p.size for p in module.kernel("scale").parameters]
    assert sizes == [8, 8, 8, 8, 4, 4] and module.kernel("scale").shared_size == 0


def test_grid_and_block_coordinates() -> None:
    text = """extern "C" __global__ void k(int* y) {
        int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        int where = blockIdx.x + 10 * blockIdx.y + 100 * blockIdx.z;
        where += 1000 * threadIdx.x + 10000 * threadIdx.y + 100000 * threadIdx.z;
        y[block * blockDim.x * blockDim.y * blockDim.z + thread] = where;
    }"""
    y = torch.zeros(4, 3, 2, 2, 3, 5, dtype=torch.int32)
    launch(text, "k", (2, 3, 4), (5, 3, 2), y)
    bz, by, bx, tz, ty, tx = torch.meshgrid(*(torch.arange(n) for n in y.shape), indexing="ij")
    assert torch.equal(y.long(), bx + 10 * by + 100 * bz + 1000 * tx + 10000 * ty + 100000 * tz)


def test_many_blocks_run_in_chunks() -> None:
    text = 'extern "C" __global__ void k(int* y) { if (threadIdx.x == 5) y[blockIdx.x] = blockIdx.x * 3; }'
    y = torch.zeros(1000, dtype=torch.int32)
    launch(text, "k", 1000, 128, y)
    assert torch.equal(y, torch.arange(1000, dtype=torch.int32) * 3)


def test_numpy_arrays_are_arguments_too() -> None:
    x, y = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    scale(x, y)
    assert y.tolist() == (2 * x).tolist()


def test_threads_launch_side_by_side() -> None:
    """Checks are per context; modules are shared."""
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            x, y = torch.full((500,), float(seed)), torch.zeros(500)
            for _ in range(5):
                scale(x, y, mode="full" if seed % 2 else "fast")
                assert torch.equal(y, 2 * x)
        except BaseException as error:  # reported in the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="fast"), checks("careful"):
        pass


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_limit_is_more_than_nothing(seconds: float) -> None:
    with pytest.raises(ValueError, match="more than 0"), time_limit(seconds):
        pass


def test_the_time_limit_is_one_of_work() -> None:
    """While others have the processor, no time passes."""
    with time_limit(0.2):
        deadline, begun = Deadline(1), time.thread_time()
    time.sleep(0.3)
    assert not deadline.passed
    while time.thread_time() < begun + 0.2:
        pass
    assert deadline.passed


SHORT = 'extern "C" __global__ void k(float* y) { if (threadIdx.x == 0 && blockIdx.x == 0) y[0] = 1.f; }'


def test_the_time_limit_holds_across_chunks() -> None:
    """Each chunk of this kernel is over before the executor would look at the clock."""
    kernel = load(compile_ptx(SHORT, arch="sm_90a", filename="short.cu")).kernel("k")
    start = time.process_time()
    with pytest.raises(EmulatorError, match=r"limit of 0.3 s, [1-9][\d,]* of 8,388,608 blocks are done") as raised:
        with time_limit(0.3):
            kernel.launch(2**23, 32, [torch.zeros(1)])
    assert time.process_time() - start < 5
    assert raised.value.kind == "time limit" and raised.value.kernel == "k"
    with time_limit(60):
        kernel.launch(4096, 32, [torch.zeros(1)])


WAITS = """
extern "C" __global__ void k(int* flag) {
  if (threadIdx.x == 0) {
    while (atomicAdd(flag, 0) == 0) {}
  }
  __syncthreads();
}
"""


def _look(looks: Iterator[bool], _: Deadline) -> bool:
    return next(looks, True)


def test_the_time_limit_names_the_loop_and_not_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the time is over: the lanes at the barrier look again each time that the loop has run for a while."""
    kernel = load(compile_ptx(WAITS, arch="sm_90a", filename="waits.cu")).kernel("k")
    monkeypatch.setattr(executor, "CLOCK_EVERY", 1)
    lines = set()
    for after in range(executor.BUDGET, executor.BUDGET + 20):
        looks = iter([False] * after)
        monkeypatch.setattr(Deadline, "passed", property(partial(_look, looks)))
        with pytest.raises(EmulatorError, match="a loop that does not end") as raised:
            kernel.launch(1, 64, [torch.zeros(1, dtype=torch.int32)])
        lines.add(raised.value.line)
    assert lines == {4}
