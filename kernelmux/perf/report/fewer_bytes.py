"""Products of the same matrices in more than one format: bytes, recorded times and errors, for docs/reduce_the_bytes.md.

Which products there are follows from the workloads of the specs: those of one size with factors of 8 bits and
without. Bytes are the specs' costs, times those on record.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from kernelmux.perf.record import history
from kernelmux.perf.record.history import GpuRecord
from kernelmux.perf.report.markdown import table
from kernelmux.perf.rows.row_result import Timed
from kernelmux.perf.wording import wording
from kernelmux.registry import catalog, dtypes

PRODUCTS = {  # what is multiplied by what
    "matvec": ("x", "weight"),
    "matmul": ("a", "b"),
    "int8_matmul": ("a", "b"),
    "fp8_matmul": ("a", "b"),
}
WIDE = torch.bfloat16
NARROW = {torch.int8: "int8", torch.float8_e4m3fn: "e4m3"}  # and what quantize_rowwise calls them
ROWS, COLUMNS = 64, 256  # of the matrices whose products are compared; their sums are as long as the workload's
ERRORS = 2  # digits of an error that do not depend on the machine


@dataclass(frozen=True)
class NarrowProduct:
    """One workload as a product [M, K] x [K, N]; formats: of the two factors and of the result."""

    op: str
    workload: str
    dtype: str
    sizes: tuple[int, int, int]  # M, N, K
    formats: tuple[torch.dtype, torch.dtype, torch.dtype]
    bytes: float

    @property
    def narrow(self) -> bool:
        """Whether a factor has 8 bits."""
        return any(dtype in NARROW for dtype in self.formats[:2])

    @property
    def error(self) -> float:
        """The relative error that the formats make of random normal matrices, were the sums exact."""
        return _error(self.sizes[2], *self.formats)


def products() -> dict[tuple[int, int, int], list[NarrowProduct]]:
    """Products by size, where one has a factor of 8 bits and another has not."""
    groups: dict[tuple[int, int, int], list[NarrowProduct]] = {}
    for found in _all():
        groups.setdefault(found.sizes, []).append(found)
    return {sizes: group for sizes, group in sorted(groups.items()) if len({p.narrow for p in group}) == 2}


def _all() -> Iterator[NarrowProduct]:
    for op, names in PRODUCTS.items():
        spec = catalog.spec(op)
        for case in spec.workloads:
            for dtype in (d for d in case.dtypes or spec.dtypes if d in (WIDE, *NARROW)):
                call = spec.hypothetical(case, dtype)
                left, right = (call.tensors[name] for name in names)
                if left.ndim == 2:
                    sizes = (len(left), call.axes["N"], call.axes["K"])
                    formats = (left.dtype, right.dtype, spec.outputs[0].dtype_of(call))
                    yield NarrowProduct(op, case.text, dtypes.SHORT[dtype], sizes, formats, call.cost.bytes)


@cache
def _error(terms: int, left: torch.dtype, right: torch.dtype, result: torch.dtype) -> float:
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, terms, generator=rng).double() for rows in (ROWS, COLUMNS))
    exact, product = a @ b.T, _rounded(a, left) @ _rounded(b, right).T
    got = product.to(result).double() if result.is_floating_point else product  # integers are exact
    return float((got - exact).norm() / exact.norm())


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What of the rows of x a format keeps; 8 bits with a scale for each row, as quantize_rowwise makes them."""
    if dtype not in NARROW:
        return x.to(dtype).double()
    q, scale = catalog.spec("quantize_rowwise").reference(x, NARROW[dtype])
    kept: torch.Tensor = q.double() * scale[:, None]
    return kept


# --- text ---------------------------------------------------------------------------------------------------


def tables() -> str:
    """A table for each recorded GPU, and the command that records what it lacks."""
    groups = products()
    return "\n\n".join(_table(known, groups) for known in history.recorded()) or _table(None, groups)


def _table(known: GpuRecord | None, groups: dict[tuple[int, int, int], list[NarrowProduct]]) -> str:
    rows = known.rows if known else ()
    head = ("M x N x K", "operator", "formats", "MB", "of the bytes", "error", "us", "faster")
    body = [cells for group in groups.values() for cells in _lines(group, rows)]
    title = f"{known.title[:1].upper()}{known.title[1:]}." if known else "No GPU is on record."
    missing = [p for group in groups.values() for p in group if _best(p, rows) is None]
    return "\n\n".join([title, table(head, body), *_commands(missing)])


def _lines(group: Sequence[NarrowProduct], rows: Iterable[Timed]) -> Iterator[tuple[str, ...]]:
    """The products of one size, from most bytes to fewest; "of the bytes" and "faster" are against the best in bf16."""
    wide = [p for p in group if not p.narrow]
    base = min((row.median_us for p in wide if (row := _best(p, rows))), default=None)
    for product in sorted(group, key=lambda p: -p.bytes):
        row, (left, right, result) = _best(product, rows), (dtypes.SHORT[d] for d in product.formats)
        faster = wording.times(base / row.median_us) if base and row else ""
        yield (
            " x ".join(map(str, product.sizes)),
            f"`{product.op}`",
            f"{left} x {right} = {result}",
            f"{product.bytes / 1e6:.1f}",
            wording.percent(product.bytes / min(p.bytes for p in wide)),
            f"{product.error:.{ERRORS - 1}%}",
            _time(row),
            faster,
        )


def _best(product: NarrowProduct, rows: Iterable[Timed]) -> Timed | None:
    """The fastest row of a product, of those that are not stale if there are any."""
    group = (product.op, product.workload, product.dtype)
    return min((row for row in rows if row.group == group), key=lambda row: (row.stale, row.median_us), default=None)


def _time(row: Timed | None) -> str:
    if row is None:
        return "not recorded"
    return f"{wording.microseconds(row.median_us)} {row.label}{' (stale)' if row.stale else ''}"


def _commands(missing: Sequence[NarrowProduct]) -> list[str]:
    """How to record what is not on record, if anything."""
    if not missing:
        return []
    lines = ["What is not recorded, these commands record on a GPU:", "```console"]
    for op in dict.fromkeys(p.op for p in missing):
        mine = [p for p in missing if p.op == op]
        words = [
            "--op",
            op,
            "--dtype",
            *dict.fromkeys(p.dtype for p in mine),
            "--workload",
            *(p.workload for p in mine),
        ]
        lines.append(f"$ python -m kernelmux.perf {shlex.join(words)} --record --into-checkout")
    return ["\n".join([lines[0], "", *lines[1:], "```"])]
