"""Cases: their text form, their seeds, their inputs."""

import math

import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.errors import ArgumentError, SpecError
from kernelmux.registry.spec import cases
from kernelmux.registry.spec.cases import BEYOND_FP16, Case
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import Axis, Scalar, Tensor


def spec_of(*inputs):
    """A spec that is nothing but its arguments."""
    spec = OpSpec.__new__(OpSpec)
    object.__setattr__(spec, "name", "example")
    object.__setattr__(spec, "inputs", inputs)
    return spec


EXAMPLE = spec_of(
    Tensor("x", "M N"),
    Tensor("w", "N"),
    Tensor("s", ""),
    Axis("axis", of="x"),
    Scalar("scale", float, 1.0),
    Scalar("eps", float, 0.0),
    Scalar("stride", int, 1),
    Scalar("keepdim", bool, False),
    Scalar("approximate", str, ""),
)


def test_text_is_parsed_into_shapes_scalars_and_dtypes():
    shapes, scalars, formats = cases.parse(
        "x=37x1000:fp16,axis=-1 scale=0.5 w=7 keepdim=True approximate=tanh s=scalar stride=2 inputs=wide", EXAMPLE
    )
    assert shapes == {"x": (37, 1000), "w": (7,), "s": ()}
    assert scalars == {"axis": -1, "scale": 0.5, "keepdim": True, "approximate": "tanh", "stride": 2, "inputs": "wide"}
    assert formats == {"x": torch.float16}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected name=4x1000"),
        ("x", "expected name=4x1000"),
        ("x=", "expected name=4x1000"),
        ("=3", "expected name=4x1000"),
        ("x=3x4=5", "expected name=4x1000"),
        ("x=3x4:fp16:fp16", "expected name=4x1000"),
        ("x=3x4,", "expected name=4x1000"),
        ("x=3x4:fp12", "dtype: expected"),
        ("x=4xx5", "x: expected lengths such as 4x1000, or scalar for none, got '4xx5'"),
        ("x=4x", "x: expected lengths"),
        ("x=4x5.T", "x: expected lengths"),
        ("w=4.mT", "w: expected two lengths or more before .mT, got '4.mT'"),
        ("scale=3.mT", "scale: expected a number"),
        ("x=4x5y", "x: expected lengths"),
        ("x=-3x4:fp16", "x: expected lengths"),
        ("x=1e3:fp16", "x: expected lengths"),
        ("x=scalar5:fp16", "x: expected lengths"),
        ("x=99999999999999999999", "x: expected at most 2**58 elements"),
        ("x=0x" + "9" * 5000, "x: expected at most 2**58 elements"),
        ("x=9999999999x9999999999", "x: expected at most 2**58 elements"),
        ("x=0x9999999999999999999", "x: expected at most 2**58 elements"),
        ("x=4 x=5x5", "x is given twice, the second time as 'x=5x5'"),
        ("axis=0 axis=1", "axis is given twice"),
        ("scale=0.5.5", "scale: expected a number, True, False, None or a word, got '0.5.5'"),
        ("scale=[]", "scale: expected a number"),
        ("scale=1j", "scale: expected a number"),
        ("scale=(((", "scale: expected a number"),
        ("scale=0.5junk", "scale: expected a number"),
        ("stride=2x2", "stride: expected a number"),
        ("scale=3:fp16", "scale: expected a value, as example takes no tensor scale"),
        (
            "x=4x5 strid=2",
            'unknown argument "strid" in the shapes of example; did you mean "stride"? known: x, w, s, axis, scale, eps',
        ),
    ],
)
def test_malformed_text_is_refused(text, says):
    with pytest.raises(ArgumentError) as raised:
        cases.parse(text, EXAMPLE)
    assert says in str(raised.value)


def test_a_spec_says_what_is_a_tensor():
    spec = spec_of(Tensor("x", "N"), Scalar("count", int), Scalar("power", float, 1.0))
    assert cases.parse("x=7 count=3 power=2", spec)[:2] == ({"x": (7,)}, {"count": 3, "power": 2})
    with pytest.raises(ArgumentError, match="x: expected lengths such as 4x1000"):
        cases.parse("x=tanh", spec)
    with pytest.raises(ArgumentError, match="count: expected a number"):
        cases.parse("count=4x5", spec)


def test_a_case_without_a_spec_is_not_read():
    with pytest.raises(SpecError, match="expected the case of a spec"):
        _ = Case("x=4x5").shapes
    assert catalog.spec("softmax").case("x=4x5 axis=0").scalars == {"axis": 0}


