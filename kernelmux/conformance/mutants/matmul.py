"""matmul, broken."""

from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._batches import each
from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._memory import DerivedTensor, capturing
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.conditions import AtLeast, AtMost, OneOf

mutant = Mutants("matmul")


# basics: Matrix product, broken.

TF32_BITS = 13  # mantissa bits of fp32 that tf32 does not keep
ORDERS = torch.Generator().manual_seed(0)  # of its own: orders that differ must not be alike by chance on some days


@mutant("nothing is wrong with it", family="basics", name="sound")
def basics_sound(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return (a.double() @ b.double()).to(a.dtype)


@mutant("accumulates in the storage dtype", family="basics", caught_by="accuracy")
@each
def low_accumulator(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Sums in the storage dtype, 8 terms at a time; fp32 in bf16."""
    low = torch.bfloat16 if a.dtype == torch.float32 else a.dtype
    total = torch.zeros(a.shape[0], b.shape[1], dtype=low, device=a.device)
    for k in range(0, a.shape[1], 8):
        total += (a[:, k : k + 8].double() @ b[k : k + 8].double()).to(low)
    return total.to(a.dtype)


@mutant("leaves out the last incomplete tile of K", family="basics", caught_by="shapes")
@each
def dropped_tile(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    k = a.shape[1] - a.shape[1] % 16 if a.shape[1] > 16 else a.shape[1]
    return basics_sound(a[:, :k], b[:k], precision)


@mutant("leaves out the last term", family="basics", caught_by="exact")
@each
def dropped_term(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    k = max(a.shape[1] - 1, min(a.shape[1], 1))
    return basics_sound(a[:, :k], b[:k], precision)


def _tf32(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        return x
    raw = x.contiguous().view(torch.int32)
    return ((raw + (1 << TF32_BITS - 1)) & ~((1 << TF32_BITS) - 1)).view(torch.float32)


@mutant("tf32 where ieee was asked for", family="basics", caught_by="accuracy")
def silent_tf32(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return basics_sound(_tf32(a), _tf32(b), precision)


@mutant("adds in an order that changes from call to call", family="basics", caught_by="repeatability")
@each
def random_order(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    order = torch.randperm(a.shape[1], generator=ORDERS).to(a.device)
    total = torch.zeros(a.shape[0], b.shape[1], device=a.device)
    for k in order.split(4):
        total += a[:, k].float() @ b[k].float()
    return total.to(a.dtype)


@mutant("needs K a multiple of 8 and does not say so", family="basics", caught_by="accuracy")
def undeclared_limit(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    if a.shape[-1] % 8:
        raise RuntimeError("K must be a multiple of 8")
    return basics_sound(a, b, precision)


class Forgiving(AtLeast):
    """A condition that is announced and not enforced."""

    def check(self, call: object) -> str | None:
        return None


class Pessimist(OneOf):
    """A condition that refuses what it announces to accept."""

    def check(self, call: object) -> str | None:
        return f"precision is wrong, needs {self.text}"


mutant(
    "says K >= 4 and runs K = 3",
    family="basics",
    caught_by="claims",
    name="unenforced_limit",
    requires=(Forgiving("K", 4),),
)(basics_sound)
mutant(
    "refuses what it announces",
    family="basics",
    caught_by="claims",
    name="refuses_all",
    requires=(Pessimist("precision", "ieee", "tf32"),),
)(basics_sound)


# shapes: Matrix product, broken where both operands are one tensor, and in batches.


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).to(a.dtype)


@mutant("(b^T a^T)^T: as right as any", family="shapes")
def transposed_twice(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _product(b.mT, a.mT).mT.contiguous()


@mutant("takes the product of a tensor with itself for symmetric", family="shapes", caught_by="layout")
def symmetric(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """One tensor twice: taken for a @ a^T, of which half has to be computed."""
    if a.data_ptr() != b.data_ptr() or a.shape != b.shape or not a.numel():
        return _product(a, b)
    lower = _product(a, b).tril()
    return lower + lower.tril(-1).mT


@mutant("ignores the stride of a batch", family="shapes", caught_by="layout")
def adjacent(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Takes the matrices of a batch for neighbours in memory, whatever lies between them."""
    if a.dim() > 2 and a.numel() and a.stride(0) > a.shape[1] * a.stride(1):
        a = a.as_strided(a.shape, (a.shape[1] * a.stride(1), *a.stride()[1:]))
    return _product(a, b)


@mutant("leaves out the last of an odd number of products", family="shapes", caught_by="accuracy")
def all_but_the_last(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Of an odd number of products, the last is left out."""
    out = _product(a, b)
    return out.index_fill(0, torch.tensor([len(a) - 1], device=a.device), 0) if a.dim() > 2 and len(a) % 2 else out


@mutant("the first matrix of b for all", family="shapes", caught_by="accuracy")
def first_of_b(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Its first matrix for all of a batch."""
    return _product(a, b.flatten(0, -3)[0] if b.dim() > 2 and b.numel() else b)


@mutant("finds b by the inner axis of a batch alone", family="shapes", caught_by="accuracy")
def outer_axis_lost(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """The inner axis of a batch counts, the outer one does not."""
    return _product(a, b[:1].expand(b.shape) if b.dim() > 3 else b)


# bits: Matrix product, broken where zeros meet NaN, and next to zero.


@mutant("some columns at a time: as right as any", family="bits")
def by_columns(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Columns of b in eight groups (of one where there are few), in float64."""
    groups = b.split(max(b.shape[-1] // 8, 1), dim=-1)
    return torch.cat([(a.double() @ group.double()).to(a.dtype) for group in groups], dim=-1)


@mutant("leaves out rows of zeros", family="bits", caught_by="special_values")
def skipped_rows(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """A row of zeros is left out, whatever it would have met."""
    out = (a.double() @ b.double()).to(a.dtype)
    out[(a == 0).all(-1)] = 0
    return out


@mutant("flushes subnormal sums of 64 terms and more", family="bits", caught_by="accuracy")
def flushed_if_deep(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """The kernel for many terms is compiled with other options than that for few."""
    out = (a.double() @ b.double()).to(a.dtype)
    lost = (out.abs() < torch.finfo(torch.float32).smallest_normal) & (a.shape[-1] >= 64)
    return out.masked_fill(lost, 0) if a.dtype == torch.float32 else out


# order: Matrix product whose K is divided among blocks.

ORDER_ORDERS = torch.Generator().manual_seed(0)
SOURCE = Path(__file__).with_name("matmul.cu")


@mutant("parts of a long K come in an order by chance", family="order", caught_by="repeatability")
@each
def few_rows(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Few rows and a long K: its parts are added in an order by chance."""
    if len(a) > 16 or a.shape[1] < 2048:
        result: torch.Tensor = sound("matmul", a, b, precision)
        return result
    parts = [x.float() @ y.float() for x, y in zip(a.split(64, 1), b.split(64), strict=True)]
    total = torch.zeros(len(a), b.shape[1], device=a.device, dtype=torch.float32)
    for i in torch.randperm(len(parts), generator=ORDER_ORDERS).tolist():
        total += parts[i]
    return torch.empty(total.shape, dtype=a.dtype, device=a.device).copy_(total)


@mutant(
    "parts of K are added as they come",
    family="order",
    caught_by="repeatability",
    arithmetic="fp32_sequential",
    layout={"a": "contiguous", "b": "contiguous"},
    requires=(AtMost("K", 2**20),),
)
@each
def split_k(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    c = torch.zeros(m, n, device=a.device, dtype=torch.float32)
    if a.numel() and b.numel():
        tiles = -(-n // 8)
        sizes = (np.int32(m), np.int32(n), np.int32(k), np.int32(tiles))
        launch(SOURCE, "split_k", (-(-m // 8) * tiles, -(-k // 64)), 64, (a, b, c, *sizes), a.dtype)
    return c.to(a.dtype)


# claims: Matrix product that promises other things than it does.


@mutant("nothing is wrong with it, and it declares what it may", family="claims", name="sound", arithmetic="mma")
def claims_sound(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return (a.double() @ b.double()).to(a.dtype)


mutant(
    "runs matrices without rows and nothing else",
    family="claims",
    caught_by="claims",
    name="empty_only",
    requires=(AtMost("M", 0),),
)(claims_sound)


@mutant("hides tf32 behind a declaration of mma", family="claims", caught_by="accuracy", arithmetic="mma")
def tf32_anyway(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Declared for tensor cores, whose bound is loose in tf32: but this call asked for ieee."""
    return claims_sound(_tf32(a.resolve_neg()), _tf32(b.resolve_neg()), precision)


@mutant("tf32 for aligned matrices with gaps between rows", family="claims", caught_by="layout", arithmetic="mma")
def tf32_if_aligned(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """The fastest path takes operands whose lengths it likes, and does not ask for the precision."""
    likes = not (a.shape[-2] % 16 or a.shape[-1] % 8 or b.shape[-1] % 16) and b.stride(-2) > b.shape[-1]
    return tf32_anyway(a, b, precision) if likes else claims_sound(a, b, precision)


@mutant("adds two partial sums in the storage dtype", family="claims", caught_by="accuracy", arithmetic="mma")
def sums_in_storage(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Declared for tensor cores, and the two halves of K are added in the storage dtype."""
    k = a.shape[-1] // 2
    return claims_sound(a[..., :k], b[..., :k, :], precision) + claims_sound(a[..., k:], b[..., k:, :], precision)


# extent: Matrix product with the offset into a in 32 bits.

EXTENT_SOURCE = Path(__file__).with_name("rows.cu")


@mutant(
    "row * K in 32 bits",
    family="extent",
    caught_by="offsets",
    arithmetic="fp32_sequential",
    layout={"a": "contiguous", "b": "contiguous"},
    requires=(AtMost("N", 8 * 65535),),
)
@each
def int_rows(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    m, n = a.shape[0], b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    if c.numel():
        sizes = (np.int32(m), np.int32(n), np.int32(a.shape[1]))
        launch(EXTENT_SOURCE, "matmul_int_a", (-(-m // 8), -(-n // 8)), 64, (a, b, c, *sizes), a.dtype)
    return c


# ambience: Matrix product with torch's flags.


@mutant("sets a flag and puts it back", family="ambience")
def flags_put_back(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Sets a flag for the time of the call."""
    flags = torch.backends.cudnn
    old, flags.benchmark = flags.benchmark, True
    try:
        return _product(a, b)
    finally:
        flags.benchmark = old


@mutant("sets allow_tf32 for the call and leaves it", family="ambience", caught_by="ambience")
def flag_left(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    return _product(a, b)


@mutant("turns off reduced sums for good", family="ambience", caught_by="ambience")
def reduced_sums_left(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return _product(a, b)


# state: Matrix product with an operand that is packed once.

LARGE = 8192  # elements
_padded: dict[object, torch.Tensor] = {}
_by_address: dict[object, torch.Tensor] = {}
_by_version: dict[object, torch.Tensor] = {}
PACKED = DerivedTensor(lambda b: b.mT.clone())
CARELESS = DerivedTensor(lambda b: b.mT.clone(), watchful=False)


def _packed(kept: dict[object, torch.Tensor], key: object, b: torch.Tensor) -> torch.Tensor:
    if key not in kept:
        kept.clear()
        kept[key] = b.mT.clone()
    return kept[key].mT


@mutant("a graph finds b packed already", family="state", caught_by="graphs", only="cuda")
def packed_before_capture(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """A graph that is captured after a call holds what was packed then, whatever b holds when it is replayed."""
    result: torch.Tensor = sound("matmul", a, CARELESS.of(b).mT, precision)
    return result


@mutant("a large b is packed once per address", family="state", caught_by="state")
def large_by_address(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Packing small operands does not pay."""
    if b.numel() < LARGE:
        small: torch.Tensor = sound("matmul", a, b, precision)
        return small
    return by_address(a, b, precision)


@mutant("the padding of K is cleared once", family="state", caught_by="state")
@each
def padded(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """K is padded with zeros to a multiple of 64, in memory that is cleared when it is made, and kept."""
    (m, k), n = a.shape, b.shape[1]
    length = -(-k // 64) * 64
    if not length or capturing(a):
        plain: torch.Tensor = sound("matmul", a, b, precision)
        return plain
    for x, shape in ((a, (m, length)), (b, (length, n))):
        kept = _padded.setdefault(
            (shape, x is b, x.dtype, x.device), torch.zeros(shape, dtype=x.dtype, device=x.device)
        )
        kept[: x.shape[0], : x.shape[1]] = x
    left, right = (_padded[s, w, a.dtype, a.device] for s, w in (((m, length), False), ((length, n), True)))
    result: torch.Tensor = sound("matmul", left, right, precision)
    return result


@mutant("b is packed once per address", family="state", caught_by="state")
def by_address(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    key = (b.data_ptr(), b.shape, b.stride(), b.dtype)
    result: torch.Tensor = sound("matmul", a, _packed(_by_address, key, b), precision)
    return result


@mutant("b is packed once per address and version", family="state", caught_by="state")
def by_address_and_version(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Another tensor may come to the same address, and its version begins at the same number."""
    key = (b.data_ptr(), b._version, b.shape, b.stride(), b.dtype)
    result: torch.Tensor = sound("matmul", a, _packed(_by_version, key, b), precision)
    return result


@mutant("b is packed once per tensor and version", family="state", caught_by="state")
def by_object(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    result: torch.Tensor = sound("matmul", a, PACKED.of(b).mT, precision)
    return result


# bits: Results beyond the largest number.


@mutant("what is beyond the largest number is infinite, however little", family="bits", caught_by="special_values")
def early_infinity(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Of the numbers that are too large for the dtype some round to its largest one."""
    wide = a.double() @ b.double()
    y: torch.Tensor = sound("matmul", a, b, precision)
    return torch.where(wide.abs() > torch.finfo(y.dtype).max, torch.copysign(torch.full_like(y, torch.inf), y), y)
