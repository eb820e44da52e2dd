"""wgmma with operands in every layout of shared memory, written byte by byte; results against numpy."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from kernelmux.emulator import EmulatorError, checks, compile_ptx, load, nvrtc
from kernelmux.emulator.tests.shared_operands import STEPS, TORCH, Operand, bits_of, k_major, mn_major, random_matrix

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))


def source_of(opcode: str, count: int, c_type: str, immediates: str, *, a_in_registers: bool = False) -> str:
    """A kernel of one warpgroup: copies the images, multiplies STEPS times, writes its registers `[count, 128]`."""
    constraint = "f" if c_type == "float" else "r"
    d = ", ".join(f"%{i}" for i in range(count))
    a_operand = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if a_in_registers else f"%{count}"
    after = count + (4 if a_in_registers else 1)
    a_values = ", ".join(f'"r"(a[s][{i}])' for i in range(4)) if a_in_registers else '"l"(da + s * step_a)'
    return f"""
typedef unsigned long long u64;
extern "C" __global__ void __launch_bounds__(128) product(const int4* image, int bytes, const unsigned* registers_a,
    u64 da, u64 db, int step_a, int step_b, const {c_type}* C, {c_type}* D, int add) {{
  extern __shared__ __align__(1024) char memory[];
  for (int i = threadIdx.x; i < bytes / 16; i += 128) ((int4*)memory)[i] = image[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  u64 base = (u64)__cvta_generic_to_shared(memory) >> 4;
  da += base;
  db += base;
  {c_type} d[{count}];
  unsigned a[{STEPS}][4];
  for (int i = 0; i < {count}; i++) d[i] = C[i * 128 + threadIdx.x];
  for (int i = 0; i < 4 * {STEPS}; i++) a[i / 4][i % 4] = registers_a ? registers_a[i * 128 + threadIdx.x] : 0;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int s = 0; s < {STEPS}; s++)
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{after + 1}, 0;\\n"
                 "{opcode} {{{d}}}, {a_operand}, %{after}, p{immediates};\\n}}"
                 : {", ".join(f'"+{constraint}"(d[{i}])' for i in range(count))}
                 : {a_values}, "l"(db + s * step_b), "r"(add + s));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < {count}; i++) D[i * 128 + threadIdx.x] = d[i];
}}"""


@dataclass(frozen=True)
class Case:
    """One call: what the kernel is and gets, and what has to come out."""

    source: str
    arguments: tuple[Any, ...]
    output: torch.Tensor
    expected: np.ndarray
    shared: int


def element_places(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each accumulator register `[N / 2, 128 lanes]` (PTX ISA, wgmma.mma_async, matrix D)."""
    i, thread = np.arange(n // 2)[:, None], np.arange(128)[None, :]
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
    column = i // 4 * 8 + thread % 4 * 2 + i % 2
    return row, column


def make_case(
    kind: str,
    n: int,
    layout_a: tuple[str, int],
    layout_b: tuple[str, int],
    sums: str = "f32",
    add: int = 1,
    signs: tuple[int, int] = (1, 1),
) -> Case:
    """D = sign * A * B (+ C): layouts are ("k" or "mn", swizzle), or ("registers", 0) for A."""
    torch.manual_seed(n)
    k = 32 // torch.empty(0, dtype=TORCH[kind]).element_size()
    a, b = random_matrix(kind, 64, k * STEPS), random_matrix(kind, n, k * STEPS)
    c = torch.randint(-9, 9, (64, n)).to({"f32": torch.float32, "s32": torch.int32, "f16": torch.float16}[sums])
    makers = {"k": k_major, "mn": mn_major, "registers": lambda m, _: Operand(np.zeros(0, np.uint8), 0, 0)}
    left, right = (makers[m](bits_of(x), swizzle) for (m, swizzle), x in ((layout_a, a), (layout_b, b)))
    row, column = element_places(n)
    c_registers, count, c_type = c[row, column], n // 2, {"f32": "float", "s32": "int"}.get(sums, "unsigned")
    if sums == "f16":
        c_registers = c_registers.reshape(-1, 2, 128).swapaxes(1, 2).contiguous().view(torch.int32)[..., 0].contiguous()
        count = n // 4
    in_registers = layout_a[0] == "registers"
    transposes = [layout_b[0] == "mn"] if in_registers else [layout_a[0] == "mn", layout_b[0] == "mn"]
    immediates = "".join(f", {x}" for x in signs) if sums != "s32" else ""
    immediates += "".join(f", {int(t)}" for t in transposes) if kind in ("f16", "bf16") else ""
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{sums}.{kind}.{kind}"
    image = torch.from_numpy(np.concatenate([left.image, right.image]))
    arguments = (
        image,
        np.int32(len(image)),
        registers_of(a) if in_registers else None,
        np.uint64(left.descriptor),
        np.uint64(right.descriptor + (len(left.image) >> 4)),
        np.int32(left.step >> 4),
        np.int32(right.step >> 4),
        c_registers,
        torch.zeros_like(c_registers),
        np.int32(add),
    )
    product = signs[0] * signs[1] * (a.float().double() @ b.float().double().T).numpy()
    expected = (product + (c.double().numpy() if add else 0))[row, column]
    source = source_of(opcode, count, c_type, immediates, a_in_registers=in_registers)
    return Case(source, arguments, arguments[8], expected, len(image))


def registers_of(a: torch.Tensor) -> torch.Tensor:
    """A `[64, K]` as the registers `[STEPS * 4, 128 lanes]` of the fragments of four warps."""
    words = a.contiguous().view(torch.int32).reshape(64, STEPS, 2, 4)  # [row, step, half of K, t]
    split = words.reshape(4, 2, 8, STEPS, 2, 4)  # [warp, half, g, step, k half, t]
    return split.permute(3, 4, 1, 0, 2, 5).reshape(STEPS * 4, 128).contiguous()


def run(case: Case, mode: str = "full") -> np.ndarray:
    """What the emulator computes, as `[N / 2, 128]` numbers."""
    kernel = load(compile_ptx(case.source, arch="sm_90a", filename="wgmma.cu")).kernel("product")
    with checks(mode):
        kernel.launch((1, 1, 1), (128, 1, 1), case.arguments, shared=case.shared)
    return case.output.double().numpy()


KINDS = [*((kind, "f32") for kind in ("f16", "bf16", "tf32", "e4m3", "e5m2")), ("s8", "s32"), ("u8", "s32")]
LAYOUTS_A = [("k", 64), ("mn", 0), ("mn", 32), ("mn", 64), ("mn", 128), ("registers", 0)]


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("kind", "sums"), KINDS)
def test_k_major_operands(kind: str, sums: str, swizzle: int) -> None:
    case = make_case(kind, 24 if sums == "f32" else 32, ("k", swizzle), ("k", swizzle), sums)
    np.testing.assert_array_equal(run(case), case.expected)


