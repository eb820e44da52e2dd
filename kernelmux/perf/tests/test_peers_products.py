"""Products of other libraries: what they get and give, and which calls they take."""

import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from kernelmux.perf import peers
from kernelmux.perf.peers._libraries import once, single
from kernelmux.perf.peers.fp8_matmul import rows_inside
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.ops import fp8_matmul

T = torch.Tensor
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
pytestmark = pytest.mark.usefixtures("joined")


@pytest.fixture
def deep_gemm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a module of that name whose functions are the given ones."""

    def given(**functions: Any) -> None:
        module = ModuleType("deep_gemm")
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, "deep_gemm", module)

    return given


def eight(m: int, k: int, n: int, scales: str = "blocks", **scalars: Any) -> list[Any]:
    groups, columns = -(-k // 128), -(-n // 128)
    shapes = {"blocks": ((m, groups), (groups, columns)), "lines": ((m, 1), (1, n)), "all": ((), ())}[scales]
    a, b = torch.randn(m, k).to(E4M3), torch.randn(n, k).to(E4M3).mT
    arguments = {"out_dtype": "bf16", "accumulation": "full"} | scalars
    return [a, b, *(torch.rand(shape) + 0.5 for shape in shapes), *arguments.values()]


def test_deep_gemm_gets_scales_of_blocks_in_its_own_order(deep_gemm: Callable[..., None]) -> None:
    def fp8_gemm_nt(a: tuple[T, T], b: tuple[T, T], c: T) -> None:
        (x, of_x), (y, of_y) = a, b
        assert of_x.stride() == (1, 8) and of_x.shape == (6, 4)  # M contiguous, columns from multiples of 16 bytes on
        assert y.is_contiguous() and of_y.is_contiguous() and of_y.shape == (2, 4)  # [N K] and its blocks
        wide = [fp8_matmul.spread(of_x, *x.shape), fp8_matmul.spread(of_y, *y.shape)]
        c.copy_((x.double() * wide[0]) @ (y.double() * wide[1]).mT)

    deep_gemm(fp8_gemm_nt=fp8_gemm_nt)
    arguments = eight(6, 512, 136)
    got = registered.variants(peers.NAME, "fp8_matmul")["deep_gemm"].fn(*arguments)
    a, b, scale_a, scale_b = (x.double() for x in arguments[:4])
    wanted = fp8_matmul.reference(a, b, scale_a, scale_b, "bf16", "full")
    assert got.dtype == BF16 and torch.equal(got, wanted.to(BF16))


def test_torch_gets_scales_of_blocks_in_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, ...]] = []

    def scaled_mm(a: T, b: T, scale_a: T, scale_b: T, **options: Any) -> T:
        found.extend([scale_a.shape, scale_a.stride(), scale_b.shape, scale_b.stride()])
        return a.new_empty(len(a), b.shape[1], dtype=options["out_dtype"])

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    registered.variants(peers.NAME, "fp8_matmul")["scaled_mm"].fn(*eight(8, 512, 256))
    assert found == [(8, 4), (1, 8), (4, 2), (1, 4)]


@pytest.mark.parametrize(
    ("arguments", "torch_takes", "deep_gemm_takes"),
    [
        (eight(8, 512, 256), True, True),
        (eight(8, 640, 256), False, True),
        (eight(8, 512, 256, out_dtype="fp32"), True, False),
        (eight(8, 512, 256, "lines"), True, False),
        (eight(8, 512, 256, "lines", out_dtype="fp32"), False, False),
        (eight(8, 512, 256, "all", out_dtype="fp32"), True, False),
        (eight(8, 512, 256, "all", accumulation="fast"), True, False),
    ],
)
def test_which_products_of_8_bits_they_take(arguments: list[Any], torch_takes: bool, deep_gemm_takes: bool) -> None:
    call = catalog.spec("fp8_matmul").bind(*arguments)
    found = registered.variants(peers.NAME, "fp8_matmul")
    for name, takes in (("scaled_mm", torch_takes), ("deep_gemm", deep_gemm_takes)):
        own = [condition for condition in found[name].requires if not hasattr(condition, "library")]
        assert all(condition.check(call) is None for condition in own) == takes, name


def test_products_in_bf16_by_deep_gemm(deep_gemm: Callable[..., None]) -> None:
    deep_gemm(
        bf16_gemm_nn=lambda a, b, c: c.copy_(a @ b),
        bf16_gemm_nt=lambda a, b, c: c.copy_(a @ b.mT),
    )
    x, weight = torch.randn(2, 3, 16, dtype=BF16), torch.randn(8, 16, dtype=BF16)
    product = registered.variants(peers.NAME, "matmul")["deep_gemm"].fn(x[0], weight.mT, "ieee")
    assert torch.equal(product, x[0] @ weight.mT)
    y, z = registered.variants(peers.NAME, "linear")["deep_gemm"].fn(x, weight, None, "none", "ieee")
    assert torch.equal(y, x @ weight.mT) and z.numel() == 0


@pytest.mark.parametrize(
    ("op", "arguments", "told"),
    [
        ("matmul", (torch.empty(2, 3, 16, dtype=BF16), torch.empty(16, 8, dtype=BF16)), "a and b with 3 and 2 axes"),
        ("matmul", (torch.empty(3, 16, dtype=BF16), torch.empty(16, 8, dtype=BF16)), None),
        (
            "linear",
            (torch.empty(3, 16, dtype=BF16), torch.empty(8, 16, dtype=BF16), torch.empty(8, dtype=BF16)),
            "bias",
        ),
        ("linear", (torch.empty(3, 16, dtype=BF16), torch.empty(8, 16, dtype=BF16), None, "relu"), "activation"),
        ("linear", (torch.empty(3, 16, dtype=BF16), torch.empty(8, 16, dtype=BF16)), None),
    ],
)
def test_which_products_in_bf16_deep_gemm_takes(op: str, arguments: tuple[Any, ...], told: str | None) -> None:
    call = catalog.spec(op).bind(*arguments)
    found = registered.variants(peers.NAME, op)["deep_gemm"]
    problems = [problem for c in found.requires if not hasattr(c, "library") and (problem := c.check(call))]
    assert (told in problems[0]) if told else not problems


def test_a_conversion_is_made_once_for_each_tensor() -> None:
    asked = []

    @once
    def doubled(x: T) -> T:
        asked.append(x)
        return 2 * x

    one, other = torch.ones(2), torch.ones(2)
    assert doubled(one) is doubled(one) and doubled(other) is not doubled(one) and len(asked) == 2
    assert single(one.half()).dtype == torch.float32 and single(one) is one


def test_a_tensor_that_needs_no_copy_is_not_kept() -> None:
    x = torch.ones(3, 4)
    gone = weakref.ref(x)
    assert rows_inside(x.mT).stride() == (1, 4) and single(x) is x
    del x
    assert gone() is None
