"""Plain bulk copies to several blocks and from block to block, bulk reductions of every type, tensor reductions."""

from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, TensorMap
from kernelmux.emulator.arithmetic.floats import from_bf16, to_bf16
from kernelmux.emulator.tests.cluster_ptx import EXPECT, INIT, SYNC, WAIT, arrays, place, run

FENCE = "fence.proxy.async.shared::cta; bar.sync 0;\n"
COPY_OUT = f"""mad.lo.u32 %mine, %t, 4, %tile; ld.shared.b32 %v0, [%mine]; {place("%y", 4)} st.global.b32 [%at], %v0;"""

# --- to several blocks ----------------------------------------------------------------------------------------

# Rank r loads the r-th quarter of x for all blocks of its cluster of four.
MULTICAST = f"""{INIT}{EXPECT.format(128)}{SYNC}
mad.lo.u32 %mine, %rank, 32, %tile; mad.lo.u32 %byte, %rank, 32, 0; cvt.u64.u32 %d0, %byte; add.u64 %d0, %d0, %x;
mov.b16 %mask, MASK;
@%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%mine], [%d0], 32, [%a],
%mask;
{WAIT}{COPY_OUT}{SYNC}"""


def test_a_copy_to_all_blocks() -> None:
    x, y = np.arange(32, dtype=np.uint32), np.zeros((8, 32), np.uint32)
    run(MULTICAST.replace("MASK", "15"), x, y, blocks=8, cluster=(4, 1, 1))
    assert (y == x).all()


def test_a_copy_to_some_blocks_in_y() -> None:
    body = MULTICAST.replace("MASK", "2")  # all go to rank 1
    body = body.replace(f"{WAIT}", f"setp.ne.u32 %p, %rank, 1; @%p bra end; {WAIT}").replace(
        COPY_OUT, COPY_OUT + "end:"
    )
    body = body.replace(
        "@%first mbarrier.arrive", "setp.eq.u32 %p, %rank, 1; and.pred %p, %p, %first; @%p mbarrier.arrive"
    )
    x, y = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    run(body.replace("mov.u32 %n, %ctaid.x;", "mov.u32 %n, 0;"), x, y, blocks=(2, 2, 1), cluster=(2, 2, 1))
    assert np.array_equal(y, x)


def test_a_mask_outside_of_the_cluster() -> None:
    x, y = np.arange(32, dtype=np.uint32), np.zeros((4, 32), np.uint32)
    with pytest.raises(EmulatorError, match="multicast to blocks") as raised:
        run(MULTICAST.replace("MASK", "31"), x, y, blocks=4, cluster=(4, 1, 1))
    assert raised.value.kind == "out of bounds"


# --- from block to block --------------------------------------------------------------------------------------

FILL = f"""{place("%x", 4)} ld.global.b32 %v0, [%at]; mad.lo.u32 %mine, %t, 4, %other; st.shared.b32 [%mine], %v0;\n"""
SEND = f"""{INIT}{EXPECT.format(128)}{FILL}{FENCE}{SYNC}
@%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%rtile], [%other], 128, [%ra];
{WAIT}{COPY_OUT}{SYNC}"""


def test_a_copy_from_block_to_block() -> None:
    x, y = arrays(4, 32, 1)
    run(SEND, x, y, blocks=4, cluster=(4, 1, 1))
    assert np.array_equal(y, np.roll(x, 1, axis=0))


SHARED = [
    ("add", "u32"),
    ("add", "s32"),
    ("add", "u64"),
    ("min", "u32"),
    ("max", "s32"),
    ("inc", "u32"),
    ("dec", "u32"),
    ("and", "b32"),
    ("or", "b32"),
    ("xor", "b32"),
]
REDUCE = f"""{INIT}{EXPECT.format(128)}{FILL}mad.lo.u32 %mine, %t, 4, %tile; st.shared.b32 [%mine], 77; {FENCE}{SYNC}
@%first cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.KIND [%rtile], [%other], 128, [%ra];
{WAIT}{COPY_OUT}{SYNC}"""


def reduced(kind: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """What a reduction leaves, one element at a time."""
    functions: dict[str, Any] = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "inc": lambda a, b: np.where(a >= b, 0, a + 1),
        "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - 1),
    }
    with np.errstate(all="ignore"):
        result: np.ndarray = np.asarray(functions[kind](old, new)).astype(old.dtype)
    return result


