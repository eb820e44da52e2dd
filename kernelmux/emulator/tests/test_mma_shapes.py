"""mma.sync beyond m16n8 of 8- and 16-bit elements: fragments as the ISA writes them down, against numpy."""

from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, checks
from kernelmux.emulator.running.launch import load
from kernelmux.emulator.tests.fragments import BITS, Place, packed, unpacked

WARPS = 2


def kernel(opcode: str, counts: tuple[int, ...], kinds: tuple[str, ...]) -> Any:
    """A warp's lane loads its registers of A, B and C, each an array [registers, lanes], and stores those of D."""
    text = ".version 8.8\n.target sm_90a\n.address_size 64\n.visible .entry k("
    text += ", ".join(f".param .u64 p{i}" for i in range(4)) + ") {\n.reg .b64 %q, %o; .reg .b32 %i, %w;\n"
    text += (
        "mov.u32 %i, %ctaid.x; mov.u32 %w, %ntid.x; mul.lo.u32 %i, %i, %w; mov.u32 %w, %tid.x; add.u32 %i, %i, %w;\n"
    )
    names = []
    for letter, count, kind in zip("dabc", counts, kinds, strict=True):
        names.append("{" + ", ".join(f"%{letter}{r}" for r in range(count)) + "}")
        text += f".reg .{kind} %{letter}<{count}>;\n"
    for p, (letter, count, kind) in enumerate(list(zip("dabc", counts, kinds, strict=True))[1:]):
        text += f"ld.param.u64 %q, [p{p}]; mul.wide.u32 %o, %i, {BITS_OF[kind] * count // 8}; add.u64 %q, %q, %o;\n"
        text += "".join(f"ld.global.{kind} %{letter}{r}, [%q+{r * BITS_OF[kind] // 8}];\n" for r in range(count))
    text += f"{opcode} {', '.join(names)};\n"
    text += f"ld.param.u64 %q, [p3]; mul.wide.u32 %o, %i, {BITS_OF[kinds[0]] * counts[0] // 8}; add.u64 %q, %q, %o;\n"
    text += "".join(f"st.global.{kinds[0]} [%q+{r * BITS_OF[kinds[0]] // 8}], %d{r};\n" for r in range(counts[0]))
    return load(text + "ret;\n}").kernel("k")


BITS_OF = {"b32": 32, "b64": 64, "f32": 32, "f64": 64}


# --- one product of a warp ------------------------------------------------------------------------------------


def places(m: int, k: int, kind: str) -> tuple[Place, Place, Place]:
    """Rows and columns of a_i, b_i and c_i, from the ISA's sections on mma.m8n8k4 to m16n8k256."""
    if kind == "f64":

        def a(lane: int, i: int) -> tuple[int, int]:
            if m == 8 or k == 4:
                return (lane >> 2) + 8 * i, lane % 4
            return (lane >> 2) + 8 * (i % 2), (i * 2 if i % 2 == 0 else i * 2 - 2) + lane % 4

        def b(lane: int, i: int) -> tuple[int, int]:
            return i * 4 + lane % 4, lane >> 2
    else:
        e = 32 // BITS[kind]

        def a(lane: int, i: int) -> tuple[int, int]:
            if m == 8:
                return lane >> 2, lane % 4 * e + i
            upper = i % (2 * e) >= e
            return (lane >> 2) + (8 if upper else 0), lane % 4 * e + i % e + (4 * e if i >= 2 * e else 0)

        def b(lane: int, i: int) -> tuple[int, int]:
            return lane % 4 * e + i % e + (4 * e if i >= e else 0), lane >> 2

    def c(lane: int, i: int) -> tuple[int, int]:
        return (lane >> 2) + (8 if i >= 2 else 0), lane % 4 * 2 + i % 2

    return a, b, c


