"""Stores of one result by several threads, rounded differently, are told from races."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, checks, compile_ptx, load
from kernelmux.emulator.memory.redundant_stores import RedundantStore, _finite, _near
from kernelmux.emulator.settings import compiled_scratch
from kernelmux.emulator.tests.launching import needs_nvrtc

# The first threads of each block store a value each to one place, in shared or global memory.
STORE = """extern "C" __global__ void store(TYPE* y, const TYPE* values, int threads) {
  __shared__ TYPE place;
  if (threadIdx.x < threads) TARGET = values[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = PLACE;
}"""
SHARED, GLOBAL = {"TARGET": "place", "PLACE": "place"}, {"TARGET": "y[blockIdx.x]", "PLACE": "y[blockIdx.x]"}


def _store(kind: str, where: dict[str, str], values: np.ndarray) -> None:
    text = STORE.replace("TYPE", kind)
    for name, code in where.items():
        text = text.replace(name, code)
    ptx = compile_ptx(text, arch="sm_90a", filename="store.cu")
    y = np.zeros(3, values.dtype)
    with checks("full"):
        load(ptx).kernel("store").launch(3, 64, (y, values, np.int32(len(values))))
    assert all(v in values for v in y)


@needs_nvrtc
@pytest.mark.parametrize("where", [SHARED, GLOBAL], ids=["shared", "global"])
def test_results_that_differ_in_the_last_bits_are_a_warning(where: dict[str, str]) -> None:
    values = np.where(np.arange(32) % 2, np.float32(1.5), np.nextafter(np.float32(1.5), np.float32(2)))
    with pytest.warns(RedundantStore, match=r"store\.cu:3: redundant store: threads of a block .* on the emulator"):
        _store("float", where, values.astype(np.float32))


@needs_nvrtc
@pytest.mark.parametrize("where", [SHARED, GLOBAL], ids=["shared", "global"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("float", np.linspace(1, 1 + 2**-16, 32, dtype=np.float32)),  # too far apart
        ("float", np.tile(np.array([2**-20, -(2**-20)], np.float32), 16)),  # of two signs
        ("int", np.arange(4, 6, dtype=np.int32)),  # integers have the bits of subnormals
        ("float", np.array([0, 1e-45], np.float32)),
        ("float", np.array([1, np.nan], np.float32)),
        ("double", np.array([1, 1 + 2**-40], np.float64)),
    ],
    ids=["far", "signs", "integers", "subnormal", "nan", "double"],
)
def test_real_races_still_fail(kind: str, values: np.ndarray, where: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EmulatorError) as raised:
            _store(kind, where, values)
    assert raised.value.kind == "race" and raised.value.line == 3


@needs_nvrtc
def test_near_values_of_two_blocks_are_a_race() -> None:
    text = """extern "C" __global__ void store(float* y) { y[0] = blockIdx.x ? 1.0f : 1.0000001f; }"""
    with checks("full"), pytest.raises(EmulatorError, match="race"):
        load(compile_ptx(text, arch="sm_90a")).kernel("store").launch(2, 1, (np.zeros(1, np.float32),))


def test_words_of_16_bits_have_to_be_equal() -> None:
    half = np.array([1, 1], np.float16)
    assert not _near(half, np.nextafter(half, np.float16(2))).any() and _near(half, half).all()


FAR = np.array([0.0, 3e-8, -2e-8, 1.5], np.float32)


@needs_nvrtc
def test_what_only_a_compiler_writes_may_differ_by_more() -> None:
    with compiled_scratch(), pytest.warns(RedundantStore, match="redundant store"):
        _store("float", SHARED, FAR)
    for where, values in ((GLOBAL, FAR), (SHARED, np.array([1, np.nan], np.float32)), (SHARED, np.array([1, np.inf]))):
        with compiled_scratch(), pytest.raises(EmulatorError, match="race"):
            _store("float", where, values.astype(np.float32))


def test_integers_and_infinities_are_never_near() -> None:
    assert _finite(FAR, FAR[::-1].copy()).all()
    assert not _finite(np.array([4, 5], np.int32), np.array([5, 4], np.int32)).any()
    assert not _finite(np.array([1.0, np.inf], np.float32), np.array([np.inf, 1.0], np.float32)).any()
    assert _finite(np.array([1.5], np.float16), np.array([-2.5], np.float16)).all()
