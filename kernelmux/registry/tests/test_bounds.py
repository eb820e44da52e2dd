"""What the bound accepts and refuses: sequential sums in fp32, scaled exponents, subnormal products, values that move."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.ops import softmax
from kernelmux.registry.spec import cases, numerics
from kernelmux.registry.spec.binding import expected
from kernelmux.registry.spec.numerics import FP32, FP32_SEQUENTIAL, ErrorModel, compare
from kernelmux.registry.spec.op_spec import NoExact
from kernelmux.registry.spec.signature import Axis, Scalar, exact_arguments

OPS = catalog.names()
SUM = ErrorModel(magnitude=lambda m: m, terms=lambda axes: axes["N"])


def limit(ref, terms, how=FP32_SEQUENTIAL, correlated=False):
    """The bound of sums of positive terms, in float64."""
    ref = torch.as_tensor(ref, dtype=torch.float64)
    made = numerics.bound(SUM, how, ref, torch.float32, torch.float32, (ref,), {"N": terms}, correlated)
    return ref, made.total


def positive(n, rng):
    return rng.random(n, dtype=np.float32)


def squares(n, rng):
    """Squares over many orders of magnitude, as rms_norm adds them: one term may be most of the sum from the start."""
    x = rng.standard_normal(n, dtype=np.float32) * np.exp(2 * rng.standard_normal(n, dtype=np.float32))
    return np.square(x.clip(-1000, 1000), dtype=np.float32)


def sequential(terms, outputs, length):
    """Sums of `length` neighbours of `terms` for each of the outputs, one chain in fp32 each; and the same in float64."""
    sums = np.zeros(outputs, np.float32)
    for k in range(length):
        sums += terms[k : k + outputs]
    total = np.concatenate([[0.0], np.cumsum(terms, dtype=np.float64)])
    return sums, total[length : length + outputs] - total[:outputs]


@pytest.mark.parametrize("draw", [positive, squares])
@pytest.mark.parametrize(
    ("outputs", "length", "seeds"), [(2**19, 4096, 2), (2**14, 4096, 4), (2**16, 64, 8), (100, 8, 50)]
)
def test_one_chain_in_fp32_stays_within_the_bound_in_every_output(draw, outputs, length, seeds):
    used = []
    for seed in range(seeds):
        sums, exact = sequential(draw(outputs + length, np.random.default_rng(seed)), outputs, length)
        ref, allowed = limit(exact, length)
        used.append(compare(torch.from_numpy(sums), ref, allowed).budget)
    assert 0.1 < max(used) < 1, used


def test_a_dropped_term_of_a_long_sum_is_refused():
    sums, exact = sequential(positive(8192, np.random.default_rng(0)), 4096, 4095)
    ref, allowed = limit(exact + 0.25, 4096)
    assert compare(torch.from_numpy(sums), ref, allowed).wrong.all()


@pytest.mark.parametrize("accumulator", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [64, 4096])
def test_a_16_bit_accumulator_is_refused(accumulator, length):
    terms = torch.rand(1000, length, generator=cases.generator("accumulator"))
    sums = torch.zeros(1000, dtype=accumulator)
    for k in range(length):
        sums = (sums.float() + terms[:, k]).to(accumulator)
    ref, allowed = limit(terms.double().sum(1), length)
    assert compare(sums.float(), ref, allowed).wrong.float().mean() > 0.9


def test_equal_terms_may_all_be_rounded_to_the_same_side():
    sums, exact = sequential(np.full(4096, np.float32(0.7)), 1, 4096)
    ref, allowed = limit(exact, 4096)
    assert compare(torch.from_numpy(sums), ref, allowed).budget > 1
    ref, allowed = limit(exact, 4096, correlated=True)
    assert compare(torch.from_numpy(sums), ref, allowed).passed


def test_an_expanded_tensor_repeats_its_terms_and_a_view_of_one_row_does_not():
    x = torch.rand(3, 1)
    assert numerics.repeats(x.expand(3, 7)) and numerics.repeats(x[0].expand(7))
    assert not any(numerics.repeats(y) for y in (x, x.t(), x.expand(3, 1), torch.rand(1, 5)[:, ::2], torch.rand(())))


def test_the_tail_grows_with_the_outputs_and_never_beyond_the_chain():
    assert numerics.tail(4096, 1) < numerics.tail(4096, 2**20) < 4096
    assert numerics.tail(3, 2**40) == 3 and numerics.tail(4096, 1, correlated=True) == 4096
    assert numerics.tail(4096, 0) == numerics.tail(4096, 1)


# ---- softmax: what becomes of the rounding of scale * x


def scaled(form, x, scale):
    """Softmax of rows, scaled in fp32 in one of the forms that kernels have; the rest in float64."""
    z, s = (x.astype(np.float64) * np.float32(scale)).astype(np.float32), np.float64(np.float32(scale))
    top = z.max(-1, keepdims=True).astype(np.float64)
    distance = {
        "rounded": z - top,
        "subtracted first": (x * np.sign(s) - (x * np.sign(s)).max(-1, keepdims=True)) * abs(s),
        "fused into the subtraction": x.astype(np.float64) * s - top,
    }[form]
    e = np.exp(distance.astype(np.float32).astype(np.float64))
    rounded = np.exp((z - top).astype(np.float32).astype(np.float64))
    return torch.from_numpy(e / (rounded if form.startswith("fused") else e).sum(-1, keepdims=True))


def used(form, x, scale):
    spec, call = catalog.spec("softmax"), (torch.from_numpy(x).double(), 1, scale)
    ref = softmax.reference(*call)
    made = numerics.bound(spec.errors[0], FP32, ref, torch.float32, torch.float32, call, {"N": x.shape[1]})
    return compare(scaled(form, x, scale).float(), ref, made.total).budget


INPUTS = {
    "large": lambda rng: rng.standard_normal((200, 300), dtype=np.float32) * 30,
    "wide": lambda rng: squares((200, 300), rng).clip(0, 1000) ** 0.5,
    "close": lambda rng: 100 + rng.standard_normal((200, 300), dtype=np.float32),
}
SCALES = (0.3, 3.0, -3.0, 10.0, 100.0, 1e-3, 1e5)


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("form", ["rounded", "subtracted first"])
def test_both_sound_ways_to_scale_are_within_the_bound(form, scale, inputs):
    for seed in range(3):
        assert used(form, INPUTS[inputs](np.random.default_rng(seed)).astype(np.float32), scale) < 1


@pytest.mark.parametrize("scale", [3.0, 10.0, 100.0])
def test_a_product_fused_into_the_subtraction_of_a_rounded_maximum_is_refused(scale):
    assert used("fused into the subtraction", INPUTS["large"](np.random.default_rng(0)), scale) > 5


def test_without_the_rounding_of_the_product_the_bound_refuses_what_torch_does(monkeypatch):
    spec, x = catalog.spec("softmax"), INPUTS["large"](np.random.default_rng(0))
    bare = replace(spec, error=replace(spec.errors[0], amplified=None))
    monkeypatch.setattr(catalog, "spec", lambda op: bare)
    assert used("rounded", x, 3.0) > 1


def test_a_scale_that_is_a_power_of_two_rounds_nothing():
    x = torch.randn(3, 5, generator=cases.generator("power"), dtype=torch.float64)
    assert all(not softmax.amplified(x, 1, scale).any() for scale in (0.0, 1.0, -0.5, 8.0))
    assert softmax.amplified(x, 1, 3.0).all()


# ---- subnormal numbers, and values that are only moved


def test_subnormal_products_may_be_rounded_one_by_one_and_not_flushed():
    terms, size = 64, np.float32(2.0**-140)
    x, y = (np.random.default_rng(s).random((2000, terms), dtype=np.float32) for s in (0, 1))
    sums = np.zeros(2000, np.float32)
    for k in range(terms):
        sums += x[:, k] * size * y[:, k]
    ref, allowed = limit(((x * size).astype(np.float64) * y).sum(1), terms)
    assert compare(torch.from_numpy(sums), ref, allowed).passed
    assert compare(torch.zeros(2000), ref, allowed).wrong.all()


def test_what_may_be_flushed_is_what_fp32_calls_subnormal():
    """A result of fp16 that is subnormal there is computed in fp32, where it is normal: it may not be lost."""
    (model,) = catalog.spec("gelu").errors
    floors = {dtype: numerics._floor(model, 1, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)}
    assert floors == {torch.float32: 2.0**-126, torch.bfloat16: 2.0**-126, torch.float16: 2.0**-24}


@pytest.mark.parametrize("op", ["transpose", "copy_column"])
def test_what_only_moves_values_may_not_flush_the_smallest(op):
    (model,) = catalog.spec(op).errors
    assert numerics._floor(model, 1, torch.float32) == 0
    ref = torch.tensor([2.0**-149, 0.0, 1.0], dtype=torch.float64)
    assert compare(ref.float(), ref, torch.zeros(3, dtype=torch.float64)).passed
    flushed = compare(torch.tensor([0.0, 0.0, 1.0]), ref, torch.zeros(3, dtype=torch.float64))
    assert flushed.wrong.tolist() == [True, False, False]


# ---- what specs promise about their scalars and their exact inputs


@pytest.mark.parametrize("op", OPS)
def test_every_scalar_has_trials_that_the_spec_accepts(op):
    spec = catalog.spec(op)
    for item in spec.inputs:
        if not isinstance(item, Scalar):
            continue
        assert item.trials, item.name
        numbers = [n for v in item.trials for n in (v if item.length and isinstance(v, tuple) else (v,))]
        assert all(isinstance(v, item.type) for v in numbers)
        assert not any(expected(item, v) for v in numbers)
        if item.type is float:  # zero if it may be, something that is no power of two
            assert 0.0 in item.trials or (item.range and item.range[0] > 0)
            assert any(math.frexp(v)[0] not in (0.0, 0.5, -0.5) for v in item.trials)


@pytest.mark.parametrize("op", [op for op in OPS if not isinstance(catalog.spec(op).exact, NoExact)])
def test_a_case_of_tier_ci_has_exact_inputs_in_every_dtype(op):
    spec = catalog.spec(op)
    asked = [c for c in spec.cases if c.tier in ("smoke", "ci")]
    for dtype in spec.dtypes:
        assert any(spec.exact(c, dtype, cases.generator("exact", op)) is not None for c in asked), dtype


@pytest.mark.parametrize("op", OPS)
def test_operators_along_an_axis_have_cases_with_equal_axes_and_with_axes_of_length_one(op):
    spec = catalog.spec(op)
    first = [c.shapes[spec.leading.name] for c in spec.cases]
    assert any(len(s) > 1 and s[-1] == s[-2] > 1 for s in first) or op in (
        "attention",
        "attention_backward",
        "paged_attention",
        "gelu",
    )
    if any(isinstance(i, Axis) for i in spec.inputs):
        assert any(len(s) == 3 and s.count(1) == 2 for s in first) and any(
            len(set(s)) == 1 and len(s) == 3 for s in first
        )


def test_inputs_of_the_masked_distribution_begin_with_blocks_of_minus_infinity():
    x = cases.draw((2, 9001), torch.float32, cases.generator("masked"), "masked")
    assert (x[:, :5625] == -math.inf).all() and x[:, 5625:].isfinite().all()
    x = cases.draw((80, 5), torch.float32, cases.generator("masked"), "masked")
    assert (x[:50] == -math.inf).all() and x[50:].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiny_inputs_are_subnormal_for_the_most_part(dtype):
    x = cases.draw((1000,), dtype, cases.generator("tiny"), "tiny")
    share = ((x != 0) & (x.abs() < torch.finfo(dtype).smallest_normal)).float().mean()
    assert 0.5 < share < 0.99


def test_weights_below_the_smallest_normal_number_may_be_dropped():
    """Of two keys one weighs 2^-126 / 1.1, and the other one's value is 0: what is left is that weight times a value."""
    spec, scale = catalog.spec("attention"), math.log(2.0**-126 / 1.1)
    q, k, v = torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 2, 64), torch.zeros(1, 1, 2, 64)
    q[..., 0], k[0, 0, 1, 0], v[0, 0, 1] = 1, 1, 1.5
    call = spec.bind(*(x.bfloat16() for x in (q, k, v)), scale=scale)
    ref, _ = spec.evaluate(call)
    made = numerics.bound(
        spec.errors[0], numerics.MMA, ref, torch.bfloat16, torch.bfloat16, exact_arguments(call), call.axes
    )
    assert float(ref.max()) > torch.finfo(torch.bfloat16).smallest_normal
    assert compare(torch.zeros_like(ref).bfloat16(), ref, made.total).passed
    assert not compare(torch.full_like(ref, 1e-37).bfloat16(), ref, made.total).passed