@pytest.mark.parametrize("swizzle_b", [0, 32, 64, 128])
@pytest.mark.parametrize("layout_a", LAYOUTS_A, ids=str)
def test_mn_major_operands(layout_a: tuple[str, int], swizzle_b: int) -> None:
    case = make_case("bf16", 128, layout_a, ("mn", swizzle_b))
    np.testing.assert_array_equal(run(case), case.expected)


@pytest.mark.parametrize("kind", ["f16", "tf32", "e4m3", "s8"])
def test_a_from_registers(kind: str) -> None:
    case = make_case(kind, 64, ("registers", 0), ("k", 64), "s32" if kind == "s8" else "f32")
    np.testing.assert_array_equal(run(case), case.expected)


@pytest.mark.parametrize("n", [8, 256])
def test_smallest_and_largest_tile(n: int) -> None:
    case = make_case("f16", n, ("k", 128), ("k", 128))
    np.testing.assert_array_equal(run(case, "fast"), case.expected)


def test_the_first_product_can_drop_the_accumulator() -> None:
    case = make_case("f16", 16, ("k", 128), ("k", 128), add=0)
    np.testing.assert_array_equal(run(case), case.expected)


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1), (-1, -1)], ids=str)
def test_signs(signs: tuple[int, int]) -> None:
    case = make_case("bf16", 16, ("k", 64), ("k", 64), signs=signs)
    np.testing.assert_array_equal(run(case), case.expected)


def test_fp16_accumulators() -> None:
    case = make_case("f16", 32, ("k", 128), ("k", 128), "f16")
    run(case)
    pairs = case.output.view(torch.float16).reshape(-1, 128, 2).swapaxes(1, 2).reshape(-1, 128)
    np.testing.assert_array_equal(pairs.double().numpy(), case.expected)


def test_operands_written_by_threads_need_a_proxy_fence() -> None:
    case = make_case("bf16", 64, ("k", 128), ("k", 128))
    source = case.source.replace("fence.proxy.async.shared::cta;", "")
    with pytest.raises(EmulatorError, match=r"fence\.proxy\.async") as raised:
        run(replace(case, source=source))
    assert raised.value.kind == "asynchronous"


def test_an_operand_beyond_shared_memory_is_out_of_bounds() -> None:
    case = make_case("bf16", 64, ("k", 128), ("k", 128))
    changed = list(case.arguments)
    changed[4] = np.uint64(int(changed[4]) + 1024)
    kernel = load(compile_ptx(case.source, arch="sm_90a", filename="wgmma.cu")).kernel("product")
    with pytest.raises(EmulatorError, match="wgmma operand") as raised, checks("fast"):
        kernel.launch((1, 1, 1), (128, 1, 1), changed, shared=case.shared)
    assert raised.value.kind == "out of bounds"
