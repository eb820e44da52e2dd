"""Calls of the public functions made from the specs: right and wrong ones, in every spelling and in every surrounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from kernelmux.registry import autocast, catalog, dispatch, domains, numerics, selection
from kernelmux.registry import backend as registered
from kernelmux.registry.signature import Call, Output, lengths
from kernelmux.registry.spec import (
    REQUIRED,
    Axis,
    Computed,
    Constraint,
    Count,
    Index,
    OpSpec,
    Scalar,
    Tensor,
    exact_arguments,
)

LENGTHS = st.sampled_from((0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33))
DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.int32,
    torch.bool,
    torch.complex64,
)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-6,
    -3.25,
    30.0,
    1e5,
    1e-46,
    -1e-40,
    1e30,
    3e38,
    1e39,
    float("nan"),
    float("inf"),
    -1e-9,
)
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**40, 10**400, "none", "tanh", "tf32", "", b"x", [], [0], {}, (), object(),
    np.float32(0.5), np.float64(2.0), np.int64(1), np.bool_(True), np.zeros(2), Fraction(1, 2), 1j, torch.ones(()),
    torch.Size([1]), torch.float32, int, lambda: None,
)  # fmt: skip


class Loud:
    """Raises whatever is asked of it."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("eq")

    def __hash__(self) -> int:
        raise ValueError("hash")

    def __repr__(self) -> str:
        raise ValueError("repr")


@dataclass
class Draft:
    """One call: the operator, its arguments, `backend=` and what is around it."""

    spec: OpSpec
    arguments: dict[str, Any]
    backend: Any
    surroundings: list[str]
    notes: list[str] = field(default_factory=list)
    missing: str = ""

    def __repr__(self) -> str:
        shown = {k: described(v) for k, v in self.arguments.items() if k != self.missing}
        return f"{self.spec.name}({shown}, backend={described(self.backend)}) in {self.surroundings} {self.notes}"


def described(value: Any) -> str:
    try:
        if isinstance(value, torch.Tensor):
            return (
                f"{type(value).__name__} {list(value.shape)} {value.stride()} {value.dtype} grad={value.requires_grad}"
            )
        return repr(value)[:60]
    except Exception:
        return type(value).__name__


# --- tensors --------------------------------------------------------------------------------------------------


def _freed(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


class Named(torch.Tensor):
    """A subclass without ways of its own."""


ALIKE: dict[str, Callable[[torch.Tensor], Any]] = {
    "plain": lambda x: x,
    "steps": lambda x: torch.cat([x, x], -1)[..., ::2] if x.dim() else x,
    "turned": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 1 else x,
    "expanded": lambda x: x[:1].expand(x.shape) if x.dim() and x.shape[0] else x,
    "offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape) if x.numel() else x,
    "negative": lambda x: torch._neg_view(-x),
    "imaginary": lambda x: torch.complex(x, -x).conj().imag if x.dtype == torch.float32 else x,
    "parameter": lambda x: torch.nn.Parameter(x.clone()) if x.is_floating_point() else x,
    "gradient": lambda x: x.clone().requires_grad_() if x.is_floating_point() else x,
    "subclass": lambda x: x.clone().as_subclass(Named),
}
STRANGE: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda x: np.zeros(tuple(x.shape)),
    "list": lambda x: [1.0, 2.0],
    "none": lambda x: None,
    "loud": lambda x: Loud(),
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse() if x.dim() else None,
    "csr": lambda x: x.float().reshape(1, -1).to_sparse_csr() if x.numel() else None,
    "nested": lambda x: torch._nested_tensor_from_mask(torch.ones(1, 2, 3), torch.ones(1, 2, dtype=torch.bool)),
    "quantized": lambda x: torch._empty_affine_quantized(tuple(x.shape), scale=1.0, zero_point=0, dtype=torch.quint8),
    "mkldnn": lambda x: x.float().to_mkldnn() if x.numel() else None,
    "zeros": lambda x: torch._efficientzerotensor(tuple(x.shape), dtype=x.dtype),
    "freed": _freed,
    "vast": lambda x: (
        torch.zeros(1, dtype=x.dtype).expand(2**40) if x.dim() == 1 else x[..., None, None, None, None, None]
    ),
    "another dtype": lambda x: x.to(torch.float64),
    "an axis more": lambda x: x[None],
    "an axis less": lambda x: x[0] if x.dim() and x.shape[0] else None,
    "longer": lambda x: torch.cat([x, x]) if x.dim() else None,
}


def _axes(draw: Any, spec: OpSpec) -> dict[str, Any]:
    """A length for every axis of the operator; of a few tries the first that its constraints allow."""
    letters = ["...", *sorted({letter for item in spec.tensors for letter in item.letters})]
    few = st.lists(st.sampled_from((0, 1, 2, 3, 5)), max_size=2)
    usual = {s.name: _usual(s) for s in spec.scalars}
    for _ in range(12):
        axes = {letter: tuple(draw(few)) if letter == "..." else draw(LENGTHS) for letter in letters}
        if all(_allows(c, {**usual, **axes}) for c in spec.constraints if not _asks(c, spec)):
            break
    return axes


