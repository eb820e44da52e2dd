"""The page of one operator, docs/operators/<op>.md, from its spec, its variants, the ledger and the records.

The text is the same on every machine: what could run is asked of sm_90, and no plugin that is installed takes part. The
page of an operator elsewhere, which lies in no folder of ours, has no links to our pages.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from kernelmux.conformance.verified import ledger
from kernelmux.docs import TOP, ladder_tables
from kernelmux.docs.ladder_tables import backends
from kernelmux.perf.pictures import curves
from kernelmux.perf.planning import plan
from kernelmux.perf.record import history
from kernelmux.perf.rows.row_result import Timed
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import ResultGroup, groups
from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cli import support_matrix
from kernelmux.registry.conditions import Capability
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.spec import OpSpec, docstrings, numerics
from kernelmux.registry.spec.gradient import Composed, Gradient
from kernelmux.registry.spec.signature import REQUIRED
from kernelmux.registry.util import text_tables

SWEEPS = TOP / "kernelmux/records"  # <gpu>/sweeps/<op>-<axis>.csv


def page(op: str) -> str:
    """The whole page."""
    spec = catalog.spec(op)
    parts = [f"# {op}", spec.summary, _sources(spec)]
    parts += ["## Arguments", _arguments(spec), "## Returns", _outputs(spec), *_rules(spec)]
    parts += ["## Who computes it", _support(op), "## How far off a result may be", *_errors(spec)]
    parts += ["## Gradient", _gradient(spec), "## Speed", *_speeds(op), *_curves(op)]
    package = elsewhere.owner(op)
    command = f"kernelmux docs --package {package.name}" if package else "nox -s docs"
    parts += ["", f"Written by `{command}` from the spec and the records."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sources(spec: OpSpec) -> str:
    call = ", ".join(i.name if i.default is REQUIRED else f"{i.name}={i.default!r}" for i in spec.inputs)
    links = [
        _link(name, f"../../{_home(name, spec.name)}", spec.name)
        for name in backends()
        if registered.implements(name, spec.name)
    ]
    package = elsewhere.owner(spec.name)
    home = f"{package.package.replace('.', '/')}/ops" if package else "kernelmux/registry/ops"
    stem = f"{home}/{spec.name}.py"
    lines = ["```text", spec.math, f"kx.{spec.name}({call})", "```", ""]
    lines += [f"Spec: {_link(stem, f'../../{stem}', spec.name)}, version {spec.version}."]
    lines += [f"Kernels: {', '.join(links)}.", *(f"Source: {source}." for source in spec.sources)]
    return "\n".join(lines)


def _link(text: str, target: str, op: str) -> str:
    """A link from the page of an operator of ours; the text alone from that of another."""
    return text if elsewhere.owner(op) else f"[{text}]({target})"


def _see(text: str, target: str, op: str) -> str:
    """A link in brackets from the page of an operator of ours, nothing from that of another."""
    return "" if elsewhere.owner(op) else f" ([{text}]({target}))"


def _home(backend: str, op: str) -> str:
    stem = f"kernelmux/backends/{backend}/{op}"
    return f"{stem}.py" if (TOP / f"{stem}.py").exists() else stem


# --- what it takes and gives --------------------------------------------------------------------------------


def _arguments(spec: OpSpec) -> str:
    rows = [(f"`{i.name}`", docstrings.kind(i), _default(i), docstrings.said(i)) for i in spec.inputs]
    return text_tables.markdown(("argument", "what", "default", "meaning"), rows)


def _default(item: Any) -> str:
    return "" if item.default is REQUIRED else f"`{item.default!r}`"


def _outputs(spec: OpSpec) -> str:
    rows = [
        (f"`{o.name}`{', saved for the gradient' if o.saved else ''}", docstrings.form(o), docstrings.said(o))
        for o in spec.outputs
    ]
    return text_tables.markdown(("output", "what", "meaning"), rows)


def _rules(spec: OpSpec) -> Iterator[str]:
    if spec.constraints:
        yield "Every call must meet: " + "; ".join(c.text for c in spec.constraints) + "."
    if spec.formats:
        together = ("/".join(f"{name} {SHORT[dtype]}" for name, dtype in f.items()) for f in spec.formats)
        yield "Dtypes that go together: " + "; ".join(together) + "."
    if spec.special.undefined:
        yield "Not defined: " + "; ".join(f"{name} ({why})" for name, why in spec.special.undefined.items()) + "."


# --- who computes it ----------------------------------------------------------------------------------------


def _support(op: str) -> str:
    matrix = support_matrix.support_matrix(ladder_tables.GPU, op)
    entries = [e for name in backends() for e in matrix.of(op, name) if not registered.joined(op, e.variant)]
    rows = []
    for entry in entries:
        found = registered.variants(entry.backend, op)[entry.variant]
        in_place = support_matrix.read_in_place(entry) if entry.able else ""
        rows.append(
            (
                f"{entry.backend}/{entry.variant}",
                found.idea,
                "/".join(entry.dtypes) or "-",
                _needs(entry),
                in_place,
                _status(op, entry),
            )
        )
    head = ("variant", "idea", f"dtypes on {ladder_tables.GPU}", "needs", "reads in place", "verified")
    return (
        f"{text_tables.markdown(head, rows)}\n\n“Reads in place” names the strides with which a variant reads an input"
        " where it lies. An input that is not named may have any. An input with other strides is copied first. The default"
        " of a backend is its last variant that can run the call. A variant is verified on a GPU once it has passed the"
        f" whole suite there as it stands{_see('conformance', '../conformance.md', op)}."
    )


def _needs(entry: support_matrix.Support) -> str:
    if not entry.able:
        return f"cannot run: {entry.problem}"
    found = registered.variants(entry.backend, entry.operator)[entry.variant]
    rounds = [f"rounds {found.declared} too"] if found.rounds else []
    return "\n".join([*(c.text for c in found.requires if isinstance(c, Capability)), *entry.conditions, *rounds])


def _status(op: str, entry: support_matrix.Support) -> str:
    status, gpus = ledger.status(op, entry.backend, entry.variant)
    on = ", ".join(gpus)
    told = {
        ledger.VERIFIED: f"on {on}",
        ledger.STALE: f"stale record, of {on}",
        ledger.UNKNOWN: f"before its last change, on {on}",
    }
    return told.get(status, "no record")


# --- how far off --------------------------------------------------------------------------------------------


def _errors(spec: OpSpec) -> Iterator[str]:
    for output, model in zip(spec.outputs, spec.errors, strict=True):
        yield f"`{output.name}`: {_bound(model, spec.name)}"
    judged = [(o, m) for o, m in zip(spec.outputs, spec.errors, strict=True) if m.roundings]
    if not judged:
        return
    output, model = judged[0]
    case = plan.large(spec)
    dtype = next(d for d in (torch.bfloat16, *spec.dtypes) if d in (case.dtypes or spec.dtypes))
    call = spec.hypothetical(case, dtype)
    terms, outputs = model.terms(call.axes), math.prod(output.shape(call))
    rows = [
        (name, *_factor(numerics.arithmetic(name, dtype, call.scalars), terms, outputs)) for name in spec.arithmetics
    ]
    yield f"For `{case.text}` in {SHORT[dtype]}, terms in each result: {terms}."
    yield text_tables.markdown(("arithmetic", "chain h", "factor", "u_acc"), rows)


def _bound(model: numerics.ErrorModel, op: str) -> str:
    """The terms of kernelmux/registry/spec/numerics.py that this output has."""
    if model.chosen:
        return "one of the inputs, found by comparisons: it must be equal to the reference."
    if not model.roundings:
        return "must be equal to the reference."
    terms = [f"{model.roundings if model.roundings > 1 else ''} u_out |y|".strip(), "factor u_acc M"]
    terms += ["2 u_operand M where operands are rounded first"]
    terms += ["2 · 2^-24 E"] if model.amplified else []
    terms += ["u_in I"] if model.intermediate else []
    terms += ["what flushing subnormal inputs changes"] if model.flushes else []
    told = inspect.getdoc(model.magnitude) if model.magnitude.__name__ != "<lambda>" else None
    means = f" M: {told.partition(chr(10))[0]}" if told else ""
    formula = _see("the formula", "../conformance.md#how-far-off-may-a-result-be", op)
    return f"|error| <= {' + '.join(terms)}{formula}.{means}"


def _factor(how: numerics.Arithmetic, terms: int, outputs: int) -> tuple[str, str, str]:
    chain = how.chain(terms)
    factor = 8 + numerics.tail(chain, outputs) + how.bias(terms)
    return f"{chain:.0f}", f"{factor:.3g}", f"2^{math.frexp(how.unit)[1] - 1}" if how.unit else "0, exact"


def _gradient(spec: OpSpec) -> str:
    found = spec.gradient
    if not isinstance(found, Gradient | Composed):
        return f"None: {found.reason if found else 'none is declared'}."
    names = ", ".join(f"`{name}`" for name in found.tensors)
    saved = f", from the saved {', '.join(f'`{s}`' for s in found.saves)}" if found.saves else ""
    if isinstance(found, Gradient):
        beside = elsewhere.owner(found.op) == elsewhere.owner(spec.name)
        return f"Of {names}, by {f'[{found.op}]({found.op}.md)' if beside else f'`{found.op}`'}{saved}."
    return f"Of {names}, composed of public operators and steps of torch{saved}."


# --- speed --------------------------------------------------------------------------------------------------


def _speeds(op: str) -> Iterator[str]:
    if elsewhere.owner(op) and not any(row.op == op for record in history.everywhere() for row in record.rows):
        yield f"Not on record yet: `python -m kernelmux.perf --op {op} --record --into-checkout`, on a GPU."
    for record in history.everywhere():
        rows = [row for row in ladder_tables.rows(record) if row.op == op]
        if not rows and elsewhere.owner(op):
            continue
        yield ladder_tables.table_of(record, op)
        if len(found := groups(rows)) > 1:
            yield "The best of each backend, microseconds and share of the floor:"
            yield _best(found)


def _best(found: Iterable[ResultGroup]) -> str:
    rows = [
        (g.workload, g.dtype, wording.floor(g.best), *(_cell(g.best_of(name)) for name in backends())) for g in found
    ]
    return text_tables.markdown(("workload", "dtype", "floor us", *backends()), rows)


def _cell(row: Timed | None) -> str:
    if row is None:
        return "-"
    return f"{wording.microseconds(row.median_us)}, {wording.share(row)} {row.variant}{', stale' if row.stale else ''}"


def _curves(op: str) -> Iterator[str]:
    """Recorded sweeps over the length of an axis: their pictures, and the numbers."""
    for path in sorted(SWEEPS.glob(f"*/sweeps/{op}-*.csv")):
        axes, last = path.stem.removeprefix(f"{op}-"), "-channels-last"
        name = (
            f"{op} over {axes.removesuffix(last).replace('-', '=')}{', channels-last' if axes.endswith(last) else ''}"
        )
        picture = f"../images/curves/{path.parts[-3]}-{path.stem}.svg"
        shown = f"![{name}: time and rate]({picture})\n\n" if op in curves.PICTURED else ""
        yield f"{shown}The curve, {name}, [as numbers](../../{path.relative_to(TOP).as_posix()})."