def test_special_numbers_are_values():
    values = cases.parse("scale=-inf eps=nan", EXAMPLE)[1]
    assert values["scale"] == -math.inf and math.isnan(values["eps"])


def test_names_tell_cases_apart():
    assert Case("x=3x4 axis=0").name == "x3x4-axis0"
    assert Case("x=3x4", inputs="wide").name == "x3x4-wide"


def test_seeds_depend_on_every_part_and_on_nothing_else():
    assert cases.seed_of("a", 1) == cases.seed_of("a", 1)
    assert len({cases.seed_of(*p) for p in [("a", 1), ("a", 2), ("b", 1)]}) == 3


@pytest.mark.parametrize("name", sorted({*cases.DISTRIBUTIONS} - {*BEYOND_FP16, "masked", "ties"}))
def test_distributions_are_finite_in_fp16_and_not_constant(name):
    x = cases.draw((64, 33), torch.float16, cases.generator(name), name)
    assert x.isfinite().all() and x.unique().numel() > 10


@pytest.mark.parametrize("name", BEYOND_FP16)
def test_distributions_outside_of_fp16_are_not_constant(name):
    x = cases.draw((64, 33), torch.bfloat16, cases.generator(name), name)
    assert x.isfinite().all() and x.unique().numel() > 10


@pytest.mark.parametrize("name", BEYOND_FP16)
def test_eight_bits_are_not_constant_either(name):
    x = cases.draw((64, 33), torch.float8_e4m3fn, cases.generator(name), name).float()
    assert x.isfinite().all() and x.unique().numel() > 10


def test_scattered_numbers_are_of_every_size():
    x = cases.draw((64, 33), torch.float32, cases.generator("scattered"), "scattered").abs()
    assert x.min() < 2.0**-60 and x.max() > 2.0**60
    assert (x * x[0]).isfinite().float().mean() > 0.95


def test_the_largest_of_many_ties_are_zeros_of_both_signs():
    x = cases.draw((64, 33), torch.float16, cases.generator("ties"), "ties")
    largest = torch.signbit(x[x == x.max()])
    assert x.max() == 0 and largest.any() and not largest.all() and x.unique().numel() == 3


def test_integer_inputs_cover_their_range():
    x = cases.draw((10000,), torch.int8, cases.generator("int"))
    assert (x.min() == -128 and x.max() == 126) or x.max() == 127


def test_exact_integers_are_never_zero_and_bounded():
    x = cases.integers((1000,), torch.float32, cases.generator("exact"), 5)
    assert x.abs().min() >= 1 and x.abs().max() == 5


@pytest.mark.parametrize(
    ("terms", "dtype", "products", "largest"),
    [(16, torch.float32, False, 2**20), (16, torch.bfloat16, True, 4), (10**9, torch.float16, False, 0)],
)
def test_exact_range(terms, dtype, products, largest):
    assert cases.exact_range(terms, dtype, products) == largest


def test_images_of_a_case_may_lie_channels_last():
    spec = catalog.spec("conv2d")
    case = spec.case("x=2x8x5x6 weight=4x8x3x3 channels-last")
    drawn = spec.drawn(case, torch.float16, cases.generator("order"))
    asked = spec.hypothetical(case, torch.float16).tensors
    assert {x.stride() for x in (drawn["x"], asked["x"])} == {(240, 1, 48, 8)}
    assert spec.drawn(spec.case("x=2x8x5x6 weight=4x8x3x3"), torch.float16, cases.generator("order"))[
        "x"
    ].is_contiguous()
    with pytest.raises(ArgumentError, match="channels-last"):
        _ = catalog.spec("softmax").case("x=3x3 channels-last").parsed


def test_a_tensor_may_lie_as_a_transposed_view():
    spec = catalog.spec("fp8_matmul")
    case = spec.case("a=4x32 b=32x16.mT scale_a=scalar scale_b=scalar")
    drawn = spec.drawn(case, torch.float8_e4m3fn, cases.generator("lies"))
    untouched = spec.untouched(case, torch.float8_e4m3fn)
    for made in (drawn, untouched, spec.hypothetical(case).arguments):
        assert made["a"].shape == (4, 32) and made["a"].is_contiguous()
        assert made["b"].shape == (32, 16) and made["b"].stride() == (1, 32)
    values = spec.hypothetical(case).arguments
    assert "b=32x16.mT:e4m3" in cases.arguments_text(spec, tuple(values[i.name] for i in spec.inputs))
    swept = cases.parse("a=4x32 b=32x16.mT:e5m2 scale_a=scalar scale_b=scalar", spec)
    assert swept[0]["b"] == (32, 16) and swept[2]["b"] == torch.float8_e5m2