def _usual(item: Scalar | Axis) -> Any:
    """The default of a scalar as constraints see it."""
    several = isinstance(item, Scalar) and item.length and item.default not in (None, REQUIRED)
    return (item.default,) * item.length if several and not isinstance(item.default, tuple) else item.default


def _allows(constraint: Constraint, known: dict[str, Any]) -> bool:
    """Whether a constraint holds; one on what is derived from the tensors can only be asked when these are there."""
    try:
        return constraint.holds(known)
    except KeyError:
        return True


def _asks(constraint: Constraint, spec: OpSpec) -> bool:
    """Whether a constraint speaks of a tensor, or of a scalar without a default."""
    needed = [s.name for s in spec.scalars if s.default is REQUIRED]
    return any(name in constraint.text for name in (*needed, *(t.name for t in spec.tensors if len(t.name) > 1)))


def _tensor(draw: Any, item: Tensor, arguments: dict[str, Any], axes: dict[str, Any], notes: list[str]) -> Any:
    if item.optional and draw(st.booleans()):
        return None
    shape = [n for axis in pick(draw, item.forms) for n in lengths(axis, axes)]
    model = getattr(arguments.get(item.like or ""), "dtype", None)
    allowed = item.dtypes if not item.like else (model if model in DTYPES else torch.float32,)
    dtype = pick(draw, DTYPES if rarely(draw, 20) else allowed)
    x = values(tuple(shape), dtype, draw(st.integers(0, 2**16)))
    table = STRANGE if rarely(draw, 9) else ALIKE
    how = pick(draw, sorted(table))
    try:
        made = table[how](x)
    except (RuntimeError, NotImplementedError, TypeError):  # torch has no such form of this dtype or shape
        return x
    if how != "plain":
        notes.append(f"{item.name}: {how}")
    return made


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=rng, dtype=torch.float64) * 10.0 ** (seed % 4 - 2)
    return x.clamp(-60000, 60000).to(dtype)


# --- scalars, names, surroundings ---------------------------------------------------------------------------


def _scalar(draw: Any, item: Scalar | Axis, arguments: dict[str, Any]) -> Any:
    if rarely(draw, 10):
        return pick(draw, (*ODD, Loud()))
    if item.default is not REQUIRED and rarely(draw, 3):
        return item.default
    if isinstance(item, Axis):
        return draw(st.integers(-3, 2))
    if item.length and item.trials and not rarely(draw, 5):
        return pick(draw, item.trials)
    if item.length and draw(st.booleans()):
        count = item.length + (rarely(draw, 10) and draw(st.integers(-1, 1)))
        return pick(draw, (tuple, list))(_scalar(draw, replace(item, length=None), arguments) for _ in range(count))
    if item.choices:
        return pick(draw, item.choices)
    if item.type is float:
        return pick(draw, item.trials if draw(st.booleans()) and item.trials else FLOATS)
    return draw(st.booleans()) if item.type is bool else draw(st.integers(-1, 5))


def backend(draw: Any, able: tuple[str, ...]) -> Any:
    """`backend=` in every form; mostly of backends that can run here, and None or "auto" where these are the baseline."""
    if rarely(draw, 12):
        return pick(draw, (
            5, True, {}, [["cuda"]], [], "", "tourch_ref", "torch_ref/egar", "auto,torch_ref", b"cuda", Loud(),
            "torch_ref,cuda/typo", ("torch_ref", None), {"torch_ref"}, iter(["torch_ref"]),
        ))  # fmt: skip
    automatic = (None, None, "auto") if able == ("torch_ref",) else ()
    return pick(draw, (*automatic, *able, f"{able[0]},{able[-1]}", list(able), tuple(able)))


