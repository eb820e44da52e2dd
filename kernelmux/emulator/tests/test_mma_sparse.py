"""mma.sp against products with the whole matrix A; the metadata are laid out lane by lane as the ISA says."""

from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, checks
from kernelmux.emulator.running.launch import load
from kernelmux.emulator.tests.fragments import BITS, packed, unpacked

INTEGERS = ("s8", "u8", "s4", "u4")
WARPS = 2


def kernel(opcode: str, counts: tuple[int, int, int, int], sums: str, selector: int) -> Any:
    """d, a, b, c and one word of metadata for each lane; arrays [lanes, registers]."""
    text = ".version 8.8\n.target sm_90a\n.address_size 64\n.visible .entry k("
    text += ", ".join(f".param .u64 p{i}" for i in range(5)) + ") {\n.reg .b64 %q, %o; .reg .b32 %i, %w, %e;\n"
    text += (
        "mov.u32 %i, %ctaid.x; mov.u32 %w, %ntid.x; mul.lo.u32 %i, %i, %w; mov.u32 %w, %tid.x; add.u32 %i, %i, %w;\n"
    )
    kinds = (sums, "b32", "b32", sums)
    lists = []
    for letter, count, kind in zip("dabc", counts, kinds, strict=True):
        text += f".reg .{kind} %{letter}<{count}>;\n"
        lists.append("{" + ", ".join(f"%{letter}{r}" for r in range(count)) + "}")
    for p, (letter, count, kind) in enumerate([*zip("abc", counts[1:], kinds[1:], strict=True), ("e", 1, "b32")]):
        text += f"ld.param.u64 %q, [p{p}]; mul.wide.u32 %o, %i, {4 * count}; add.u64 %q, %q, %o;\n"
        names = [f"%{letter}{r}" for r in range(count)] if letter != "e" else ["%e"]
        text += "".join(f"ld.global.{kind} {name}, [%q+{4 * r}];\n" for r, name in enumerate(names))
    text += f"{opcode} {', '.join(lists)}, %e, {selector};\n"
    text += f"ld.param.u64 %q, [p4]; mul.wide.u32 %o, %i, {4 * counts[0]}; add.u64 %q, %q, %o;\n"
    text += "".join(f"st.global.{sums} [%q+{4 * r}], %d{r};\n" for r in range(counts[0]))
    return load(text + "ret;\n}").kernel("k")


# --- a sparse matrix ------------------------------------------------------------------------------------------


def chunk_of(kind: str) -> tuple[int, int]:
    """Elements of a chunk, and elements that stay together."""
    return (2, 1) if kind == "tf32" else (8, 2) if kind in ("s4", "u4") else (4, 1)


