"""Loads, stores and atomics of all widths."""

from typing import Any

import numpy as np
import pytest
import torch

from kernelmux.emulator.running.launch import load
from kernelmux.emulator.settings import checks
from kernelmux.emulator.tests.launching import launch, needs_nvrtc

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def copy(code: str, threads: int, *arrays: Any) -> None:
    """Runs code with pointers to its own element of each array in %q0, %q1, … (8 bytes a thread unless it says so)."""
    pointers = ", ".join(f".param .u64 p{i}" for i in range(len(arrays)))
    registers = " ".join(f".reg .b64 %q{i};" for i in range(len(arrays)))
    loads = "".join(f"ld.param.u64 %q{i}, [p{i}];" for i in range(len(arrays)))
    body = f"{registers} .reg .b32 %i; .reg .b64 %o; .reg .pred %p; mov.u32 %i, %tid.x; {loads} {code} ret;"
    with checks("full"):
        load(f"{HEAD}.visible .entry k({pointers}) {{ {body} }}").kernel("k").launch(1, threads, list(arrays))


WIDTHS = [(1, 8), (1, 16), (1, 32), (1, 64), (2, 32), (4, 32), (2, 64), (4, 16), (4, 8), (8, 32), (4, 64)]


@pytest.mark.parametrize(("count", "bits"), WIDTHS)
@pytest.mark.parametrize("through_shared", [False, True])
def test_vectors(count: int, bits: int, through_shared: bool) -> None:
    size, threads = count * bits // 8, 48
    x, y = (torch.randint(0, 256, (size * threads,), dtype=torch.uint8) for _ in range(2))  # 64-byte aligned
    register = max(bits, 16)
    vector = f".v{count}" if count > 1 else ""
    names = "{" + ", ".join(f"%r{i}" for i in range(count)) + "}" if count > 1 else "%r0"
    code = f".reg .b{register} %r<{count}>; mul.wide.u32 %o, %i, {size}; add.s64 %q0, %q0, %o; add.s64 %q1, %q1, %o;"
    code += f"ld.global{vector}.b{bits} {names}, [%q0];"
    if through_shared:
        code += f".shared .align 32 .b8 near[{size * threads}]; .reg .b32 %s; mov.u32 %s, near;"
        code += f"mad.lo.u32 %s, %i, {size}, %s; st.shared{vector}.b{bits} [%s], {names};"
        code += f"ld.shared{vector}.b{bits} {names}, [%s];"
    copy(f"{code} st.global{vector}.b{bits} [%q1], {names};", threads, x, y)
    assert torch.equal(x, y)


@pytest.mark.parametrize(("kind", "want"), [("s8", [-1, -128, 127]), ("u8", [255, 128, 127]), ("s16", [-1, 128, -129])])
def test_loads_extend_by_their_own_sign(kind: str, want: list[int]) -> None:
    x = np.array([-1, -128, 127], np.int8) if kind[1:] == "8" else np.array([-1, 128, -129], np.int16)
    y = np.zeros(3, np.int32)
    size = x.itemsize
    code = f".reg .b32 %r; mul.wide.u32 %o, %i, {size}; add.s64 %q0, %q0, %o;"
    code += "mul.wide.u32 %o, %i, 4; add.s64 %q1, %q1, %o;"
    copy(f"{code} ld.global.{kind} %r, [%q0]; st.global.b32 [%q1], %r;", 3, x, y)
    assert y.tolist() == want


def test_guarded_loads_and_stores() -> None:
    """Lanes that are off touch no memory and keep their registers: what Triton does for masks."""
    x, y = np.arange(10, dtype=np.int32), np.full(32, -1, np.int32)
    code = ".reg .b32 %r; mul.wide.u32 %o, %i, 4; add.s64 %q0, %q0, %o; add.s64 %q1, %q1, %o; setp.lt.u32 %p, %i, 10;"
    code += "mov.b32 %r, 77; @%p ld.global.b32 %r, [%q0]; setp.lt.u32 %p, %i, 20; @%p st.global.b32 [%q1], %r;"
    copy(code, 32, x, y)
    assert y.tolist() == [*range(10), *[77] * 10, *[-1] * 12]