def numpy_type(kind: str) -> str:
    return {"u": "u", "s": "i", "b": "u", "f": "f"}[kind[0]] + str(int(kind[1:]) // 8)


@pytest.mark.parametrize(("kind", "dtype"), SHARED)
def test_reductions_from_block_to_block(kind: str, dtype: str) -> None:
    random = np.random.default_rng(3)
    x, y = random.integers(0, 200, (2, 32)).astype(np.uint32), np.zeros((2, 32), np.uint32)
    run(REDUCE.replace("KIND", f"{kind}.{dtype}"), x, y)
    old = np.full((2, 32), 77, np.uint32).view(numpy_type(dtype))
    assert np.array_equal(y.view(old.dtype), reduced(kind, old, x[::-1].view(old.dtype)))


# --- to global memory -----------------------------------------------------------------------------------------

GLOBAL = [
    *(("add", t) for t in ("u32", "s32", "u64", "f32", "f64", "f16", "bf16")),
    *((k, t) for k in ("min", "max") for t in ("u32", "s32", "u64", "s64", "f16", "bf16")),
    ("inc", "u32"),
    ("dec", "u32"),
    *((k, t) for k in ("and", "or", "xor") for t in ("b32", "b64")),
]
OUT = f"""{FILL}{FENCE}
@%first cp.reduce.async.bulk.global.shared::cta.bulk_group.KIND [%y], [%other], 128;
@%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group 0;"""
SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, 1e-40, -1e-40, np.inf, -np.inf, 65504.0, 1e30, 3.0e-39, 0.1], np.float32)


