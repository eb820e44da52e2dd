"""st.async and red.async: every width and operation against numpy, and what goes wrong without a wait."""

from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError
from kernelmux.emulator.tests.cluster_ptx import EXPECT, INIT, SYNC, WAIT, arrays, place, run

TYPES = {"b32": 1, "u32": 1, "s32": 1, "f32": 1, "b64": 2, "u64": 2, "s64": 2, "f64": 2}
REGISTERS = {"f32": "%f", "f64": "%e", "b64": "%d", "u64": "%d", "s64": "%d"}


def store(kind: str, count: int, form: str = "shared", wait: str = WAIT, expect: str = EXPECT, end: str = SYNC) -> str:
    """Every thread sends its elements of x to the next block, and stores what its block has got."""
    names = [f"{REGISTERS.get(kind, '%v')}{i}" for i in range(count)]
    size = TYPES[kind] * 4 * count
    vector = f".v{count}" if count > 1 else ""
    what = "{" + ", ".join(names) + "}" if count > 1 else names[0]
    target, bar, space = "%mine", "%ra", ".shared::cluster"
    generic = ""
    if form == "generic":
        generic = "mov.u64 %g, tile; cvta.shared.u64 %g, %g; mapa.u64 %g, %g, %next; mov.u64 %gbar, bar;\n"
        generic += "cvta.shared.u64 %gbar, %gbar; mapa.u64 %gbar, %gbar, %next;\n"
        generic += f"mul.wide.u32 %d7, %t, {size}; add.u64 %g, %g, %d7;\n"
        target, bar, space = "%g", "%gbar", ""
    weak = ".weak" if form == "weak" else ""
    return f"""{INIT}{SYNC}{place("%x", size)} ld.global{vector}.{kind} {what}, [%at];
    mad.lo.u32 %mine, %t, {size}, %rtile; {generic} {expect.format(32 * size)}
    st.async{weak}{space}.mbarrier::complete_tx::bytes{vector}.{kind} [{target}], {what}, [{bar}];
    {wait} mad.lo.u32 %mine, %t, {size}, %tile; ld.shared{vector}.{kind} {what}, [%mine];
    {place("%y", size)} st.global{vector}.{kind} [%at], {what}; {end}"""


@pytest.mark.parametrize("form", ["shared", "weak", "generic"])
@pytest.mark.parametrize(("kind", "count"), [(k, n) for k in TYPES for n in (1, 2, 4) if TYPES[k] * n <= 4])
def test_stores_of_every_width(kind: str, count: int, form: str) -> None:
    x, y = arrays(4, 32, TYPES[kind] * count)
    run(store(kind, count, form), x, y, blocks=4)
    assert np.array_equal(y, x.reshape(2, 2, 32, -1)[:, ::-1].reshape(y.shape))


