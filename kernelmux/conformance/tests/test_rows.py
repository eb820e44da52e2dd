"""What the row family in Triton promises beyond right results: wide accesses, no padding to powers of two, fixed orders."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product

import pytest
import torch

import kernelmux as kx
from kernelmux import emulator
from kernelmux.conformance.tests.launches import launched, ptx
from kernelmux.emulator import recorder
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.util import cards

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*on the emulator"),
    pytest.mark.skipif(bool(registered.unavailable("triton", torch.device("cpu"))), reason="Triton is not there"),
]

ACCESS = re.compile(r"\b(?:ld|st)\.global[.\w:]*")
COPIES = re.compile(r"\bcp\.async\.c[ag]\.shared\.global")
ODD = [5000, 5120, 12288, 18432]
MORE = 34  # rows, of which each has a program for itself however long it is


def arguments(op: str, columns: int, dtype: torch.dtype, rows: int = 2) -> tuple[torch.Tensor, ...]:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns)).to(dtype)
    vectors = {"softmax": 0, "rms_norm": 1, "layer_norm": 2}[op]
    return (x, *(torch.linspace(0.5, 2.0, columns).to(dtype) for _ in range(vectors)))


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("columns", ODD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_accesses_are_16_bytes_wide(op: str, columns: int, dtype: torch.dtype) -> None:
    accesses = accesses_of(op, *arguments(op, columns, dtype))
    assert accesses and all(re.search(r"\.v4\.[buf]32$", access) for access in accesses)


@pytest.mark.parametrize("columns", ODD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_not_padded_to_a_power_of_two(columns: int, dtype: torch.dtype) -> None:
    launch = launched("softmax", "triton", *arguments("softmax", columns, dtype))
    stores = [access for access in ACCESS.findall(ptx(launch)) if access.startswith("st.")]
    stored = len(stores) * math.prod(launch.block) * 16 // dtype.itemsize
    assert columns <= stored < 1.25 * columns


@pytest.mark.parametrize("op", ["softmax", "rms_norm"])
@pytest.mark.parametrize("columns", [5001, 50257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_start_misaligned_are_peeled(op: str, columns: int, dtype: torch.dtype) -> None:
    text = ptx(launched(op, "triton", *arguments(op, columns, dtype, MORE)))
    stores = [access for access in ACCESS.findall(text) if access.startswith("st.")]
    single = [access for access in stores if not re.search(r"\.v[24]\.[buf]32$", access)]
    assert 0 < len(single) <= 2 * 16 // dtype.itemsize and len(stores) > len(single)


def accesses_of(op: str, *tensors: torch.Tensor) -> list[str]:
    return ACCESS.findall(ptx(launched(op, "triton", *tensors)))


def check_wherever_rows_begin(op: str, x: torch.Tensor, *vectors: torch.Tensor) -> None:
    want = dispatch.function(op)(x.float(), *(v.float() for v in vectors), backend="torch_ref").double()
    elsewhere = torch.cat((x[0, :3], x.flatten()))[3:].view(x.shape)
    for y in (x, elsewhere):
        got = dispatch.function(op)(y, *vectors, backend="triton/resident").double()
        assert torch.allclose(got, want, rtol=4 * torch.finfo(x.dtype).eps, atol=1e-6)


@pytest.fixture
def _as_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program has as many rows as if they were enough for all multiprocessors."""
    monkeypatch.setattr("kernelmux.backends.triton._rows.row_chunks.FEW_PROGRAMS", 0)


