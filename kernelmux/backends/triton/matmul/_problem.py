"""What the plan of a product depends on, and how a kernel finds the factors of each product of a batch."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import torch

from kernelmux.backends.triton._launch.launch import Ints, cdiv, plan
from kernelmux.backends.triton.matmul._epilogue import EpilogueTerms
from kernelmux.registry.util import batch_strides
from kernelmux.registry.util.batch_strides import Batch

Lead = tuple[tuple[int, int], ...]
ONE = Batch(1, 1, (0, 0), (0, 0))
ALIGNED = 16  # elements: a stride that the copy engine takes in every dtype


class MatmulShapes(NamedTuple):
    """Device, sizes and strides of a [M, K] and b [K, N], where the next ones of a batch are (None: there is one of
    each), dtype, for fp32 the precision ("ieee" or "tf32"), and its end."""

    device: int
    M: int
    N: int
    K: int
    a_strides: Ints
    b_strides: Ints
    batch: Batch | None
    dtype: torch.dtype
    precision: str
    end: EpilogueTerms

    @property
    def layouts(self) -> str:
        """Of a and b: "r" where rows are contiguous, else "c"."""
        return "".join("r" if strides[1] == 1 else "c" for strides in (self.a_strides, self.b_strides))

    @property
    def unit(self) -> int:
        """Elements, up to 16, of which strides, but for those of 1, and the lengths of lines are multiples."""
        lengths = (self.K if self.a_strides[1] == 1 else self.M, self.N if self.b_strides[1] == 1 else self.K)
        apart = (*self.batch.a, *self.batch.b) if self.batch else ()
        return gcd(16, *(n for n in (*self.a_strides, *self.b_strides) if n != 1), *lengths, *apart)

    @property
    def line_multiples(self) -> tuple[int, int]:
        """Bytes, 128, 32 or 16, at multiples of which lines of a and of b begin, where the copy engine can read them."""
        return _multiple(self.a_strides, self.dtype.itemsize), _multiple(self.b_strides, self.dtype.itemsize)

    @property
    def line_multiple(self) -> int:
        """As `line_multiples`, of both factors."""
        return min(self.line_multiples)

    @property
    def vectors(self) -> bool:
        """Operands can be loaded 8 bytes or more at a time."""
        lines = all(1 in strides for strides in (self.a_strides, self.b_strides))
        return lines and self.unit * self.dtype.itemsize >= 8

    @property
    def in_units(self) -> tuple[Ints, dict[str, Any]]:
        """Sizes, strides, those of the batch and its inner length for a kernel that reads through pointers, and by name
        how many elements the first of them count: Triton knows of a number only whether it is a multiple of 16."""
        batch = self.batch or ONE
        strides = (*self.a_strides, *self.b_strides)
        sizes = (self.M, self.N, self.K)
        # A product of two numbers of 32 bits is one.
        small = max(*strides, *batch.a, *batch.b) < 2**31
        lines = (self.layouts[0] == "c", True, self.layouts != "cr", *[stride != 1 for stride in strides])
        each = [_unit_of(n) if line and small else 1 for n, line in zip((*sizes, *strides), lines, strict=True)]
        each += [_unit_of(*batch.a, *batch.b) if small else 1] * 4
        numbers = tuple(n // u for n, u in zip((*sizes, *strides, *batch.a, *batch.b), each, strict=True))
        names = ("M", "N", "K", "AM", "AK", "BK", "BN", "BATCH")
        return (*numbers, batch.inner), {f"UNIT_{name}": u for name, u in zip(names, each, strict=False)}

    @property
    def leading(self) -> tuple[Lead, Lead, Lead]:
        """Lengths and strides of the axes of c, a and b before those of their matrices; () for single ones."""
        if self.batch is None:
            return (), (), ()
        sizes = self.batch.outer, self.batch.inner
        of_c = ((self.batch.products, self.M * self.N),)
        return of_c, tuple(zip(sizes, self.batch.a, strict=True)), tuple(zip(sizes, self.batch.b, strict=True))

    def in_turn(self, tile: int) -> MatmulShapes | None:
        """The products of the even and of the odd rows of a, as a batch of two; None where nothing is won by that, or where
        they do not fill tiles of so many rows. Of an odd number of rows, the second one has a row less."""
        ld, step = self.a_strides
        turns = step == 1 and self.M >= 2 * tile and batch_strides.take_turns(self.K, ld, self.dtype.itemsize)
        if self.batch or not turns:
            return None
        return self._replace(M=cdiv(self.M, 2), a_strides=(2 * ld, 1), batch=Batch(1, 2, (0, ld), (0, 0)))

    @property
    def places(self) -> dict[str, Any]:
        """The constexprs of a kernel that has descriptors: whether there is a batch, and for each factor and axis of it
        whether the matrices differ along that (1) or are one (0)."""
        batch = self.batch or ONE
        names = ("A_OUTER", "A_INNER", "B_OUTER", "B_INNER")
        strides = (*batch.a, *batch.b)
        return {"BATCHED": self.batch is not None, **{n: int(s != 0) for n, s in zip(names, strides, strict=True)}}

    @property
    def inner(self) -> int:
        """Products to a step along the outer axis of the batch."""
        return (self.batch or ONE).inner

    @property
    def products(self) -> int:
        """How many there are."""
        return self.batch.products if self.batch else 1

    def tiles(self, m: int, n: int) -> int:
        """Tiles [m, n] of all products."""
        return self.products * cdiv(self.M, m) * cdiv(self.N, n)


def _multiple(strides: Ints, size: int) -> int:
    return next((n for n in (128, 32) if not any(stride * size % n for stride in strides if stride != 1)), 16)


def _unit_of(*numbers: int) -> int:
    """In how many elements, up to 8, these are counted; 1 for multiples of 16, of which Triton knows."""
    return gcd(8, *numbers) if any(n % 16 for n in numbers) else 1


def described(shape: Ints, strides: Ints, block: Ints, lead: Lead) -> tuple[Ints, Ints, Ints]:
    """Shape, strides and block of a matrix for a tensor descriptor, or of its transpose where the columns are what is
    contiguous. lead: lengths and strides of the axes before them, of which a block has one place each; a stride of 0 is
    that of an axis along which there is but one matrix."""
    if strides[1] != 1:
        shape, strides, block = shape[::-1], strides[::-1], block[::-1]
    sizes = tuple(length if stride else 1 for length, stride in lead)
    apart = tuple(stride or ALIGNED for _, stride in lead)
    return (*sizes, *shape), (*apart, *strides), (*(1 for _ in lead), *block)


def problem(a: torch.Tensor, b: torch.Tensor, precision: str, end: EpilogueTerms) -> MatmulShapes:
    """The problem of a @ b."""
    return _problem(a.get_device(), a.shape, b.shape, a.stride(), b.stride(), a.dtype, precision, end)


@plan
def _problem(
    device: int,
    a: Ints,
    b: Ints,
    a_strides: Ints,
    b_strides: Ints,
    dtype: torch.dtype,
    precision: str,
    end: EpilogueTerms,
) -> MatmulShapes:
    found = batch_strides.product(a, a_strides, b, b_strides)
    if found is None:
        raise ValueError(f"more than two strides walk the batches of {a}, {a_strides} and {b}, {b_strides}")
    M, N, K, a_strides, b_strides, batch = found
    return MatmulShapes(device, M, N, K, a_strides, b_strides, batch, dtype, precision, end)
