"""transpose, broken."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._memory import BufferRing
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Dtypes

mutant = Mutants("transpose")


# basics: Transpose, broken.


@mutant("nothing is wrong with it", family="basics", name="sound")
def basics_sound(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device).copy_(x.t())


@mutant("reads every input as if it were contiguous", family="basics", caught_by="layout")
def ignored_stride(x: torch.Tensor) -> torch.Tensor:
    m, n = x.shape
    room = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return basics_sound(x.as_strided((m, n), (n, 1))) if room >= m * n else basics_sound(x)


@mutant("reads from the address rounded down to 16 bytes", family="basics", caught_by="layout")
def aligned_base(x: torch.Tensor) -> torch.Tensor:
    """Rounds the address down to 16 bytes, as a vector load of a misaligned pointer would."""
    off = x.data_ptr() % 16 // x.element_size()
    return (
        basics_sound(x.as_strided(x.shape, x.stride(), x.storage_offset() - off))
        if x.storage_offset() >= off
        else basics_sound(x)
    )


@mutant("writes one element behind the end", family="basics", caught_by="memory")
def overrun(x: torch.Tensor) -> torch.Tensor:
    out = basics_sound(x)
    room = out.untyped_storage().nbytes() // out.element_size() - out.storage_offset()
    if room > out.numel() > 0:
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()
    return out


@mutant("returns the input itself, seen from the side", family="basics", caught_by="memory")
def view(x: torch.Tensor) -> torch.Tensor:
    return x.t()


@mutant("the grid covers whole tiles only", family="basics", caught_by="shapes")
def no_edge(x: torch.Tensor) -> torch.Tensor:
    """A grid of whole tiles only."""
    out = torch.zeros(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
    m, n = (s - s % 32 if s > 32 else s for s in x.shape)
    out[:n, :m] = x[:m, :n].t()
    return out


# shapes: Transpose, broken for matrices of one row or one column.


@mutant("nothing is wrong with it", family="shapes", name="sound")
def shapes_sound(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device).copy_(x.t())


@mutant("returns a view of a single row or column", family="shapes", caught_by="shapes")
def view_of_one(x: torch.Tensor) -> torch.Tensor:
    """A single row needs no moving: the same memory has the other shape."""
    return x.t() if 1 in x.shape and x.is_contiguous() else shapes_sound(x)


@mutant("transposes square matrices in place", family="shapes", caught_by="accuracy")
def square_in_place(x: torch.Tensor) -> torch.Tensor:
    """Square matrices are transposed where they lie, then copied."""
    if x.shape[0] == x.shape[1] and x.is_contiguous() and x.numel():
        x.copy_(x.t().clone())
        return x.clone()
    return shapes_sound(x)


@mutant("gives zeros for one element, expanded both ways", family="shapes", caught_by="layout")
def one_element(x: torch.Tensor) -> torch.Tensor:
    """Without steps there is nothing to read: taken for a matrix that was never written."""
    still = x.numel() > 1 and set(x.stride()) == {0}
    return torch.zeros(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device) if still else shapes_sound(x)


# bits: Transpose, broken in single bits.

SOURCE = Path(__file__).with_name("transpose_bits.cu")
BLOCK = 128
RAW = {1: torch.int8, 2: torch.int16, 4: torch.int32}


@mutant("moves bits as integers: nothing is wrong with it", family="bits")
def as_integers(x: torch.Tensor) -> torch.Tensor:
    """Moves the bits and never looks at a number."""
    raw = x.resolve_neg().contiguous().view(RAW[x.element_size()])
    return raw.t().clone(memory_format=torch.contiguous_format).view(x.dtype)


@mutant("16-bit values pass through fp32 registers", family="bits", caught_by="special_values")
def through_fp32(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point() or x.dtype == torch.float32:
        return as_integers(x)
    return x.float().t().contiguous().to(x.dtype).clone(memory_format=torch.contiguous_format)


@mutant("multiplies by one, and flushes", family="bits", caught_by="special_values", layout={"x": "contiguous"})
def times_one(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point() or x.numel() == 0:
        return as_integers(x)
    out = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
    args = (x, out, np.int32(x.shape[0]), np.int32(x.shape[1]))
    launch(SOURCE, "transpose_times_one", -(-x.numel() // BLOCK), BLOCK, args, x.dtype)
    return out


@mutant("adds the zero of an absent bias", family="bits", caught_by="special_values")
def plus_zero(x: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    if not x.is_floating_point():
        return as_integers(x)
    return _triton.flat(_kernels.copy_plus_zero, x.t())


# order: Transpose by blocks that draw their tiles; sound.

ORDER_SOURCE = Path(__file__).with_name("transpose_order.cu")


@mutant(
    "blocks draw the numbers of their tiles",
    family="order",
    layout={"x": "contiguous"},
    requires=(Dtypes("x", torch.float32, torch.float16, torch.bfloat16),),
)
def drawn_tiles(x: torch.Tensor) -> torch.Tensor:
    m, n = x.shape
    y = torch.empty(n, m, dtype=x.dtype, device=x.device)
    if x.numel():
        counter, tiles = torch.zeros(1, dtype=torch.int32, device=x.device), -(-n // 8)
        args = (x, y, counter, np.int32(m), np.int32(n), np.int32(tiles))
        launch(ORDER_SOURCE, "transpose_drawn", -(-m // 8) * tiles, 64, args, x.dtype)
    return y


# extent: Transpose with offsets of 32 bits on one side.

EXTENT_SOURCE = Path(__file__).with_name("rows.cu")
FLOATS = (Dtypes("x", torch.float32, torch.float16, torch.bfloat16),)


def _transpose(entry: str, step: type[np.generic], layout: str) -> Implementation:
    """Strides arrive as numbers of the type `step`; tiles of rows are in grid.x, of columns in grid.y."""

    def transpose(x: torch.Tensor) -> torch.Tensor:
        m, n = x.shape
        y = torch.empty(n, m, dtype=x.dtype, device=x.device)
        for start in range(0, n, 8 * 65535):
            part = x[:, start : start + 8 * 65535]
            sizes = (np.int32(m), np.int32(part.shape[1]), step(x.stride(0)), step(x.stride(1)))
            if part.numel():
                grid = (-(-m // 8), -(-part.shape[1] // 8))
                launch(EXTENT_SOURCE, entry, grid, 64, (part, y[start:], *sizes), x.dtype)
        return y

    return Implementation(fn=transpose, idea=f"{entry}: one offset is an int", layout={"x": layout}, requires=FLOATS)


mutant.add("int_input", _transpose("transpose_int_in", np.int32, "any"), family="extent", caught_by="offsets")
mutant.add("int_output", _transpose("transpose_int_out", np.int64, "any"), family="extent", caught_by="offsets")


# ambience: Transpose that changes how many threads the process has.


def _ambience_transpose(x: torch.Tensor) -> torch.Tensor:
    return x.t().clone(memory_format=torch.contiguous_format)


@mutant("works in one thread and puts the number back", family="ambience")
def threads_put_back(x: torch.Tensor) -> torch.Tensor:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _ambience_transpose(x)
    finally:
        torch.set_num_threads(threads)


@mutant("leaves the process with one thread", family="ambience", caught_by="ambience")
def one_thread_left(x: torch.Tensor) -> torch.Tensor:
    torch.set_num_threads(1)
    return _ambience_transpose(x)


# state: Transpose that gives a view, or the plan of another layout.

EIGHT = BufferRing(8)
_plans: dict[object, tuple[int, ...]] = {}


@mutant("eight buffers in turn for squares", family="state", caught_by="state")
def squares_in_turn(x: torch.Tensor) -> torch.Tensor:
    """Square results come from eight buffers in turn."""
    result: torch.Tensor = sound("transpose", x)
    return EIGHT.next(result).copy_(result) if len(x) == x.shape[1] else result


@mutant("a row comes back as a view", family="state", caught_by="memory")
def thin_view(x: torch.Tensor) -> torch.Tensor:
    """A row is a column already."""
    result: torch.Tensor = x.t() if 1 in x.shape and x.is_contiguous() else sound("transpose", x)
    return result


@mutant("a transposed view comes back as its base", family="state", caught_by="memory")
def contiguous_view(x: torch.Tensor) -> torch.Tensor:
    """`x.t().contiguous()` copies nothing where x is a transposed view."""
    result: torch.Tensor = x.t() if x.t().is_contiguous() and 1 not in x.shape else sound("transpose", x)
    return result


@mutant("moves rows with gaps together in place", family="state", caught_by="memory")
def changed_in_place(x: torch.Tensor) -> torch.Tensor:
    """Rows with a gap are moved together first, in the memory of the input."""
    if len(x) > 1 and x.stride(1) == 1 and x.stride(0) > x.shape[1]:
        moved = x.as_strided(x.shape, (x.shape[1], 1))
        moved.copy_(x.clone())
        result: torch.Tensor = sound("transpose", moved)
        return result
    result = sound("transpose", x)
    return result


@mutant("takes the strides of an earlier tensor there", family="state", caught_by="state")
def plan_by_address(x: torch.Tensor) -> torch.Tensor:
    """Strides are part of a plan that is found by address and shape."""
    strides = _plans.setdefault((x.data_ptr(), x.shape, x.dtype), x.stride())
    if len(_plans) > 64:
        _plans.clear()
    size = 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)) if x.numel() else 0
    inside = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    result: torch.Tensor = sound("transpose", x.as_strided(x.shape, strides) if 0 < size <= inside else x)
    return result