@pytest.mark.usefixtures("_as_of_many_rows")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("op", "columns"),
    [
        *product(("softmax", "rms_norm", "layer_norm"), (33, 34, 65, 197, 258, 511)),
        ("rms_norm", 1537),
        ("layer_norm", 5121),
    ],
)
def test_short_rows_that_start_misaligned_are_peeled(op: str, dtype: torch.dtype, columns: int) -> None:
    """By accesses of four elements, several rows to a program, whose last one has not all of them."""
    x, *vectors = arguments(op, columns, dtype, 39)
    stores = [a for a in accesses_of(op, x, *vectors) if a.startswith("st.")]
    wide, single = (".v2.b32", ".b16") if dtype == torch.bfloat16 else (".v4.b32", ".global.b32")
    assert all(a.endswith((wide, single)) for a in stores)
    assert 0 < len([a for a in stores if a.endswith(single)]) <= len(stores) / 2
    check_wherever_rows_begin(op, x, *vectors)


@pytest.mark.usefixtures("_as_of_many_rows")
@pytest.mark.parametrize(
    ("op", "columns"),
    [
        *product(("softmax", "rms_norm", "layer_norm"), (66, 130, 194, 514, 1022)),
        *product(("rms_norm", "layer_norm"), (1026, 2562, 5122, 13714)),
        *product(("softmax", "layer_norm"), (260, 516, 1020)),
        ("rms_norm", 1028),
        ("rms_norm", 13716),
    ],
)
def test_rows_of_even_lengths_are_peeled(op: str, columns: int) -> None:
    """Multiples of 4 and long rows by 16 bytes, others by 8; vectors by the bytes that all rows begin at multiples of. What
    lies beside that is an element of each thread."""
    x, *vectors = arguments(op, columns, torch.bfloat16, 137 if columns > 1024 else 39)
    found = [re.sub(r".*global|[.:]+(?:L[12]|evict|cache)[^.]*", "", a) for a in accesses_of(op, x, *vectors)]
    wide = ".v4.b32" if columns > 6144 or columns % 4 == 0 else ".v2.b32"
    of_vectors = ".v2.b32" if columns % 4 == 0 else ".b32"
    assert set(found) == {wide, ".b16", *([of_vectors] if vectors else [])}
    assert found.count(".b16") == 2 + len(vectors)
    if columns < 6144:
        check_wherever_rows_begin(op, x, *vectors)


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("columns", [36, 1000, 5000])
def test_the_bits_of_a_row_do_not_depend_on_its_batch(op: str, columns: int) -> None:
    x, *vectors = arguments(op, columns, torch.float32, rows=37)
    call = dispatch.function(op)
    whole = call(x, *vectors, backend="triton")
    for first, last in ((36, 37), (5, 8)):
        assert torch.equal(call(x[first:last].clone(), *vectors, backend="triton"), whole[first:last])


@pytest.mark.parametrize(
    ("columns", "warps"), [(65536, 16), (50257, 16), (13713, 8), (13712, 8), (12288, 8), (20480, 8)]
)
def test_long_rows_wait_in_shared_memory(columns: int, warps: int) -> None:
    """They are read from global memory once: by copies to shared memory, and by loads that stay in registers."""
    (x,) = arguments("softmax", columns, torch.bfloat16, 2)
    with cards.standing_for(replace(cards.table()["h200"], processors=1)):
        launch = launched("softmax", "triton", x)
        text = ptx(launch)
        assert COPIES.search(text) and not re.search(r"\bbra\b", text)
        assert math.prod(launch.block) == 32 * warps
        y = dispatch.function("softmax")(x, backend="triton")
    assert torch.allclose(y.double(), torch.softmax(x.double(), -1), rtol=2 * torch.finfo(x.dtype).eps, atol=1e-9)


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_vectors_of_even_rows_in_shared_memory_are_read_by_4_bytes(op: str) -> None:
    x, *vectors = arguments(op, 40002, torch.bfloat16, 5)
    with cards.standing_for(replace(cards.table()["h200"], processors=1)):
        text = ptx(launched(op, "triton", x, *vectors))
        assert COPIES.search(text)
        assert len([a for a in ACCESS.findall(text) if a.startswith("ld.") and a.endswith(".b16")]) == 1 + len(vectors)
        check_wherever_rows_begin(op, x, *vectors)