def test_in_clusters_of_other_shapes() -> None:
    x, y = arrays(8, 32, 1)
    body = store("b32", 1).replace(
        "mov.u32 %n, %ctaid.x;", "mov.u32 %v7, %ctaid.y; mov.u32 %n, %ctaid.x; mad.lo.u32 %n, %v7, 2, %n;"
    )
    run(body, x, y, blocks=(2, 4, 1), cluster=(2, 2, 1))
    rows = x.reshape(4, 2, 32)
    expected = np.zeros_like(rows)
    for cluster in range(2):  # ranks: x first, then y
        members = [(2 * cluster + r // 2, r % 2) for r in range(4)]
        for rank, member in enumerate(members):
            expected[members[(rank + 1) % 4]] = rows[member]
    assert np.array_equal(y.reshape(4, 2, 32), expected)


# --- reductions -----------------------------------------------------------------------------------------------

OPERATIONS = [
    ("add", "u32"),
    ("add", "s32"),
    ("add", "u64"),
    ("min", "u32"),
    ("min", "s32"),
    ("max", "u32"),
    ("max", "s32"),
    ("inc", "u32"),
    ("dec", "u32"),
    ("and", "b32"),
    ("or", "b32"),
    ("xor", "b32"),
]


def reduction(kind: str, dtype: str, space: str = ".shared::cluster") -> str:
    """Eight places of each block start at 1000 and get a value from every thread of the block before."""
    wide = dtype.endswith("64")
    size, register = (8, "%d0") if wide else (4, "%v0")
    start = f"mov.b{8 * size} {register}, 1000; and.b32 %off, %t, 7; mad.lo.u32 %mine, %off, {size}, %tile;\n"
    return f"""{INIT}{start} @%first mov.b32 %n, 0; setp.lt.u32 %p, %t, 8; @%p st.shared.b{8 * size} [%mine], {register};
    bar.sync 0; {SYNC}{place("%x", size)} ld.global.{dtype} {register}, [%at];
    mad.lo.u32 %mine, %off, {size}, %rtile; {EXPECT.format(32 * size)}
    red.async.relaxed.cluster{space}.mbarrier::complete_tx::bytes.{kind}.{dtype} [%mine], {register}, [%ra];
    {WAIT} mad.lo.u32 %mine, %off, {size}, %tile; ld.shared.{dtype} {register}, [%mine];
    {place("%y", size)} st.global.{dtype} [%at], {register}; {SYNC}"""


def reduced(kind: str, old: int, values: np.ndarray) -> int:
    """One element after another, in Python's integers."""
    limit = 1 << 8 * values.itemsize
    for value in values.tolist():
        if kind == "inc":
            old = 0 if old >= value else old + 1
        elif kind == "dec":
            old = value if old == 0 or old > value else old - 1
        else:
            changed: dict[str, Any] = {
                "add": old + value,
                "min": min(old, value),
                "max": max(old, value),
                "and": old & value,
                "or": old | value,
                "xor": old ^ value,
            }
            old = changed[kind]
            if kind == "add":
                old = (old + (limit >> 1 if values.dtype.kind == "i" else 0)) % limit
                old -= limit >> 1 if values.dtype.kind == "i" else 0
    return old


@pytest.mark.parametrize(("kind", "dtype"), OPERATIONS)
def test_reductions(kind: str, dtype: str) -> None:
    random = np.random.default_rng(len(kind) + len(dtype))
    numpy_type = {"u": "u", "s": "i", "b": "u"}[dtype[0]] + str(int(dtype[1:]) // 8)
    x = (
        random.integers(0, 2 ** int(dtype[1:]), (2, 32), np.uint64)
        .astype(numpy_type.replace("i", "u"))
        .view(numpy_type)
    )
    if kind in ("inc", "dec"):
        x[:] = 1003  # the order of different values would matter
    y = np.zeros_like(x)
    run(reduction(kind, dtype), x, y)
    for block in range(2):
        expected = [reduced(kind, 1000, x[1 - block, i::8]) for i in range(8)]
        assert y[block].tolist() == expected * 4


# --- what goes wrong ------------------------------------------------------------------------------------------

STORE, REDUCE = store("b32", 1), reduction("add", "u32")
ORDERED = STORE.replace("ld.global", "st.shared.u32 [%tile], %t; ld.global", 1)
DEFECTS = {
    "stores read before they are waited for": (
        store("b32", 1, wait="bar.sync 0;"),
        "uninitialised",
        "before any write",
    ),
    "sums read before they are waited for": (
        REDUCE.replace(WAIT, "bar.sync 0;"),
        "uninitialised",
        "reduction of it was waited for",
    ),
    "no thread waits": (store("b32", 1, wait="bra end;", end="end: " + SYNC), "asynchronous", "no thread had waited"),
    "fewer bytes expected": (store("b32", 1, expect=EXPECT.replace("{}", "124")), "deadlock", "try_wait"),
    "more bytes expected": (store("b32", 1, expect=EXPECT.replace("{}", "132")), "deadlock", "try_wait"),
    "no mbarrier": (STORE.replace(INIT, ""), "asynchronous", "not initialised"),
    "an mbarrier of another block": (STORE.replace("[%ra]", "[%a]"), "asynchronous", "mbarrier of another"),
    "to one place twice": (STORE.replace("%t, 4, %rtile", "0, 4, %rtile"), "race", "one place"),
    "out of bounds": (STORE.replace("%t, 4, %rtile", "%t, 4096, %rtile"), "out of bounds", "shared memory"),
    "misaligned": (STORE.replace("[%mine], %v0, [%ra]", "[%mine+2], %v0, [%ra]"), "misaligned", "multiple of 4"),
    "reduction of nothing": (REDUCE.replace("%p, %t, 8;", "%p, %t, 7;"), "uninitialised", "before any write"),
    "place that others still read": (
        STORE.replace("st.async", "ld.shared.u32 %v1, [%tile+512]; st.async")
        .replace("%t, 4, %rtile", "%t, 4, %rtile")
        .replace(INIT, INIT + "mad.lo.u32 %mine, %t, 4, %tile; st.shared.u32 [%mine+512], %t; bar.sync 0;")
        .replace("[%mine], %v0, [%ra]", "[%mine+512], %v0, [%ra]"),
        "race",
        "read",
    ),
}


@pytest.mark.parametrize("case", DEFECTS)
def test_misuse(case: str) -> None:
    body, kind, text = DEFECTS[case]
    x, y = arrays(2, 32, 1)
    with pytest.raises(EmulatorError, match=text) as raised:
        run(body, x, y)
    assert raised.value.kind == kind, str(raised.value)


@pytest.mark.parametrize("body", [STORE, REDUCE])
def test_a_cluster_of_one_block(body: str) -> None:
    x, y = arrays(2, 32, 1)
    with pytest.raises(EmulatorError, match="cluster of more than one block"):
        run(body, x, y, cluster=(1, 1, 1))


@pytest.mark.parametrize(
    "form",
    [
        "st.async.release.gpu.global.u32 [%x], %v0;",
        "red.async.release.gpu.global.add.u32 [%x], %v0;",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.min.u64 [%rtile], %d0, [%ra];",
        "st.bulk.weak.shared::cta [%x], 16, 0;",
    ],
)
def test_forms_that_compute_capability_9_lacks(form: str) -> None:
    x, y = arrays(2, 32, 1)
    with pytest.raises(EmulatorError) as raised:
        run(form, x, y)
    assert raised.value.kind == "unsupported"


def test_fast_mode() -> None:
    x, y = arrays(2, 32, 1)
    run(STORE, x, y, mode="fast")
    assert np.array_equal(y, x[::-1])
    numbers = x[:, :, 0].copy()
    run(REDUCE, numbers, y, mode="fast")
    assert np.array_equal(y[0, :8, 0], 1000 + numbers[1].reshape(4, 8).sum(0))
