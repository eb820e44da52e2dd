"""Generated shapes are legal, varied, reproducible, and inside what a variant declares."""

from __future__ import annotations

import pytest
import torch

from kernelmux.conformance import generate
from kernelmux.registry import catalog
from kernelmux.registry.conditions import Dtypes, Multiple, OneOf


@pytest.mark.parametrize("op", catalog.names())
def test_generated_shapes_are_varied_and_small(op: str) -> None:
    found = [case for case, _ in generate.cases(catalog.spec(op), (), 20, 4096, 0)]
    assert len(found) == len({case.name for case in found}) == 20
    sizes = [max(len(shape) and max(shape) for shape in case.shapes.values()) for case in found]
    assert len(set(sizes)) > 4


def test_the_seed_decides() -> None:
    spec = catalog.spec("softmax")
    once, again, other = ([c.name for c, _ in generate.cases(spec, (), 8, 4096, seed)] for seed in (0, 0, 1))
    assert once == again != other


def test_conditions_narrow_the_axes() -> None:
    spec = catalog.spec("matmul")
    found = list(generate.cases(spec, (Multiple("K", 8), OneOf("N", 24), Dtypes("a", torch.float16)), 10, 4096, 0))
    assert len(found) == 10 and all(able in ([], [torch.float16]) for _, able in found)
    assert sum(bool(able) for _, able in found) >= 8
    assert all(c.shapes["a"][1] % 8 == 0 and c.shapes["b"][1] == 24 for c, able in found if able)