def numbers(random: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    if kind == "f64":
        return random.integers(-(2**20), 2**20, shape).astype(np.float64) / 8
    low = {"s8": -128, "s4": -8}.get(kind, 0)
    return random.integers(low, low + 2 ** BITS[kind], shape)


CASES = [
    *(
        (8, 8, 4, "f64", "f64", ""),
        (16, 8, 4, "f64", "f64", ""),
        (16, 8, 8, "f64", "f64", ""),
        (16, 8, 16, "f64", "f64", ""),
    ),
    *((8, 8, 16, a, b, "") for a in ("s8", "u8") for b in ("s8", "u8")),
    *((m, 8, k, a, b, "") for m, k in ((8, 32), (16, 32), (16, 64)) for a in ("s4", "u4") for b in ("s4", "u4")),
    *((m, 8, k, "b1", "b1", bits) for m, k in ((8, 128), (16, 128), (16, 256)) for bits in (".xor.popc", ".and.popc")),
    *((16, 8, k, a, b, "") for k in (16, 32) for a in ("s8", "u8") for b in ("s8", "u8")),
]


@pytest.mark.parametrize(
    ("m", "n", "k", "kind_a", "kind_b", "bits", "satfinite"),
    [(*case, sat) for case in CASES for sat in (False, True) if not sat or case[3] not in ("f64", "b1")],
)
def test_products(m: int, n: int, k: int, kind_a: str, kind_b: str, bits: str, satfinite: bool) -> None:
    random = np.random.default_rng(m * k + len(bits))
    a, b = numbers(random, kind_a, WARPS, m, k), numbers(random, kind_b, WARPS, k, n)
    kind_c = "f64" if kind_a == "f64" else "s32"
    c = (
        numbers(random, "f64", WARPS, m, n)
        if kind_c == "f64"
        else random.integers(-(2**31), 2**31, (WARPS, m, n)).astype("i4")
    )
    place_a, place_b, place_c = places(m, k, kind_a)
    opcode = (
        f"mma.sync.aligned.m{m}n{n}k{k}.row.col{'.satfinite' * satfinite}.{kind_c}.{kind_a}.{kind_b}.{kind_c}{bits}"
    )
    words = [
        packed(a, place_a, m * k // 32, kind_a),
        packed(b, place_b, k // 4, kind_b),
        packed(c, place_c, m // 4, kind_c),
    ]
    register, sums = ("f64", "f64") if kind_a == "f64" else ("b32", "b32")
    d = np.zeros_like(words[2])
    with checks("full"):
        counts = (d.shape[2], *(w.shape[2] for w in words))
        kernel(opcode, counts, (sums, register, register, sums)).launch(WARPS, 32, (*words, d))
    if bits.startswith(".xor"):
        exact = (a[:, :, :, None] ^ b[:, None, :, :]).sum(2) + c.astype(np.int64)
    else:
        exact = a @ b + c.astype(np.float64 if kind_c == "f64" else np.int64)
    if kind_c == "s32":
        exact = np.clip(exact, -(2**31), 2**31 - 1) if satfinite else exact.astype(np.int32)
    assert np.array_equal(unpacked(d, place_c, m // 4, (m, n), kind_c), exact)


# --- m8n8k4 of f16: four products of a warp -------------------------------------------------------------------


def volta(lane: int) -> int:
    """Which of the four products a lane belongs to."""
    return lane % 16 // 4


def volta_places(row_a: bool, row_b: bool) -> tuple[Place, Place]:
    def a(lane: int, i: int) -> tuple[int, int]:
        up = 4 if lane >= 16 else 0
        return (lane % 4 + up, i) if row_a else (i % 4 + up, lane % 4)

    def b(lane: int, i: int) -> tuple[int, int]:
        up = 4 if lane >= 16 else 0
        return (lane % 4, i + up) if row_b else (i, lane % 4 + up)

    return a, b


def volta_sums(kind: str) -> Place:
    def c(lane: int, i: int) -> tuple[int, int]:
        up = 4 if lane >= 16 else 0
        if kind == "f16":
            return lane % 4 + up, i
        return (lane & 1) + (i & 2) + up, (i & 4) + (lane & 2) + (i & 1)

    return c


def of_quads(place: Place, size: int) -> Place:
    """The four matrices on top of one another, as one with `size` rows each."""
    return lambda lane, i: (place(lane, i)[0] + size * volta(lane), place(lane, i)[1])


@pytest.mark.parametrize("layout", ["row.row", "row.col", "col.row", "col.col"])
@pytest.mark.parametrize(("kind_d", "kind_c"), [("f32", "f32"), ("f16", "f16"), ("f32", "f16")])
def test_four_products_of_quads(layout: str, kind_d: str, kind_c: str) -> None:
    random = np.random.default_rng(5)
    a, b = random.integers(-4, 5, (WARPS, 4, 8, 4)), random.integers(-4, 5, (WARPS, 4, 4, 8))
    c = random.integers(-9, 9, (WARPS, 4, 8, 8)).astype("f4" if kind_c == "f32" else "f2")
    place_a, place_b = volta_places(*(word == "row" for word in layout.split(".")))
    words = [
        packed(a.reshape(WARPS, 32, 4), of_quads(place_a, 8), 4, "f16"),
        packed(b.reshape(WARPS, 16, 8), of_quads(place_b, 4), 4, "f16"),
        packed(c.reshape(WARPS, 32, 8), of_quads(volta_sums(kind_c), 8), 8, kind_c),
    ]
    d = np.zeros((WARPS, 32, 8 if kind_d == "f32" else 4), np.float32 if kind_d == "f32" else np.uint32)
    opcode = f"mma.sync.aligned.m8n8k4.{layout}.{kind_d}.f16.f16.{kind_c}"
    kinds = tuple("f32" if k == "f32" else "b32" for k in (kind_d, "f16", "f16", kind_c))
    with checks("full"):
        kernel(opcode, (d.shape[2], 2, 2, words[2].shape[2]), kinds).launch(WARPS, 32, (*words, d))
    got = unpacked(d, of_quads(volta_sums(kind_d), 8), 8, (32, 8), kind_d).reshape(WARPS, 4, 8, 8)
    assert np.array_equal(got, a @ b + c)


def test_a_transposed_matrix() -> None:
    x = np.arange(WARPS * 32, dtype=np.uint32) * 0x20001 + 0x10000
    text = """.version 8.8\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 x, .param .u64 y) {
    .reg .b64 %x, %y, %o; .reg .b32 %i, %v; ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; mov.u32 %i, %tid.x;
    mul.wide.u32 %o, %i, 4; add.u64 %x, %x, %o; add.u64 %y, %y, %o; ld.global.b32 %v, [%x];
    movmatrix.sync.aligned.m8n8.trans.b16 %v, %v; st.global.b32 [%y], %v; ret; }"""
    y = np.zeros_like(x)
    load(text).kernel("k").launch(1, WARPS * 32, (x, y))
    rows = x.view(np.uint16).reshape(WARPS, 8, 8)
    assert np.array_equal(y.view(np.uint16).reshape(WARPS, 8, 8), rows.swapaxes(1, 2))


@pytest.mark.parametrize(
    "opcode",
    [
        "mma.sync.aligned.m16n8k4.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m8n8k4.row.row.f64.f64.f64.f64",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s4.s32",
        "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32",
        "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f16",
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32",
    ],
)
def test_products_that_the_isa_has_not(opcode: str) -> None:
    with pytest.raises(EmulatorError) as raised:
        kernel(opcode, (4, 4, 2, 4), ("b32",) * 4).launch(1, 32, [np.zeros(512, np.uint32)] * 4)
    assert raised.value.kind == "unsupported"


@pytest.mark.parametrize(
    ("k", "kind"), [(8, "f16"), (16, "f16"), (16, "e4m3"), (32, "e4m3"), (16, "e5m2"), (32, "e5m2")]
)
@pytest.mark.parametrize("sums", ["f16", "f32"])
def test_sums_of_16_and_32_bits(k: int, kind: str, sums: str) -> None:
    random = np.random.default_rng(k)
    a, b = random.integers(-3, 4, (WARPS, 16, k)), random.integers(-3, 4, (WARPS, k, 8))
    c = random.integers(-9, 9, (WARPS, 16, 8)).astype(np.float32)
    coded = {"f16": "f16", "e4m3": "u8", "e5m2": "u8"}[kind]
    table = np.array([0, 0x38, 0x40, 0x44] if kind == "e4m3" else [0, 0x3C, 0x40, 0x42])
    codes = [m if kind == "f16" else table[abs(m)] | np.where(m < 0, 0x80, 0) for m in (a, b)]
    place_a, place_b, place_c = places(16, k, coded)
    words = [
        packed(codes[0], place_a, k // 2, coded),
        packed(codes[1], place_b, k // 4, coded),
        packed(c, place_c, 4, sums),
    ]
    d = np.zeros_like(words[2])
    register = "f32" if sums == "f32" else "b32"
    opcode = f"mma.sync.aligned.m16n8k{k}.row.col.{sums}.{kind}.{kind}.{sums}"
    with checks("full"):
        counts = (d.shape[2], *(w.shape[2] for w in words))
        kernel(opcode, counts, (register, "b32", "b32", register)).launch(WARPS, 32, (*words, d))
    assert np.array_equal(unpacked(d, place_c, 4, (16, 8), sums), a @ b + c)