def numbers(kind: str, seed: int) -> np.ndarray:
    """128 bytes of a type: integers of all sizes, or floats with special ones among them."""
    random = np.random.default_rng(seed)
    if kind == "bf16":
        halves: np.ndarray = to_bf16(
            np.resize(random.permutation(np.append(SPECIAL, random.normal(size=20).astype("f4"))), 64)
        )
        return halves
    dtype = np.dtype(numpy_type(kind))
    if dtype.kind == "f":
        values = np.append(SPECIAL, random.normal(size=20)) if dtype.itemsize > 2 else random.normal(size=20)
        return np.resize(random.permutation(values), 128 // dtype.itemsize).astype(dtype)
    return random.integers(0, 256, 128, np.uint8).view(dtype)


def expected(kind: str, dtype: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Sums of floats are rounded once; those of f32 take and give zeros for subnormal numbers."""
    if dtype not in ("f16", "bf16", "f32"):
        return reduced(kind, old, new)
    wide = [(from_bf16(v) if dtype == "bf16" else v).astype(np.float64) for v in (old, new)]
    if dtype == "f32":
        wide = [np.where(np.abs(v) < 2.0**-126, np.copysign(0, v), v) for v in wide]
    with np.errstate(all="ignore"):
        total = {"add": np.add, "min": np.fmin, "max": np.fmax}[kind](*wide)
        result: np.ndarray = to_bf16(total.astype(np.float32)) if dtype == "bf16" else total.astype(old.dtype)
    flushed = np.abs(total) < 2.0**-126 if dtype == "f32" else np.zeros(len(result), bool)
    return np.where(flushed, np.copysign(np.zeros_like(result), result), result) if dtype == "f32" else result


def same(a: np.ndarray, b: np.ndarray, dtype: str) -> bool:
    a, b = (from_bf16(v) if dtype == "bf16" else v for v in (a, b))
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@pytest.mark.parametrize(("kind", "dtype"), GLOBAL)
def test_reductions_to_global_memory(kind: str, dtype: str) -> None:
    old, new = numbers(dtype, 1), numbers(dtype, 2)
    name = f"{kind}.noftz.{dtype}" if kind == "add" and dtype in ("f16", "bf16") else f"{kind}.{dtype}"
    x, y = new.view(np.uint32).copy(), old.copy()
    run(OUT.replace("KIND", name), x, y, blocks=1, cluster=(1, 1, 1))
    assert same(y, expected(kind, dtype, old, new), dtype)


ELEMENTS = ("u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")
TILE = f"""{FILL}{FENCE} mov.b32 %v0, 0; mov.b32 %v1, 2;
@%first cp.reduce.async.bulk.tensor.2d.global.shared::cta.KIND.tile.bulk_group [%x, {{%v0, %v1}}], [%other];
@%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group.read 0;"""


@pytest.mark.parametrize(
    ("kind", "element"),
    [
        (k, e)
        for k in ("add", "min", "max", "and", "or", "xor", "inc", "dec")
        for e in ELEMENTS
        if (k, e) in GLOBAL or (k in ("and", "or", "xor") and e[0] in "us")
    ],
)
def test_tensor_reductions(kind: str, element: str) -> None:
    """The tile has four rows of 32 bytes at row 2 of an array of five: the last row lies outside."""
    dtype = np.dtype(np.uint16 if element == "bf16" else numpy_type(element))
    old = np.concatenate([numbers(element, 4), numbers(element, 5)])[: 160 // dtype.itemsize].reshape(5, -1).copy()
    new = numbers(element, 6).reshape(4, -1)
    y = old.copy()
    body = TILE.replace("KIND", kind).replace(place("%x", 4), place("%y", 4))
    tensor = TensorMap(y, (4, 32 // dtype.itemsize), element=element)
    run(body, tensor, new.view(np.uint32).copy(), blocks=1, cluster=(1, 1, 1), parameter=".align 64 .b8 x[128]")
    wanted = old.copy()
    wanted[2:5] = expected(kind, element, old[2:5].reshape(-1), new[:3].reshape(-1)).reshape(3, -1)
    assert same(y, wanted, element)


def test_a_tensor_reduction_that_the_isa_has_not() -> None:
    y = np.zeros((5, 8), np.float32)
    body = TILE.replace("KIND", "min").replace(place("%x", 4), place("%y", 4))
    with pytest.raises(EmulatorError, match="min of elements f32"):
        run(
            body,
            TensorMap(y, (4, 8)),
            np.zeros(32, np.uint32),
            blocks=1,
            cluster=(1, 1, 1),
            parameter=".align 64 .b8 x[128]",
        )


def test_prefetches_change_nothing() -> None:
    body = """mov.b32 %v0, 0; @%first cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%x, {%v0, %v0}];
    cp.async.bulk.prefetch.L2.global [%y], 64; prefetch.tensormap [%x];"""
    y = np.zeros((4, 8), np.float32)
    run(body, TensorMap(y, (4, 8)), y, blocks=1, cluster=(1, 1, 1), parameter=".align 64 .b8 x[128]")
    assert not y.any()


# --- what goes wrong ------------------------------------------------------------------------------------------

ADD = OUT.replace("KIND", "add.u32")
INTO = REDUCE.replace("KIND", "add.u32")
RANK_0 = "setp.eq.u32 %p, %rank, 0; and.pred %p, %p, %first;"
LATE = "@%first ld.shared.b32 %v0, [%other]; @%first st.shared.b32 [%other+4], %v0;"
DEFECTS = {
    "no proxy fence before a copy": (SEND.replace(FENCE, "bar.sync 0;"), "asynchronous", "no fence.proxy.async"),
    "no proxy fence before a reduction": (INTO.replace(FENCE, "bar.sync 0;"), "asynchronous", "no fence.proxy.async"),
    "no proxy fence before a global one": (ADD.replace(FENCE, "bar.sync 0;"), "asynchronous", "no fence.proxy.async"),
    "read before the wait": (SEND.replace(WAIT, "bar.sync 0;"), "uninitialised", "before any write"),
    "sum read before the wait": (INTO.replace(WAIT, "bar.sync 0;"), "uninitialised", "reduction of it was waited for"),
    "source changed": (SEND.replace(WAIT, LATE + WAIT), "asynchronous", "overwritten"),
    "source of a sum changed": (INTO.replace(WAIT, LATE + WAIT), "asynchronous", "overwritten"),
    "source of a global sum changed": (
        ADD.replace("@%first cp.async.bulk.wait", LATE + "@%first cp.async.bulk.wait"),
        "asynchronous",
        "overwritten",
    ),
    "sum not committed": (
        ADD.replace("@%first cp.async.bulk.commit_group;", ""),
        "asynchronous",
        "no thread had waited",
    ),
    "sum not waited for": (
        ADD.replace("@%first cp.async.bulk.wait_group 0;", ""),
        "asynchronous",
        "no thread had waited",
    ),
    "sender leaves early": (
        SEND.replace("@%first cp.async.bulk.shared::cluster", f"{RANK_0} @%p cp.async.bulk.shared::cluster").replace(
            WAIT, "setp.eq.u32 %p, %rank, 0; @!%p bra wait; exit;" + WAIT
        ),
        "asynchronous",
        "ended before it had been read",
    ),
    "receiver leaves early": (
        SEND.replace(WAIT, "setp.eq.u32 %p, %rank, 0; @!%p bra wait; exit;" + WAIT),
        "asynchronous",
        "the block ends",
    ),
    "no mbarrier": (SEND.replace(INIT + EXPECT.format(128), ""), "asynchronous", "no initialised mbarrier"),
    "size no multiple of 16": (ADD.replace("128;", "120;"), "misaligned", "multiples of 16"),
    "source too long": (SEND.replace("[%other], 128", "[%other+944], 128"), "out of bounds", "bulk copy of 128 bytes"),
    "target too long": (ADD.replace("[%y]", "[%y+16]"), "out of bounds", "write of 128 bytes"),
    "a reduction without .noftz": (OUT.replace("KIND", "add.f16"), "unsupported", "noftz"),
    "a reduction of no type": (OUT.replace("KIND", "min.f32"), "unsupported", "no such reduction"),
    "a mask of bytes": (OUT.replace("cp.reduce", "cp").replace("KIND", "cp_mask"), "unsupported", "cp_mask"),
}


@pytest.mark.parametrize("case", DEFECTS)
def test_misuse(case: str) -> None:
    body, kind, text = DEFECTS[case]
    x, y = arrays(2, 32, 1)
    cluster = (2, 1, 1) if SYNC in body else (1, 1, 1)
    with pytest.raises(EmulatorError, match=text) as raised:
        run(body, x, y[: cluster[0]], blocks=cluster[0], cluster=cluster)
    assert raised.value.kind == kind, str(raised.value)


# Block 1 sends its array again while threads of block 0 may still read the first one.
AGAIN = SEND.replace(SYNC + COPY_OUT, "").replace(
    COPY_OUT,
    f"""{COPY_OUT} HAND_OVER
@%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%rtile], [%other], 128, [%ra];
@%first mbarrier.arrive.expect_tx.shared.b64 _, [%a], 128;
again: mbarrier.try_wait.parity.shared.b64 %p, [%a], 1; @!%p bra again; {COPY_OUT}""",
)


def test_an_array_sent_again_when_all_have_read_it() -> None:
    x, y = arrays(2, 32, 1)
    run(AGAIN.replace("HAND_OVER", SYNC), x, y)
    assert np.array_equal(y, x[::-1])


def test_an_array_sent_again_too_early() -> None:
    x, y = arrays(2, 32, 1)
    with pytest.raises(EmulatorError, match="read") as raised:
        run(AGAIN.replace("HAND_OVER", ""), x, y)
    assert raised.value.kind == "race"


@pytest.mark.parametrize(
    ("body", "want"), [(SEND, 0), (INTO, 77), (MULTICAST.replace("MASK", "3").replace("128", "64"), None)]
)
def test_fast_mode(body: str, want: int | None) -> None:
    x, y = arrays(2, 32, 1)
    run(body, x, y, mode="fast")
    expected_ = x[::-1] + np.uint32(want) if want is not None else np.tile(x.reshape(-1)[:16], (2, 1))
    assert np.array_equal(y[:, :16, 0] if want is None else y, expected_)


POLICY = "createpolicy.fractional.L2::evict_last.b64 %d5, 1.0;"
HINTED = {
    "a load": f"""{POLICY} {INIT}{EXPECT.format(128)}
    @%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%tile], [%x], 128, [%a], %d5;
    {WAIT}{COPY_OUT}""",
    "a multicast load": f"""{POLICY} {INIT}{EXPECT.format(128)} mov.b16 %mask, 1;
    @%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint
    [%tile], [%x], 128, [%a], %mask, %d5;
    {WAIT}{COPY_OUT}""",
    "a load to the own block": f"""{INIT}{EXPECT.format(128)}
    @%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%tile], [%x], 128, [%a];
    {WAIT}{COPY_OUT}""",
    "a store": f"""{POLICY} {FILL}{FENCE}
    @%first cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%y], [%other], 128, %d5;
    @%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group.read 0;""",
    "a reduction": f"""{POLICY} {FILL}{FENCE}
    @%first cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.or.b32 [%y], [%other], 128, %d5;
    @%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group 0;""",
}


@pytest.mark.parametrize("case", HINTED)
def test_forms_with_a_cache_policy(case: str) -> None:
    x, y = arrays(1, 32, 1)
    assert np.array_equal(run(HINTED[case], x, y, blocks=1, cluster=(1, 1, 1)), x)