def sparse(random: np.random.Generator, kind: str, k: int, values: np.ndarray, ordered: bool) -> Any:
    """A [16, K] with zeros, its stored elements [16, K / 2], and four bits for each chunk [16, chunks]."""
    size, unit = chunk_of(kind)
    whole, stored, codes = (
        np.zeros((16, k), values.dtype),
        np.zeros((16, k // 2), values.dtype),
        np.zeros((16, k // size), int),
    )
    for row in range(16):
        for chunk in range(k // size):
            units = size // unit
            chosen = random.choice(units, max(units // 2, 1), replace=False)
            if ordered:
                chosen = np.sort(chosen)
            codes[row, chunk] = chosen[0] + 4 * chosen[1] if units == 4 else (0b1110 if chosen[0] else 0b0100)
            for i, place in enumerate(chosen):
                for j in range(unit):
                    value = values[row, chunk * size + place * unit + j]
                    whole[row, chunk * size + place * unit + j] = value
                    stored[row, chunk * size // 2 + i * unit + j] = value
    return whole, stored, codes


def metadata(kind: str, k: int, codes: np.ndarray, selector: int) -> np.ndarray:
    """The words of 32 lanes; lanes that the selector does not name hold something else."""
    words = np.full(32, 0x0BADF00D, np.uint32)

    def word(nibbles: Any) -> int:
        return sum(int(code) << 4 * i for i, code in enumerate(nibbles))

    for g in range(8):
        upper, lower = codes[g], codes[g + 8]
        if kind in ("f16", "bf16", "tf32"):
            for half in range(len(upper) // 4):  # 16 bits of each row to a lane
                lane = selector if len(upper) == 4 else 2 * selector + half
                part = slice(4 * half, 4 * half + 4)
                words[4 * g + lane] = word(upper[part]) | word(lower[part]) << 16
        else:
            for half in range(len(upper) // 8):  # 32 bits of one row to a lane
                part = slice(8 * half, 8 * half + 8)
                words[4 * g + 2 * (selector + half)] = word(upper[part])
                words[4 * g + 2 * (selector + half) + 1] = word(lower[part])
    return words


def fragments(kind: str) -> tuple[Any, Any, Any]:
    """Rows and columns of the stored a_i, of b_i and c_i: as in dense products."""
    e = 32 // BITS[kind]

    def a(lane: int, i: int) -> tuple[int, int]:
        return (lane >> 2) + (8 if i % (2 * e) >= e else 0), lane % 4 * e + i % e + (4 * e if i >= 2 * e else 0)

    def b(lane: int, i: int) -> tuple[int, int]:
        return lane % 4 * e + i % e + 4 * e * (i // e), lane >> 2

    def c(lane: int, i: int) -> tuple[int, int]:
        return (lane >> 2) + (8 if i >= 2 else 0), lane % 4 * 2 + i % 2

    return a, b, c


def words_of(matrices: np.ndarray, place: Any, count: int, kind: str) -> np.ndarray:
    """Small whole numbers as elements of any kind."""
    if kind == "bf16":
        bits = (matrices.astype(np.float32).view(np.uint32) >> 16).astype(np.int64)
        return packed(bits, place, count, "u16")
    if kind == "tf32":
        return np.ascontiguousarray(packed(matrices.astype(np.float32), place, count, "f32")).view(np.uint32)
    if kind in ("e4m3", "e5m2"):
        table = {0: 0, 1: 0x38, 2: 0x40, 3: 0x44} if kind == "e4m3" else {0: 0, 1: 0x3C, 2: 0x40, 3: 0x42}
        codes = np.vectorize(lambda v: table[abs(int(v))] | (0x80 if v < 0 else 0))(matrices)
        return packed(codes, place, count, "u8")
    return packed(matrices, place, count, kind)


SHAPES = {
    "f16": (16, 32),
    "bf16": (16, 32),
    "tf32": (8, 16),
    "s8": (32, 64),
    "u8": (32, 64),
    "s4": (64, 128),
    "u4": (64, 128),
    "e4m3": (64,),
    "e5m2": (64,),
}
SELECTORS = {("f16", 16): 4, ("f16", 32): 2, ("tf32", 8): 4, ("tf32", 16): 2, ("s8", 32): 2, ("s4", 64): 2}
CASES = [
    (kind, k, s)
    for kind, ks in SHAPES.items()
    for k in ks
    for s in range(SELECTORS.get((kind.replace("bf16", "f16").replace("u", "s"), k), 1))
]


@pytest.mark.parametrize(("kind", "k", "selector"), CASES)
@pytest.mark.parametrize("ordered", [True, False])
def test_products(kind: str, k: int, selector: int, ordered: bool) -> None:
    random = np.random.default_rng(k + selector)
    low = 0 if kind[0] == "u" else -3
    parts = [sparse(random, kind, k, random.integers(low, 4, (16, k)), ordered or kind == "tf32") for _ in range(WARPS)]
    whole, stored = np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts])
    b = random.integers(low, 4, (WARPS, k, 8))
    kind_c = "s32" if kind in INTEGERS else "f32"
    c = random.integers(-9, 9, (WARPS, 16, 8)).astype(np.int32 if kind_c == "s32" else np.float32)
    place_a, place_b, place_c = fragments(kind)
    words = [
        words_of(stored, place_a, 16 * k // 64, kind),
        words_of(b, place_b, k // 4, kind),
        packed(c, place_c, 4, kind_c),
    ]
    e = np.stack([metadata(kind, k, p[2], selector) for p in parts])
    d = np.zeros_like(words[2])
    name = "sp::ordered_metadata" if ordered else "sp"
    opcode = f"mma.{name}.sync.aligned.m16n8k{k}.row.col.{kind_c}.{kind}.{kind}.{kind_c}"
    with checks("full"):
        counts = (4, words[0].shape[2], words[1].shape[2], 4)
        kernel(opcode, counts, "f32" if kind_c == "f32" else "b32", selector).launch(WARPS, 32, (*words, e, d))
    assert np.array_equal(unpacked(d, place_c, 4, (16, 8), kind_c), whole @ b + c)


def test_what_is_not_stored_does_not_count() -> None:
    """Infinity in the rows of B that meet no stored element of A changes nothing."""
    random = np.random.default_rng(0)
    codes = np.full((16, 4), 0b0100)
    stored, b = random.integers(-3, 4, (1, 16, 8)), np.full((1, 16, 8), np.inf)
    b[:, [0, 1, 4, 5, 8, 9, 12, 13]] = random.integers(-3, 4, (1, 8, 8))
    place_a, place_b, place_c = fragments("f16")
    c = np.zeros((1, 16, 8), np.float32)
    words = [packed(stored, place_a, 4, "f16"), packed(b, place_b, 4, "f16"), packed(c, place_c, 4, "f32")]
    d = np.zeros_like(words[2])
    opcode = "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    kernel(opcode, (4, 2, 2, 4), "f32", 0).launch(1, 32, (*words, metadata("f16", 16, codes, 0), d))
    assert np.array_equal(unpacked(d, place_c, 4, (16, 8), "f32")[0], stored[0] @ b[0, [0, 1, 4, 5, 8, 9, 12, 13]])


@pytest.mark.parametrize(("name", "code"), [("sp", 0b0101), ("sp", 0b0000), ("sp::ordered_metadata", 0b0001)])
def test_metadata_that_mean_nothing(name: str, code: int) -> None:
    opcode = f"mma.{name}.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    zeros = [np.zeros((32, n), np.uint32) for n in (2, 2, 4)]
    words = metadata("f16", 16, np.full((16, 4), code), 0)
    with pytest.raises(EmulatorError, match=f"metadata {code:#06b}"):
        kernel(opcode, (4, 2, 2, 4), "f32", 0).launch(1, 32, (*zeros, words, np.zeros((32, 4), np.uint32)))


@pytest.mark.parametrize(("kind", "k", "selector"), [("f16", 32, 2), ("s8", 64, 1), ("f16", 8, 0), ("f64", 16, 0)])
def test_forms_that_the_isa_has_not(kind: str, k: int, selector: int) -> None:
    sums = "s32" if kind == "s8" else "f32"
    opcode = f"mma.sp.sync.aligned.m16n8k{k}.row.col.{sums}.{kind}.{kind}.{sums}"
    with pytest.raises(EmulatorError) as raised:
        kernel(opcode, (4, 4, 4, 4), "b32", selector).launch(1, 32, [np.zeros(1024, np.uint32)] * 5)
    assert raised.value.kind == "unsupported"
