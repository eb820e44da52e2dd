"""Binding: symbolic axes, dtypes, scalars, devices; every refusal names op, argument, expected and got."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import ArgumentError


def bind(op, *args, **kwargs):
    return catalog.spec(op).bind(*args, **kwargs)


def test_axes_get_their_lengths():
    call = bind("matmul", torch.empty(2, 3), torch.empty(3, 5))
    assert {k: call.axes[k] for k in "MKN"} == {"M": 2, "K": 3, "N": 5}


def test_leading_axes_are_a_tuple():
    call = bind("rms_norm", torch.empty(2, 3, 4), torch.empty(4))
    assert call.axes == {"...": (2, 3), "N": 4}


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "text"),
    [
        (
            "matmul",
            (torch.empty(2, 3), torch.empty(4, 5)),
            {},
            r"axis K is 3 from a\.shape\[1\] but 4 from b\.shape\[0\]",
        ),
        (
            "add",
            (torch.empty(2, 3), torch.empty(2, 4)),
            {},
            r"axis \.\.\. is \[2, 3\] from x\.shape\[0:2\] but \[2, 4\]",
        ),
        ("rms_norm", (torch.empty(()), torch.empty(1)), {}, r"x: expected shape \[\.\.\. N\], got \[\] \(0 axes\)"),
        ("transpose", (torch.empty(2, 3, 4),), {}, r"x: expected shape \[M N\], got \[2, 3, 4\] \(3 axes\)"),
        ("softmax", ([1.0, 2.0],), {}, r"x: expected a torch\.Tensor \[\.\.\.\], got list"),
        ("softmax", (torch.empty(3, dtype=torch.int64),), {}, r"x: expected dtype one of fp32, fp16, bf16, got i64"),
        ("add", (torch.empty(3), torch.empty(3, dtype=torch.float16)), {}, r"y: expected dtype fp32 like x, got fp16"),
        ("softmax", (torch.empty(3),), {"axis": 1}, r"axis: expected -1 <= axis < 1 for x with 1 axes, got 1"),
        ("softmax", (torch.empty(()),), {}, r"axis: expected a tensor with at least one axis"),
        ("softmax", (torch.empty(3),), {"axis": 0.0}, r"axis: expected an int, got 0\.0 \(float\)"),
        ("softmax", (torch.empty(3),), {"scale": True}, r"scale: expected float, got True \(bool\)"),
        ("gelu", (torch.empty(3),), {"approximate": "erf"}, r"approximate: expected one of 'none', 'tanh', got 'erf'"),
        (
            "rms_norm",
            (torch.empty(3), torch.empty(3)),
            {"eps": -1.0},
            r"eps: expected 1e-20 <= eps .* or eps = 0\.0, got -1\.0",
        ),
        ("copy_column", (torch.empty(3, 2), 2), {}, r"expected 0 <= column < N, got N = 2"),
        ("softmax", (torch.eye(3).to_sparse(),), {}, r"x: expected a strided tensor, got torch\.sparse_coo"),
    ],
)
def test_wrong_calls_are_refused_by_name(op, args, kwargs, text):
    with pytest.raises(ArgumentError, match=f"^{op}: {text}"):
        bind(op, *args, **kwargs)


def test_grouped_heads_must_divide():
    q, k = torch.empty(1, 3, 4, 64, dtype=torch.float16), torch.empty(1, 2, 4, 64, dtype=torch.float16)
    with pytest.raises(ArgumentError, match="attention: expected H a multiple of G"):
        bind("attention", q, k, k)


def test_a_window_has_a_key_at_least():
    q, k = torch.empty(1, 2, 5, 64, dtype=torch.float16), torch.empty(1, 2, 4, 64, dtype=torch.float16)
    assert bind("attention", q, k, k, True, window=1)
    with pytest.raises(ArgumentError, match="attention: window"):
        bind("attention", q, k, k, True, window=0)


def test_attention_takes_more_queries_than_keys_no_keys_and_every_width():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for rows, keys, columns in ((5, 4, 64), (5, 0, 64), (0, 5, 1), (3, 3, 1000)):
            q, k = torch.empty(1, 2, rows, columns, dtype=dtype), torch.empty(1, 1, keys, columns, dtype=dtype)
            assert bind("attention", q, k, k, True).arguments["scale"] == columns**-0.5
    with pytest.raises(ArgumentError, match="attention: expected G >= 1"):
        bind("attention", q, k[:, :0], k[:, :0])


def test_axes_are_normalised_and_defaults_filled():
    assert bind("softmax", torch.empty(2, 3, 4), -2).arguments["axis"] == 1
    assert bind("reduce_sum", torch.empty(2)).arguments["axis"] is None
    q = torch.empty(1, 1, 4, 64, dtype=torch.float16)
    assert bind("attention", q, q, q).arguments["scale"] == 0.125
    assert isinstance(bind("softmax", torch.empty(2), scale=2).arguments["scale"], float)


def test_devices_must_agree():
    with pytest.raises(ArgumentError, match="add: expected all tensors on one device, got x on cpu, y on meta"):
        bind("add", torch.empty(2), torch.empty(2, device="meta"))


def freed():
    x = torch.ones(4, 3)[1:]
    x.untyped_storage().resize_(0)
    return x


def nested():
    return torch._nested_tensor_from_mask(torch.ones(1, 2, 3), torch.ones(1, 2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (freed, r"expected 9 elements in memory, got a storage that was freed or shrunk to 0"),
        (
            lambda: torch._efficientzerotensor((3,)),
            r"expected 3 elements in memory, got a tensor of zeros without memory",
        ),
        (nested, r"expected a strided tensor, got a nested tensor"),
        (lambda: torch.ones(2, 2).to_mkldnn(), r"expected a strided tensor, got torch\._mkldnn"),
        (lambda: torch.zeros(1).expand(2**40), r"expected an output that fits, got \[1099511627776\]: 4096 GiB, and"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_no_kernel_could_read_or_write_are_refused(make, text):
    for run in (dispatch.function("softmax"), dispatch.function("gelu")):
        for _ in range(2):
            with pytest.raises(ArgumentError, match=text):
                run(make())


def test_memory_that_is_freed_after_the_first_call_is_noticed():
    x = torch.ones(4, 3)
    dispatch.function("softmax")(x)
    x.untyped_storage().resize_(0)
    with pytest.raises(ArgumentError, match="a storage that was freed"):
        dispatch.function("softmax")(x)


@pytest.mark.parametrize("value", [10**400, 1e39, -1e39, float("nan"), float("inf"), 10**5000], ids=range(6))
def test_a_number_that_fp32_cannot_hold_is_refused(value):
    with pytest.raises(ArgumentError, match="softmax: scale: expected a finite number that fp32 can hold"):
        dispatch.function("softmax")(torch.zeros(3), scale=value)
    with pytest.raises(ArgumentError, match="rms_norm: eps: expected"):
        dispatch.function("rms_norm")(torch.zeros(3), torch.zeros(3), eps=value)


def test_numbers_of_numpy_are_numbers():
    softmax, x = dispatch.function("softmax"), torch.linspace(0, 1, 6).reshape(2, 3)
    want = softmax(x, 0, 0.5)
    for axis, scale in ((np.int64(0), np.float32(0.5)), (np.int8(-2), np.float64(0.5)), (0, Fraction(1, 2))):
        assert torch.equal(softmax(x, axis, scale), want)
    with pytest.raises(ArgumentError, match=r"keepdim: expected bool, got .*\(numpy\.bool"):
        dispatch.function("reduce_sum")(x, keepdim=np.bool_(True))