@pytest.mark.parametrize(("name", "kernel"), [("t4", "rows_kernel"), ("a100", "rows_shared_kernel")])
def test_rows_wait_in_shared_memory_where_copies_are_asynchronous(name: str, kernel: str) -> None:
    (x,) = arguments("softmax", 13713, torch.float16, MORE)
    with cards.standing_for(replace(cards.table()[name], processors=1)):
        assert launched("softmax", "triton", x).kernel == kernel


@pytest.mark.parametrize("columns", [27001, 27008, 32768])
def test_long_rows_in_fp32_are_held_by_32_warps(columns: int) -> None:
    (x,) = arguments("softmax", columns, torch.float32, MORE)
    launch = launched("softmax", "triton", x)
    assert math.prod(launch.block) == 1024 and not COPIES.search(ptx(launch))
    y = dispatch.function("softmax")(x, backend="triton")
    assert torch.allclose(y.double(), torch.softmax(x.double(), -1), rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("columns", [13713, 16383, 13712])
def test_long_rows_of_two_inputs_wait_in_shared_memory(columns: int) -> None:
    """In fp32, wherever between two accesses they begin: 16383 has elements on either side of each of its rows."""
    grad, x = arguments("softmax", columns, torch.float32, 2 * MORE)[0].chunk(2)
    y = torch.softmax(x, -1)
    assert COPIES.search(ptx(launched("softmax_backward", "triton", grad, y)))
    got = dispatch.function("softmax_backward")(grad, y, backend="triton").double()
    products = grad.double() * y.double()
    want = products - y.double() * products.sum(-1, keepdim=True)
    assert torch.allclose(got, want, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("columns", [40001, 13713, 13712])
def test_elements_beside_whole_accesses_are_one_to_a_thread(columns: int) -> None:
    """Of a peeled row in shared memory; a row that starts aligned has none."""
    x = arguments("softmax", columns, torch.bfloat16)
    with cards.standing_for(replace(cards.table()["h200"], processors=1)):
        stores = ACCESS.findall(ptx(launched("softmax", "triton", *x)))
    single = [access for access in stores if access.startswith("st.") and not re.search(r"\.v4\.[buf]32$", access)]
    assert len(single) == columns % 2


@pytest.mark.parametrize(
    ("columns", "dtype"), [(13713, torch.bfloat16), (40001, torch.bfloat16), (27001, torch.float32)]
)
def test_a_row_may_be_one_element_again_and_again(columns: int, dtype: torch.dtype) -> None:
    """Such rows, an element apart, begin as far from whole accesses as the rows of the output, but have none themselves."""
    column = torch.arange(1, MORE + 1).to(dtype)[:, None]
    q, scale = kx.quantize_rowwise(column.expand(MORE, columns), backend="triton/resident")
    assert torch.equal(scale.flatten(), column.float().flatten() / 127) and bool((q == 127).all())


@pytest.mark.parametrize(("op", "variant"), [("softmax", "resident"), ("quantize_rowwise", "resident")])
def test_long_rows_may_begin_anywhere(op: str, variant: str) -> None:
    """Two bytes from a multiple of 16, dense, with gaps and all in one place: the same bits as from a multiple of 16."""
    whole = arguments("softmax", 40100, torch.bfloat16, 3)[0].flatten()
    call = getattr(kx, op)
    with cards.standing_for(replace(cards.table()["h200"], processors=1)):
        for strides in ((40000, 1), (40050, 1), (0, 1)):
            x = whole.as_strided((2, 40000), strides, 1)
            got, want = (call(y, backend=f"triton/{variant}") for y in (x, x.contiguous()))
            for a, b in zip(*((z,) if isinstance(z, torch.Tensor) else z for z in (got, want)), strict=True):
                assert torch.equal(a.float(), b.float()), strides


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm"])
def test_few_long_rows_are_in_pieces(op: str) -> None:
    """A program for each piece, then one for some columns of a row."""
    x, *vectors = arguments(op, 50257, torch.bfloat16)
    with recorder(run=False) as log:
        dispatch.function(op)(x, *vectors, backend="triton")
    assert [launch.grid[:2] for launch in log] == [(14, 1), (13, 2)]
    whole = dispatch.function(op)(x, *vectors, backend="triton")
    assert torch.equal(dispatch.function(op)(x[1:].clone(), *vectors, backend="triton"), whole[1:])


@pytest.mark.parametrize(("columns", "dtype"), [(131072, torch.bfloat16), (50257, torch.float32)])
def test_longer_rows_are_read_again(columns: int, dtype: torch.dtype) -> None:
    """What fits neither registers nor half of the shared memory comes from L2 the second time, but for what is held."""
    (x,) = arguments("softmax", columns, dtype, MORE)
    assert not COPIES.search(ptx(launched("softmax", "triton", x)))
    y = dispatch.function("softmax")(x, backend="triton")
    assert torch.allclose(y.double(), torch.softmax(x.double(), -1), rtol=2 * torch.finfo(dtype).eps, atol=1e-9)


@pytest.mark.parametrize(("rows", "hints"), [(2, {None, "last"}), (16384, {"last"})])
@pytest.mark.parametrize("op", ["add_rms_norm", "rms_norm"])
def test_what_is_read_of_large_inputs_is_the_last_to_leave_l2(op: str, rows: int, hints: set[str | None]) -> None:
    x, weight = torch.empty(rows, 8192, dtype=torch.bfloat16), torch.empty(8192, dtype=torch.bfloat16)
    inputs = (x, x) if op == "add_rms_norm" else (x,)
    found = hints_of("ld", ptx(launched(op, "triton", *inputs, weight)))
    assert found - ({"first"} if op == "rms_norm" and rows == 2 else set()) == hints  # what is read again leaves then


@pytest.mark.parametrize(("columns", "hints"), [(8192, {"last"}), (16384, {None, "last", "first"})])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_what_is_read_again_of_long_rows_leaves_l2_then(op: str, columns: int, hints: set[str | None]) -> None:
    x = torch.empty(16384, columns, dtype=torch.bfloat16)
    assert hints_of("ld", ptx(launched(op, "triton", x))) == hints


def test_results_of_rows_that_are_read_again_leave_l2_first() -> None:
    for columns, hint in ((131072, "first"), (8192, None)):
        text = ptx(launched("softmax", "triton", torch.empty(MORE, columns, dtype=torch.bfloat16)))
        assert hints_of("st", text) == {hint}


def hints_of(access: str, text: str) -> set[str | None]:
    """The evict_... of the accesses, without that; None for those without a hint."""
    found = [re.search(r"L1::evict_(\w+)", one) for one in ACCESS.findall(text) if one.startswith(access)]
    return {one[1] if one else None for one in found}


@pytest.mark.parametrize("columns", [4099, 5000])
def test_rows_are_written_before_what_is_saved_of_them(columns: int) -> None:
    """Where a vector of an operator has gaps, Triton 3.6 compiles the kernel in no other order."""
    x = torch.ones(2, columns, dtype=torch.float16)
    with recorder(run=False) as log:
        dispatch.function("quantize_rowwise")(x, format="int8", backend="triton")
    stores = [access for access in ACCESS.findall(ptx(log[0])) if access.startswith("st.")]
    single = [access.endswith(".b32") and ".v" not in access for access in stores]
    assert len(stores) > 1 and single == [False] * (len(stores) - 1) + [True]


@pytest.mark.parametrize("columns", [50257, 131072])
def test_long_rows_fit_the_shared_memory_of_smaller_gpus(columns: int) -> None:
    """Triton refuses a kernel that needs more than the 163 KiB of an A100, where 227 of an H200 hold the row."""
    (x,) = arguments("softmax", columns, torch.bfloat16)
    with emulator.triton_driver.target("sm_80"), recorder(run=False) as log:
        dispatch.function("softmax")(x, backend="triton")
    assert 0 <= log[0].shared <= emulator.triton_driver.DEVICES["sm_80"]["max_shared_mem"]
