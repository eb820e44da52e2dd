"""tcgen05: products that add to tensor memory, operands in every layout; results against numpy, and what is reported."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from kernelmux.emulator import EmulatorError, checks, compile_ptx, load, nvrtc
from kernelmux.emulator.tests.shared_operands import STEPS, TORCH, bits_of, k_major, mn_major, random_matrix

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

# By the kind of an instruction: the numbers of its elements, and of its sums.
ELEMENTS = {
    "f16": {"f16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "f8f6f4": {"e4m3": 0, "e5m2": 1},
    "i8": {"u8": 0, "s8": 1},
}
KINDS = [(kind, a) for kind, elements in ELEMENTS.items() for a in elements]
N = 32
MAKERS = {"k": k_major, "mn": mn_major}
VERSION = 1 << 46  # of a descriptor

# A block of 128 threads. Sums are columns 0 to 31 of tensor memory, A lies behind them where `words` are given.
SOURCE = """
typedef unsigned long long u64;
extern "C" __global__ void __launch_bounds__(128) product(const int4* image, int bytes, const unsigned* words, u64 da,
    u64 db, int step_a, int step_b, unsigned what, int lane, const unsigned* C, unsigned* D, int add) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ u64 done;
  __shared__ unsigned place;
  int t = threadIdx.x;
  for (int i = t; i < bytes / 16; i += 128) ((int4*)memory)[i] = image[i];
  unsigned bar = __cvta_generic_to_shared(&done), to = __cvta_generic_to_shared(&place);
  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(bar) : "memory");
  if (t < 32) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" :: "r"(to) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  unsigned sums = place, mine = sums + (t / 32 * 32 << 16);
  for (int c = 0; c < 32; c++)
    asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" :: "r"(mine + c), "r"(C[c * 128 + t]) : "memory");
  for (int c = 0; words && c < 16; c++)
    asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" :: "r"(mine + 32 + c), "r"(words[c * 128 + t])
                 : "memory");
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
  __syncthreads();
  u64 base = (u64)__cvta_generic_to_shared(memory) >> 4;
  unsigned at = sums + (lane << 16);
  if (t == 0) {
    for (int s = 0; s < STEPS; s++)
      if (words)
        asm volatile("{.reg .pred p; setp.ne.b32 p, %4, 0;\\n"
                     "tcgen05.mma.cta_group::1.kind::KIND [%0], [%1], %2, %3, p;}"
                     :: "r"(at), "r"(at + 32 + 8 * s), "l"(db + base + s * step_b), "r"(what), "r"(add + s));
      else
        asm volatile("{.reg .pred p; setp.ne.b32 p, %4, 0;\\n"
                     "tcgen05.mma.cta_group::1.kind::KIND [%0], %1, %2, %3, p;}"
                     :: "r"(at), "l"(da + base + s * step_a), "l"(db + base + s * step_b), "r"(what), "r"(add + s));
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(bar));
  }
  unsigned finished = 0;
  while (!finished)  // WAIT
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
                 : "=r"(finished) : "r"(bar) : "memory");
  for (int c = 0; c < 32; c++) {
    unsigned value;
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(value) : "r"(mine + c) : "memory");
    D[c * 128 + t] = value;
  }
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
  __syncthreads();
  if (t < 32) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 64;" :: "r"(sums));
}"""


@dataclass(frozen=True)
class Call:
    """One launch, and the sums `[32 columns, 128 lanes]` that tensor memory has to hold afterwards."""

    source: str
    arguments: list[Any]
    expected: np.ndarray
    shared: int

    def run(self, mode: str = "full") -> np.ndarray:
        kernel = load(compile_ptx(self.source, arch="sm_100a", filename="tcgen05.cu")).kernel("product")
        with checks(mode):
            kernel.launch(1, 128, self.arguments, shared=self.shared)
        return np.asarray(self.arguments[10].numpy()).astype(np.float64)


def lanes_of(m: int, lane: int) -> np.ndarray:
    """The lanes that rows lie in: 64 rows are 16 of each quarter, from its first or its 17th on."""
    rows = np.arange(m)
    return rows if m == 128 else rows // 16 * 32 + rows % 16 + lane


def call(
    kind: str,
    element: str,
    m: int = 128,
    layout_a: tuple[str, int] = ("k", 128),
    layout_b: tuple[str, int] = ("k", 128),
    lane: int = 0,
    add: int = 1,
    negate: tuple[int, int] = (0, 0),
    left: torch.Tensor | None = None,
) -> Call:
    """D = A * B (+ C); layouts are ("k" or "mn", swizzle), or ("memory", 0) for A in tensor memory."""
    torch.manual_seed(m)
    k = STEPS * 32 // torch.empty(0, dtype=TORCH[element]).element_size()
    a = random_matrix(element, m, k) if left is None else left
    b = random_matrix(element, N, k)
    sums = torch.int32 if kind == "i8" else torch.float32
    c = torch.randint(-9, 9, (N, 128)).to(sums)
    right = MAKERS[layout_b[0]](bits_of(b), layout_b[1])
    images, da, step_a, words = [right.image], 0, 0, None
    if layout_a[0] == "memory":
        words = torch.zeros(16, 128, dtype=torch.int32)
        words[:, lanes_of(m, lane)] = a.contiguous().view(torch.int32).T
    else:
        in_shared = MAKERS[layout_a[0]](bits_of(a), layout_a[1])
        images, step_a = [*images, in_shared.image], in_shared.step >> 4
        da = in_shared.descriptor + (len(right.image) >> 4) | VERSION
    number, image = ELEMENTS[kind][element], torch.from_numpy(np.concatenate(images))
    what = (2 if kind == "i8" else 1) << 4 | number << 7 | number << 10 | negate[0] << 13 | negate[1] << 14
    what |= (layout_a[0] == "mn") << 15 | (layout_b[0] == "mn") << 16 | N >> 3 << 17 | m >> 4 << 24
    expected = c.double().numpy()
    sign = (-1) ** sum(negate)
    product = sign * (b.float().double() @ a.float().double().T).numpy()
    expected[:, lanes_of(m, lane)] = product + (expected[:, lanes_of(m, lane)] if add else 0)
    arguments = [
        image,
        np.int32(len(image)),
        words,
        np.uint64(da),
        np.uint64(right.descriptor | VERSION),
        np.int32(step_a),
        np.int32(right.step >> 4),
        np.uint32(what),
        np.int32(lane),
        c,
        torch.zeros_like(c),
        np.int32(add),
    ]
    return Call(SOURCE.replace("KIND", kind).replace("STEPS", str(STEPS)), arguments, expected, len(image))


def changed(made: Call, old: str, new: str) -> Call:
    """The same call of another kernel."""
    assert old in made.source
    return Call(made.source.replace(old, new), made.arguments, made.expected, made.shared)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("kind", "element"), KINDS)
def test_k_major_operands(kind: str, element: str, swizzle: int) -> None:
    made = call(kind, element, layout_a=("k", swizzle), layout_b=("k", swizzle))
    np.testing.assert_array_equal(made.run(), made.expected)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("kind", "element"), [("f16", "bf16"), ("f8f6f4", "e4m3"), ("i8", "s8")])
def test_mn_major_operands(kind: str, element: str, swizzle: int) -> None:
    narrow = min(swizzle, N * torch.empty(0, dtype=TORCH[element]).element_size())  # a line of b is 32 columns
    made = call(kind, element, layout_a=("mn", swizzle), layout_b=("mn", narrow))
    np.testing.assert_array_equal(made.run(), made.expected)


@pytest.mark.parametrize("lane", [0, 16])
@pytest.mark.parametrize("layout_a", [("k", 64), ("mn", 128), ("memory", 0)], ids=str)
def test_64_rows_are_16_lanes_of_each_quarter(layout_a: tuple[str, int], lane: int) -> None:
    made = call("f16", "f16", m=64, layout_a=layout_a, lane=lane)
    np.testing.assert_array_equal(made.run(), made.expected)


@pytest.mark.parametrize(("kind", "element"), KINDS)
def test_a_from_tensor_memory(kind: str, element: str) -> None:
    made = call(kind, element, layout_a=("memory", 0))
    np.testing.assert_array_equal(made.run("fast"), made.expected)


def test_the_first_product_can_drop_the_sums() -> None:
    made = call("f16", "f16", add=0)
    np.testing.assert_array_equal(made.run(), made.expected)


@pytest.mark.parametrize("negate", [(1, 0), (0, 1), (1, 1)], ids=str)
def test_operands_can_be_negated(negate: tuple[int, int]) -> None:
    made = call("tf32", "tf32", negate=negate)
    np.testing.assert_array_equal(made.run(), made.expected)


def test_sums_of_fp8_keep_all_digits() -> None:
    """448 and 2^-9 together are 18 digits: a wgmma of sm_90 keeps 14."""
    a = torch.zeros(128, 64).to(torch.float8_e4m3fn)
    a[:, 0] = 448.0
    a[:, 1] = 2.0**-9
    made = call("f8f6f4", "e4m3", left=a, add=0)
    got = made.run()
    np.testing.assert_array_equal(got, made.expected)
    assert (got % 1 != 0).any() and np.abs(got).max() > 400


def test_a_warp_moves_halves_of_its_lanes() -> None:
    """16x32bx2 is stored, 32x32b is read: threads 16 to 31 have lanes 0 to 15, some columns on."""
    source = """extern "C" __global__ void halves(const unsigned* x, unsigned* y) {
      __shared__ unsigned place;
      int t = threadIdx.x, warp = t / 32;
      unsigned to = __cvta_generic_to_shared(&place), v[4];
      if (t < 32) asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" :: "r"(to) : "memory");
      __syncthreads();
      unsigned mine = place + (warp * 32 << 16);
      for (int half = 0; half < 2; half++) {
        const unsigned* p = x + (half * 128 + t) * 2;
        asm volatile("tcgen05.st.sync.aligned.16x32bx2.x2.b32 [%0], 2, {%1, %2};"
                     :: "r"(mine + (half * 16 << 16)), "r"(p[0]), "r"(p[1]) : "memory");
      }
      asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(mine) : "memory");
      for (int i = 0; i < 4; i++) y[t * 4 + i] = v[i];
      __syncthreads();
      if (t < 32) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" :: "r"(place));
    }"""
    x, y = torch.arange(2 * 128 * 2, dtype=torch.int32), torch.zeros(128, 4, dtype=torch.int32)
    load(compile_ptx(source, arch="sm_100a", filename="halves.cu")).kernel("halves").launch(1, 128, [x, y])
    half, warp, columns, lane, column = np.ix_(range(2), range(4), range(2), range(16), range(2))
    want = np.zeros((128, 4), np.int64)
    want[warp * 32 + half * 16 + lane, columns * 2 + column] = (
        half * 128 + warp * 32 + columns * 16 + lane
    ) * 2 + column
    np.testing.assert_array_equal(y.numpy(), want)


# --- what goes wrong --------------------------------------------------------------------------------------------


WAIT = "while (!finished)  // WAIT"
ALLOC = 'asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 64;" :: "r"(to) : "memory");'


def test_sums_that_no_thread_waited_for_are_the_old_ones() -> None:
    made = call("f16", "f16")
    unwaited = changed(made, WAIT, "while (0)")
    np.testing.assert_array_equal(unwaited.run("fast"), made.arguments[9].numpy())
    with pytest.raises(EmulatorError, match="no thread had waited for this product") as raised:
        unwaited.run()
    assert raised.value.kind == "asynchronous"


def test_an_operand_that_is_overwritten_before_the_wait_is_multiplied_as_it_is_then() -> None:
    made = call("f16", "f16")
    early = changed(made, WAIT, "__syncthreads(); ((int*)memory)[t] = 0; __syncthreads();\n  while (!finished)")
    assert not np.array_equal(early.run("fast"), made.expected)


# A change of the kernel, the kind of the error, and what it says.
MISUSE = {
    "no proxy fence": (
        "fence.proxy.async.shared::cta;",
        "",
        "asynchronous",
        r"tcgen05\.mma reads shared memory .* fence\.proxy\.async",
    ),
    "columns that are kept": (
        'if (t < 32) asm volatile("tcgen05.dealloc',
        'if (0) asm volatile("tcgen05.dealloc',
        "asynchronous",
        "no thread had waited for tcgen05.dealloc of these 64 columns",
    ),
    "other columns given back": ("b32 %0, 64;", "b32 %0, 32;", "argument", "where 64 were allocated"),
    "columns beyond the allocation": (
        "unsigned at = sums",
        "unsigned at = sums + 40",
        "out of bounds",
        "column 64 of tensor memory, which is not allocated",
    ),
    "lanes of another warp": ("(t / 32 * 32 << 16)", "(96 - t / 32 * 32 << 16)", "out of bounds", "number modulo 4"),
    "a size that is none": ("[%0], 64;", "[%0], 48;", "argument", "a power of two from 32 to 512"),
    "allocation after the permit": (
        '  }\n  asm volatile("fence.proxy',
        f'    {ALLOC}\n  }}\n  asm volatile("fence.proxy',
        "asynchronous",
        "after tcgen05.relinquish_alloc_permit",
    ),
    "more than there is": (ALLOC, ALLOC.replace("64;", "512;") + ALLOC, "deadlock", "0 of 512 are free"),
    "pairs of blocks": ("tcgen05.mma.cta_group::1", "tcgen05.mma.cta_group::2", "unsupported", "cta_group::1"),
    "a block-scaled kind": ("kind::f16", "kind::mxf8f6f4.block_scale", "unsupported", "plain forms"),
    "a copy to tensor memory": (
        ALLOC,
        ALLOC + 'asm volatile("tcgen05.cp.cta_group::1.128x256b [%0], 0;" :: "r"(to));',
        "unsupported",
        "of tcgen05, alloc",
    ),
}


@pytest.mark.parametrize(("old", "new", "kind", "says"), MISUSE.values(), ids=list(MISUSE))
def test_misuse_is_reported(old: str, new: str, kind: str, says: str) -> None:
    with pytest.raises(EmulatorError, match=says) as raised:
        changed(call("f16", "f16"), old, new).run()
    assert raised.value.kind == kind


@pytest.mark.parametrize(
    ("position", "value", "kind", "says"),
    [
        (7, 1 << 4 | 3 << 7 | N >> 3 << 17 | 8 << 24, "unsupported", "f16, bf16 with sums of 32 bits"),
        (7, N >> 3 << 17 | 8 << 24, "unsupported", "instruction descriptor"),
        (7, 1 << 4 | N >> 3 << 17 | 6 << 24, "argument", "no product of 96 rows"),
        (8, 16, "misaligned", "128 rows begins at lane 16"),
        (4, VERSION | 1 << 61, "unsupported", "32 bytes together"),
        (4, VERSION | 0x3F00, "out of bounds", "tcgen05.mma operand reaches byte"),
    ],
)
def test_what_descriptors_name_is_checked(position: int, value: int, kind: str, says: str) -> None:
    made = call("f16", "f16")
    made.arguments[position] = type(made.arguments[position])(value)
    with pytest.raises(EmulatorError, match=says) as raised:
        made.run()
    assert raised.value.kind == kind