def rarely(draw: Any, often: int) -> bool:
    """True about once in so many draws: hypothesis prefers the ends of a range."""
    return bool(draw(st.integers(0, often)) == often // 2)


def pick(draw: Any, values: Sequence[Any]) -> Any:
    """One of the values, which need neither hash nor equality."""
    return values[draw(st.integers(0, len(values) - 1))]


SURROUNDINGS = ("autocast", "inference", "no_grad", "float64", "use", "default", "autocast fp16")


@st.composite
def drafts(draw: Any, ops: tuple[str, ...], able: tuple[str, ...]) -> Draft:
    spec = catalog.spec(pick(draw, ops))
    arguments: dict[str, Any] = {}
    notes: list[str] = []
    axes = _axes(draw, spec)
    for item in spec.inputs:
        if isinstance(item, Tensor):
            arguments[item.name] = _tensor(draw, item, arguments, axes, notes)
        else:
            arguments[item.name] = _scalar(draw, item, arguments)
    if any(isinstance(i, Scalar) and i.fit for i in spec.scalars) and not rarely(draw, 8):
        _fit(spec, arguments)
    _make_lawful(spec, arguments, strays=rarely(draw, 8))
    around = draw(st.lists(st.sampled_from(SURROUNDINGS), max_size=2, unique=True)) if draw(st.booleans()) else []
    missing = draw(st.sampled_from((*arguments, "unheard_of"))) if rarely(draw, 30) else ""
    return Draft(spec, arguments, backend(draw, able), around, notes, missing)


def _fit(spec: OpSpec, arguments: dict[str, Any]) -> None:
    """Tensors of the same alternatives have the shape of the first, and scalars that have to go with shapes do."""
    with suppress(Exception):  # what is drawn may be no tensor
        shapes = {t.dims: tuple(arguments[t.name].shape) for t in reversed(spec.tensors)}
        for item in (t for t in spec.tensors if tuple(arguments[t.name].shape) != shapes[t.dims]):
            arguments[item.name] = values(shapes[item.dims], arguments[item.name].dtype, 0)
        for scalar in (i for i in spec.scalars if isinstance(i, Scalar)):
            if scalar.fit:
                named = {t.name: shapes[t.dims] for t in spec.tensors}
                arguments[scalar.name] = scalar.fit(named, arguments)


def _make_lawful(spec: OpSpec, arguments: dict[str, Any], strays: bool) -> None:
    """Computed tensors of a call that the spec allows hold what follows from the others; indices and counts lie inside, or
    not.
    """
    kinds = (Computed,) if strays else (Computed, Count, Index)
    chosen = [t.name for t in spec.tensors if isinstance(t.domain, kinds)]
    if not chosen:
        return
    try:
        call = spec.bind(**arguments)
        with torch.no_grad():
            lawful = domains.lawful(spec, call.tensors, call.scalars)
    except Exception:  # a call that is wrong in some other way
        return
    arguments.update({name: lawful[name] for name in chosen})


@contextmanager
def surrounded(draft: Draft, able: tuple[str, ...]) -> Iterator[None]:
    """Everything that the draft has around its call; afterwards as before."""
    with ExitStack() as stack:
        for what in draft.surroundings:
            if what.startswith("autocast"):
                low = torch.float16 if what.endswith("fp16") else torch.bfloat16
                stack.enter_context(torch.autocast("cpu", dtype=low))
            elif what == "inference":
                stack.enter_context(torch.inference_mode())
            elif what == "no_grad":
                stack.enter_context(torch.no_grad())
            elif what == "float64":
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(torch.float64)
            elif what == "use":
                stack.enter_context(selection.use(able[-1], ops=draft.spec.name))
            elif what == "default":
                stack.callback(selection.set_default, draft.spec.name, None)
                selection.set_default(draft.spec.name, able[0])
        yield


# --- judgement ------------------------------------------------------------------------------------------------


def bits(x: Any) -> Any:
    """What a tensor holds, as bytes; None for what has no memory to look at, where torch itself would fault."""
    if x.is_nested or x.layout != torch.strided or x.is_quantized or x.device.type != "cpu" or x.numel() > 2**20:
        return None
    if x._is_zerotensor() or (x.numel() and x.untyped_storage().nbytes() == 0):
        return None
    return x.detach().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def wrong(draft: Draft, chosen: str, outputs: tuple[torch.Tensor, ...]) -> str | None:
    """What is wrong with the outputs of a call that ran, or None."""
    spec = draft.spec
    values = tuple(_plain(v) for v in draft.arguments.values())
    if any(what.startswith("autocast") for what in draft.surroundings):
        with surrounded(draft, (chosen,)):
            values = autocast.cast(spec, values, "cpu")
    if outputs[0].is_meta:
        return None if all(v.is_meta for v in values if isinstance(v, torch.Tensor)) else "meta from memory"
    call = spec.bind(*values)
    name, _, variant = chosen.partition("/")
    implementation = registered.variants(name, spec.name)[variant]
    references = spec.evaluate(call)
    for i, (output, got, ref) in enumerate(zip(spec.outputs[: spec.visible], outputs, references, strict=False)):
        want = output.dtype_of(call)
        if tuple(got.shape) != output.shape(call) or got.dtype != want or got.is_neg() or not lies(call, output, got):
            return f"{output.name}: {list(got.shape)} {got.dtype} {got.stride()}"
        if not got.dtype.is_floating_point:
            if not torch.equal(got, ref.to(got.dtype)):
                return f"{output.name}: other numbers"
            continue
        how = implementation.computes(output.name, call.dtype, call.scalars)
        limit = numerics.bound(spec.errors[i], how, ref, want, call.dtype, exact_arguments(call), call.axes).total
        found = numerics.compare(got.detach().as_subclass(torch.Tensor), ref, limit)
        if not found.passed:
            got_, want_ = got[found.index].item(), ref[found.index].item()
            return f"{output.name}: {found.budget:.3g} of the bound at {found.index}: {got_} for {want_}"
    return None


def lies(call: Call, output: Output, got: torch.Tensor) -> bool:
    return bool(got.is_contiguous(memory_format=output.memory_format(call)))


def _plain(value: Any) -> Any:
    """A tensor of torch's own class with the same numbers and no history."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().resolve_neg().clone().as_subclass(torch.Tensor)


def explained(draft: Draft) -> dispatch.Decision:
    return dispatch.explain(draft.spec.name, **draft.arguments, backend=draft.backend)
