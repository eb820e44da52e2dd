"""Calls through pointers: tables of functions, virtual functions, recursion, and pointers that name nothing."""

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError
from kernelmux.emulator.tests.launching import launch, needs_nvrtc

pytestmark = needs_nvrtc

VIRTUAL = """
struct Shape {
  __device__ virtual float area(float x) const = 0;
  __device__ virtual int kind() const { return 0; }
};
struct Square : Shape {
  float k;
  __device__ Square(float k) : k(k) {}
  __device__ float area(float x) const override { return k * x * x; }
};
struct Line : Shape {
  __device__ float area(float x) const override { return x; }
  __device__ int kind() const override { return 7; }
};
extern "C" __global__ void areas(const float* x, float* y, int n) {
  Square s(3.f);
  Line l;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  const Shape* p = i % 3 ? (const Shape*)&s : (const Shape*)&l;
  if (i < n) y[i] = p->area(x[i]) + p->kind();
}"""


def test_virtual_functions() -> None:
    x, y = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    launch(VIRTUAL, "areas", 2, 64, x, y, np.int32(100))
    assert np.array_equal(y, np.where(np.arange(100) % 3, 3 * x * x, x + 7))


TABLE = """
typedef float (*F)(float, int);
__device__ __noinline__ float twice(float x, int k) { return 2 * x + k; }
__device__ __noinline__ float square(float x, int k) { return x * x - k; }
__device__ __noinline__ float down(float x, int k);
__device__ F table[4] = {twice, square, down, nullptr};
__device__ __noinline__ float down(float x, int k) { return k <= 0 ? x : table[2](x + 1, k - 1); }
__device__ int calls;
__device__ __noinline__ void count(int k) { atomicAdd(&calls, k); }
__device__ __noinline__ void nothing(int k) {}
extern "C" __global__ void table_of_functions(const float* x, float* y, const int* which) {
  int i = threadIdx.x;
  y[i] = table[which[i]](x[i], i);
}
extern "C" __global__ void chosen(const float* x, float* y, int second) {
  F f = second ? twice : square;
  y[threadIdx.x] = f(x[threadIdx.x], threadIdx.x);
}
extern "C" __global__ void no_result(float* y, int second) {
  void (*f)(int) = second ? count : nothing;
  f(threadIdx.x);
  __syncthreads();
  y[threadIdx.x] = calls;
}
extern "C" __global__ void damaged(float* y, unsigned long long add) {
  F f = (F)((unsigned long long)table[0] + add);
  y[threadIdx.x] = f(1, 2);
}"""


def test_a_table_of_functions_indexed_by_each_thread() -> None:
    random = np.random.default_rng(0)
    x, which = random.integers(0, 9, 64).astype(np.float32), random.integers(0, 3, 64).astype(np.int32)
    y, i = np.zeros(64, np.float32), np.arange(64)
    launch(TABLE, "table_of_functions", 1, 64, x, y, np.where(which == 2, 1, which).astype(np.int32))
    assert np.array_equal(y, np.where(which == 0, 2 * x + i, x * x - i))
    launch(TABLE, "table_of_functions", 1, 32, x, y, np.full(64, 2, np.int32))  # calls itself through the table
    assert np.array_equal(y[:32], (x + i)[:32])


@pytest.mark.parametrize("second", [0, 1])
def test_a_pointer_that_all_threads_agree_on(second: int) -> None:
    x, y, i = np.arange(32, dtype=np.float32), np.zeros(32, np.float32), np.arange(32)
    launch(TABLE, "chosen", 1, 32, x, y, np.int32(second))
    assert np.array_equal(y, 2 * x + i if second else x * x - i)


def test_a_function_without_a_result() -> None:
    y = np.zeros(32, np.float32)
    launch(TABLE, "no_result", 1, 32, y, np.int32(1))
    before = y[0]
    launch(TABLE, "no_result", 1, 32, y, np.int32(0))
    assert before == sum(range(32)) and (y == before).all()


def test_null() -> None:
    x = np.zeros(32, np.float32)
    which = np.zeros(32, np.int32)
    which[5] = 3
    with pytest.raises(EmulatorError, match="call through the null pointer") as raised:
        launch(TABLE, "table_of_functions", 1, 32, x, x.copy(), which)
    assert raised.value.kind == "bad pointer" and raised.value.thread == (5, 0, 0)


@pytest.mark.parametrize("add", [4, 1 << 20])
def test_a_pointer_into_the_middle_of_nowhere(add: int) -> None:
    with pytest.raises(EmulatorError, match="where no function begins") as raised:
        launch(TABLE, "damaged", 1, 32, np.zeros(32, np.float32), np.uint64(add))
    assert raised.value.kind == "bad pointer"


def test_a_pointer_of_another_type() -> None:
    source = TABLE.replace(
        "F f = (F)((unsigned long long)table[0] + add);\n  y[threadIdx.x] = f(1, 2);",
        "float (*f)(float) = (float (*)(float))table[add];\n  y[threadIdx.x] = f(1);",
    )
    with pytest.raises(EmulatorError, match="pointer of another type") as raised:
        launch(source, "damaged", 1, 32, np.zeros(32, np.float32), np.uint64(1))
    assert raised.value.kind == "bad pointer"


def test_functions_hold_no_data() -> None:
    source = TABLE.replace("y[threadIdx.x] = f(1, 2);", "y[threadIdx.x] = *(const float*)f;")
    with pytest.raises(EmulatorError) as raised:
        launch(source, "damaged", 1, 32, np.zeros(32, np.float32), np.uint64(0))
    assert raised.value.kind == "bad pointer"