def test_cache_hints_and_policies() -> None:
    x, y = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    code = ".reg .b32 %r; .reg .b64 %c; mul.wide.u32 %o, %i, 4; add.s64 %q0, %q0, %o; add.s64 %q1, %q1, %o;"
    code += "createpolicy.fractional.L2::evict_last.b64 %c, 1.0; prefetch.global.L2 [%q0];"
    code += "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.b32 %r, [%q0], %c;"
    copy(f"{code} st.global.L1::evict_first.L2::cache_hint.b32 [%q1], %r, %c;", 32, x, y)
    np.testing.assert_array_equal(x, y)


ATOMICS: dict[str, tuple[Any, Any]] = {
    "add.u32": (np.uint32, lambda o, v: o + v),
    "add.u64": (np.uint64, lambda o, v: o + v),
    "add.f32": (np.float32, lambda o, v: o + v),
    "add.f64": (np.float64, lambda o, v: o + v),
    "min.s32": (np.int32, min),
    "max.u64": (np.uint64, max),
    "and.b32": (np.uint32, lambda o, v: o & v),
    "xor.b64": (np.uint64, lambda o, v: o ^ v),
    "exch.b32": (np.uint32, lambda o, v: v),
    "inc.u32": (np.uint32, lambda o, v: 0 if o >= v else o + 1),
    "dec.u32": (np.uint32, lambda o, v: v if o == 0 or o > v else o - 1),
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("opcode", ATOMICS)
def test_atomics_take_turns_in_lane_order(opcode: str, space: str) -> None:
    """Every lane gets what the one before it left; several lanes meet at each of four places."""
    dtype, update = ATOMICS[opcode]
    size, threads = np.dtype(dtype).itemsize, 40
    values = np.random.default_rng(1).integers(0, 20, threads).astype(dtype)
    places, old = np.arange(4).astype(dtype), np.zeros(threads, dtype)
    state, want = places.copy().tolist(), []
    for lane, value in enumerate(values.tolist()):
        want.append(state[lane % 4])
        state[lane % 4] = update(state[lane % 4], value)
    kind = opcode.split(".")[1].replace("f", "b").replace("u", "b").replace("s", "b")
    code = f".reg .{kind} %v; .reg .{kind} %w; .reg .b32 %m; .reg .b64 %a; .shared .align 8 .b8 near[32]; .reg .b32 %s;"
    code += f"mul.wide.u32 %o, %i, {size}; add.s64 %q0, %q0, %o; add.s64 %q2, %q2, %o; ld.global.{kind} %v, [%q0];"
    code += f"and.b32 %m, %i, 3; mul.wide.u32 %o, %m, {size}; add.s64 %a, %q1, %o;"
    if space == "shared":
        code += f"mov.u32 %s, near; mad.lo.u32 %s, %m, {size}, %s; ld.global.{kind} %w, [%a]; setp.lt.u32 %p, %i, 4;"
        code += f"@%p st.shared.{kind} [%s], %w; bar.sync 0; atom.shared.{opcode} %w, [%s], %v; bar.sync 0;"
        code += f"st.global.{kind} [%q2], %w; ld.shared.{kind} %w, [%s]; st.global.{kind} [%a], %w;"
    else:
        code += f"atom.global.{opcode} %w, [%a], %v; st.global.{kind} [%q2], %w;"
    copy(code, threads, values, places, old)
    assert old.tolist() == want and places.tolist() == state


@pytest.mark.parametrize("opcode", [o for o in ATOMICS if o.split(".")[0] not in ("exch",)])
def test_red_is_atom_without_a_result(opcode: str) -> None:
    dtype, update = ATOMICS[opcode]
    values, place = np.arange(1, 33).astype(dtype), np.array([5]).astype(dtype)
    state = place.tolist()[0]
    for value in values.tolist():
        state = update(state, value)
    kind = opcode.split(".")[1].replace("f", "b").replace("u", "b").replace("s", "b")
    code = f".reg .{kind} %v; mul.wide.u32 %o, %i, {place.itemsize}; add.s64 %q0, %q0, %o; ld.global.{kind} %v, [%q0];"
    copy(f"{code} red.relaxed.gpu.global.{opcode} [%q1], %v;", 32, values, place)
    assert place.tolist() == [state]


@pytest.mark.parametrize(("kind", "dtype"), [("f16x2", torch.float16), ("bf16x2", torch.bfloat16)])
def test_packed_atomics(kind: str, dtype: torch.dtype) -> None:
    values, sums = torch.arange(64).to(dtype), torch.zeros(2, dtype=dtype)
    code = ".reg .b32 %v; mul.wide.u32 %o, %i, 4; add.s64 %q0, %q0, %o; ld.global.b32 %v, [%q0];"
    copy(f"{code} red.global.add.noftz.{kind} [%q1], %v;", 16, values, sums)
    assert sums.tolist() == [sum(range(0, 32, 2)), sum(range(1, 32, 2))]


SUMS = [  # addend, memory before, after in global memory, after in shared memory: the bits that an H200 gave
    (0x00000001, 0x00000000, 0x00000000, 0x00000001),
    (0x00000001, 0x007FFFFF, 0x00000000, 0x00800000),
    (0x00000001, 0x80800001, 0x80800001, 0x80800000),
    (0x00800000, 0x00000001, 0x00800000, 0x00800001),
    (0x00800000, 0x80800001, 0x80000000, 0x80000001),
    (0x00800000, 0x00800000, 0x01000000, 0x01000000),
]


@pytest.mark.parametrize("opcode", ["red.global", "atom.global", "red.shared", "atom.shared"])
def test_float32_sums_are_flushed_in_global_memory_only(opcode: str) -> None:
    values, places = (np.array([row[i] for row in SUMS], np.uint32) for i in (0, 1))
    code = ".shared .align 4 .b8 near[32]; .reg .b32 %s; .reg .b32 %v; .reg .b32 %w; mov.b32 %w, near;"
    code += "shl.b32 %s, %i, 2; cvt.u64.u32 %o, %s; add.s64 %q0, %q0, %o; add.s64 %q1, %q1, %o; add.u32 %s, %s, %w;"
    code += "ld.global.b32 %v, [%q0]; ld.global.b32 %w, [%q1]; st.shared.b32 [%s], %w;"
    old = "%w, " if opcode.startswith("atom") else ""
    if opcode.endswith("global"):
        code += f"{opcode}.add.f32 {old}[%q1], %v;" + ("st.global.b32 [%q0], %w;" if old else "")
    else:
        code += f"{opcode}.add.f32 {old}[%s], %v; ld.shared.b32 %v, [%s]; st.global.b32 [%q1], %v;"
    copy(code, len(SUMS), values, places)
    assert places.tolist() == [row[2 if opcode.endswith("global") else 3] for row in SUMS]


def test_float32_sums_of_many_lanes_keep_small_numbers() -> None:
    """2^-126 (1 + 2^-1) - 2^-126 is flushed before the next lane adds; large numbers go the fast way."""
    values, places = np.array([1.5, -1, 1, 3], np.float32) * np.float32(2.0**-126), np.zeros(1, np.float32)
    code = ".reg .b32 %v; mul.wide.u32 %o, %i, 4; add.s64 %q0, %q0, %o; ld.global.b32 %v, [%q0];"
    copy(f"{code} red.global.add.f32 [%q1], %v;", 4, values, places)
    assert places[0] == np.float32(4 * 2.0**-126)


VECTORS = [  # opcode, four halves as one word, memory before and after: the bits that an H200 gave
    ("f16x2.min.noftz", 0xFE00FE000000, 0x80007E007E008000, 0x80007FFF7FFF8000),
    ("f16x2.min.noftz", 0xE9B0D582D5823DB0, 0xA2C89D1B9D1BF6C8, 0xE9B0D582D582F6C8),
    ("bf16x2.max.noftz", 0x80007FC07FC08000, 0xFFC0FFC00000, 0x7FFF7FFF0000),
    ("bf16x2.max.noftz", 0xF8CA3F1D3F1D38CA, 0x6A353F8A3F8AC135, 0x6A353F8A3F8A38CA),
    ("f16x2.add.noftz", 0xD414B233B233DC14, 0xE23AC1D3C1D32E3A, 0xE2BCC236C236DC14),
    ("f16x2.add.noftz", 0x1FC00FC000001, 0x84013C013C018401, 0x8400FC00FC008400),
]


@pytest.mark.parametrize(("opcode", "value", "before", "after"), VECTORS)
def test_vectors_of_pairs(opcode: str, value: int, before: int, after: int) -> None:
    """The type stands before the operation; -0 is below +0, a NaN loses."""
    values, places, old = (np.array([x], np.uint64) for x in (value, before, 0))
    code = ".reg .b32 %v; .reg .b32 %w; ld.global.v2.b32 {%v, %w}, [%q0];"
    copy(
        f"{code} atom.global.v2.{opcode} {{%v, %w}}, [%q1], {{%v, %w}}; st.global.v2.b32 [%q2], {{%v, %w}};",
        1,
        values,
        places,
        old,
    )
    assert (hex(places[0]), hex(old[0])) == (hex(after), hex(before))


def test_compare_and_swap() -> None:
    """Of the lanes that expect the same value, the first wins."""
    place, old = np.array([0], np.uint32), np.zeros(8, np.uint32)
    code = ".reg .b32 %v; .reg .b32 %w; add.u32 %v, %i, 10; atom.global.cas.b32 %w, [%q0], 0, %v;"
    copy(f"{code} mul.wide.u32 %o, %i, 4; add.s64 %q1, %q1, %o; st.global.b32 [%q1], %w;", 8, place, old)
    assert place[0] == 10 and old.tolist() == [0] + [10] * 7


@needs_nvrtc
def test_named_barriers_and_reductions() -> None:
    """Two halves of a block wait at barriers of their own; counts over the whole block."""
    text = """extern "C" __global__ void k(const int* x, int* y) {
        __shared__ int near[128]; int i = threadIdx.x, half = i / 64;
        near[i] = x[i];
        asm volatile("bar.sync %0, 64;" :: "r"(1 + half) : "memory");
        int v = near[half * 64 + (i * 7 + 3) % 64];
        if (half) asm volatile("bar.arrive 5, 128;" ::: "memory");
        else asm volatile("bar.sync 5, 128;" ::: "memory");
        v += 1000 * __syncthreads_count(x[i] > 3);
        y[i] = v + 1000000 * __syncthreads_or(i == 77) + 2000000 * __syncthreads_and(i < 99);
    }"""
    x, y = torch.arange(128, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    launch(text, "k", 3, 128, x, y)
    i = torch.arange(128)
    assert torch.equal(y.long(), i // 64 * 64 + (i * 7 + 3) % 64 + 124000 + 1000000)


@needs_nvrtc
def test_early_ends_count_as_arrived() -> None:
    text = """extern "C" __global__ void k(int* y, int n) {
        __shared__ int near[64]; int i = threadIdx.x;
        if (i >= n) return;
        near[i] = i * i; __syncthreads(); y[i] = near[n - 1 - i];
    }"""
    y = torch.full((64,), -1, dtype=torch.int32)
    launch(text, "k", 2, 64, y, np.int32(50))
    assert y.tolist() == [(49 - i) ** 2 for i in range(50)] + [-1] * 14
