"""Cases (shapes that must be right) and workloads (shapes that must be fast), written as a user would type them.

    Case("x=37x1000 axis=0 scale=0.5", tier="ci")
    Case("a=64x63 b=63x64", dtypes=(torch.float16,))

The same text is what the command line takes: `kernelmux explain softmax --shape x=37x1000:fp16,axis=0`.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from kernelmux.registry import dtypes
from kernelmux.registry.errors import ArgumentError, SpecError, unknown
from kernelmux.registry.spec.signature import Spec

TIERS = ("smoke", "ci", "full", "huge")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One call by its shapes: `text` holds name=MxN for tensors ("scalar" for 0-d) and name=value for scalars.

    An optional tensor that is None is left out, or given as name=none. A scalar of several numbers is name=2x3. The word
    channels-last says how tensors of four axes lie, for an operator on images; name=KxN.mT is a tensor that lies as the
    transposed view of a contiguous one, as a weight [N K] is given to a product.

    tier: the smallest run that includes it (smoke < ci < full < huge). dtypes: only these, or None for all of the spec.
    inputs: the distribution of the values (`DISTRIBUTIONS`). spec: whose arguments the names are; a spec sets it in its
    own cases, and `OpSpec.case` makes others.
    """

    text: str
    tier: str = "ci"
    dtypes: tuple[torch.dtype, ...] | None = None
    inputs: str = "normal"
    tags: frozenset[str] = frozenset()
    spec: Spec | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The case as an identifier: "x37x1000-axis0-scale0.5"."""
        label = re.sub(r"[\s,]+", "-", self.text.strip()).replace("=", "")
        return label if self.inputs == "normal" else f"{label}-{self.inputs}"

    @cached_property
    def parsed(self) -> tuple[dict[str, Shape], dict[str, Any], dict[str, torch.dtype]]:
        """Shapes, scalars and explicit dtypes; SpecError for a case that belongs to no spec."""
        if self.spec is None:
            raise SpecError(f"case {self.text!r}: expected the case of a spec: OpSpec.case makes one from a text")
        return parse(self.text, self.spec)

    @property
    def shapes(self) -> dict[str, Shape]:
        return self.parsed[0]

    @property
    def scalars(self) -> dict[str, Any]:
        return self.parsed[1]

    @cached_property
    def channels_last(self) -> bool:
        """Whether tensors of four axes lie channels-last."""
        return CHANNELS_LAST in re.split(SEPARATOR, self.text)

    @cached_property
    def turned(self) -> frozenset[str]:
        """The tensors that lie as transposed views."""
        return frozenset(re.findall(rf"(\w+)=[\dx]+{re.escape(TURNED)}", self.text))

    def laid(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """The tensor of that name in the order of the case: a copy if it has to move."""
        if name in self.turned:
            return x.mT.contiguous().mT
        return x.contiguous(memory_format=self._order(x.dim()))

    def empty(self, name: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A tensor for the argument of that name, in the order of the case; its values are not set."""
        shape = self.shapes[name]
        if name in self.turned:
            return torch.empty((*shape[:-2], shape[-1], shape[-2]), dtype=dtype, device=device).mT
        return torch.empty(shape, dtype=dtype, device=device, memory_format=self._order(len(shape)))

    def _order(self, axes: int) -> torch.memory_format:
        return torch.channels_last if self.channels_last and axes == 4 else torch.contiguous_format


SEPARATOR = r"[\s,]+"
CHANNELS_LAST = "channels-last"
TURNED = ".mT"
FORM = "name=4x1000[.mT][:fp16] for a tensor, name=value for a scalar"
_SHAPE = re.compile(r"\d+(x\d+)*|scalar")
MOST_ELEMENTS = 1 << 58  # the bytes of so many, in any dtype, still fit in 63 bits


def parse(text: str, spec: Spec) -> tuple[dict[str, Shape], dict[str, Any], dict[str, torch.dtype]]:
    """Split "a=64x63:fp16, axis=0" into shapes, scalars and dtypes; ArgumentError shows the expected form.

    The spec says which names are tensors and which are scalars; `inputs` names a distribution (`DISTRIBUTIONS`).
    """
    tensors = {tensor.name: tensor for tensor in spec.tensors}
    flags = {s.name for s in spec.scalars if getattr(s, "type", None) is bool}
    several = {s.name for s in spec.scalars if getattr(s, "length", None)}
    given: set[str] = set()
    shapes: dict[str, Shape] = {}
    scalars: dict[str, Any] = {}
    formats: dict[str, torch.dtype] = {}
    for item in re.split(SEPARATOR, text.strip()):
        if item == CHANNELS_LAST and spec.images:
            continue
        match = re.fullmatch(r"([A-Za-z_]\w*)=([^:=]+)(?::(\w+))?", item)
        if not match:
            raise ArgumentError(f"shape: expected {FORM}, got {item!r}")
        name, value, dtype = match.groups()
        if name in given:
            raise ArgumentError(f"shape: {name} is given twice, the second time as {item!r}")
        given.add(name)
        if name not in spec.signature.parameters and name != INPUTS:
            raise ArgumentError(str(unknown("argument", name, spec.signature.parameters, f"the shapes of {spec.name}")))
        if name in tensors and tensors[name].optional and value == NONE and not dtype:
            continue
        if name in tensors:
            shapes[name] = _shape(name, value)
            if dtype:
                formats[name] = dtypes.parse(dtype)
        elif dtype:
            raise ArgumentError(f"shape: {name}: expected a value, as {spec.name} takes no tensor {name}, got {item!r}")
        elif name in several and "x" in value:
            scalars[name] = tuple(_literal(name, part) for part in value.split("x"))
        else:
            scalars[name] = _literal(name, value)
            if name in flags and isinstance(scalars[name], str):
                raise ArgumentError(f"shape: {name}: expected True or False, got {value!r}")
    return shapes, scalars, formats


def written(value: Any) -> str:
    """The value of a scalar as cases spell it: 0.5, tanh, or 2x3."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def arguments_text(spec: Spec, values: tuple[Any, ...]) -> str:
    """The arguments of a call as the command line takes them, without defaults: "x=4x1000:fp16,axis=0"."""
    parts = []
    for item, value in zip(spec.inputs, values, strict=True):
        if isinstance(value, torch.Tensor):
            form = "x".join(map(str, value.shape)) or "scalar"
            form += TURNED if value.dim() > 1 and value.mT.is_contiguous() and not value.is_contiguous() else ""
            parts.append(f"{item.name}={form}:{dtypes.SHORT.get(value.dtype, value.dtype)}")
        elif value is not None and value != item.default:
            parts.append(f"{item.name}={written(value)}")
    return ",".join(parts)


NONE = "none"  # an optional tensor that is left out
INPUTS = "inputs"  # the name of a distribution in the text of a case, beside the arguments


def _shape(name: str, value: str) -> Shape:
    """The lengths of "4x1000"; ArgumentError for another form, and for more elements than can be counted in bytes."""
    form = value.removesuffix(TURNED)
    if not _SHAPE.fullmatch(form):
        raise ArgumentError(f"shape: {name}: expected lengths such as 4x1000, or scalar for none, got {value!r}")
    lengths = [] if form == "scalar" else form.split("x")
    if form != value and len(lengths) < 2:
        raise ArgumentError(f"shape: {name}: expected two lengths or more before {TURNED}, got {value!r}")
    # Python reads no number of thousands of digits; and so many elements are too many even beside a length of 0.
    shape = tuple(int(n) if len(n) < 20 else MOST_ELEMENTS + 1 for n in lengths)
    if max(shape, default=0) > MOST_ELEMENTS or math.prod(shape) > MOST_ELEMENTS:
        raise ArgumentError(f"shape: {name}: expected at most 2**58 elements, got {value}")
    return shape


def _literal(name: str, value: str) -> Any:
    """A number, True, False, None or a word."""
    if re.fullmatch(r"[-+]?(inf|nan)", value):
        return float(value)
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = value if re.fullmatch(r"[A-Za-z_]\w*", value) else ...
    if found is not None and not isinstance(found, int | float | str):
        raise ArgumentError(f"shape: {name}: expected a number, True, False, None or a word, got {value!r}")
    return found


def seed_of(*parts: object) -> int:
    """A 63-bit seed from what identifies the inputs; no global generator is involved."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def generator(*parts: object) -> torch.Generator:
    """A CPU generator seeded by `seed_of(*parts)`."""
    return torch.Generator().manual_seed(seed_of(*parts))


def _normal(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


def _offset(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """Large mean, small spread: one-pass variances and unshifted exponentials break here."""
    return _normal(shape, rng) + 100


def _uniform(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=rng) * 2 - 1


def _positive(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """No cancellation: the bias of truncating accumulators shows."""
    return torch.rand(shape, generator=rng)


def _wide(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """Many orders of magnitude side by side, within fp16."""
    return (_normal(shape, rng) * torch.exp(2 * _normal(shape, rng))).clamp(-1000, 1000)


def _small(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    return _normal(shape, rng) * 2.0**-8


def _tiny(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """On both sides of the smallest normal number of fp32 and bf16: what flushes subnormals loses most of them."""
    return _normal(shape, rng) * 2.0**-127


def _faint(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """Normal numbers of fp32 whose products are subnormal."""
    return _normal(shape, rng) * 2.0**-66


def _vast(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """Far beyond fp16, with squares and sums within fp32: what goes through a narrower range overflows."""
    return _normal(shape, rng) * 2.0**40


def _scattered(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """Sizes from 2^-64 to 2^64, each as often: products of two are normal numbers of fp32, but for few; not so of three."""
    return torch.ldexp(_normal(shape, rng), torch.randint(-64, 65, shape, generator=rng))


def _sparse(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """One element in eight differs from zero; the zeros have both signs."""
    return _normal(shape, rng) * (torch.rand(shape, generator=rng) < 0.125)


def _cancel(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """Neighbours that nearly cancel: relative errors of sums explode, the bound must not."""
    x = _normal(shape, rng) * 30
    flat = x.flatten()
    half = flat.numel() // 2
    flat[half : 2 * half] = -flat[:half] + _normal((half,), rng) * 2.0**-6
    return flat.reshape(shape)


def _gaps(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """Every third row is zero, the first among them."""
    x = _normal(shape, rng)
    if shape:
        x[::3] = 0
    return x


def _masked(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """-inf in the first five eighths along the longest axis: whole blocks pass before the first number."""
    x = _normal(shape, rng)
    if shape:
        axis = shape.index(max(shape))
        x.narrow(axis, 0, shape[axis] * 5 // 8).fill_(-math.inf)
    return x


def _ties(shape: Shape, rng: torch.Generator) -> torch.Tensor:
    """Two numbers and zeros of both signs, which are the largest: what is chosen by comparisons has many equals."""
    values = torch.tensor([-2.0, -1.0, -0.0, 0.0])
    return values[torch.randint(0, len(values), shape, generator=rng)]


DISTRIBUTIONS = {
    "normal": _normal,
    "offset": _offset,
    "uniform": _uniform,
    "positive": _positive,
    "wide": _wide,
    "small": _small,
    "tiny": _tiny,
    "faint": _faint,
    "vast": _vast,
    "scattered": _scattered,
    "sparse": _sparse,
    "gaps": _gaps,
    "cancel": _cancel,
    "masked": _masked,
    "ties": _ties,
}
BEYOND_FP16 = ("tiny", "faint", "vast", "scattered")


def draw(shape: Shape, dtype: torch.dtype, rng: torch.Generator, distribution: str = "normal") -> torch.Tensor:
    """Random values of a distribution, rounded to `dtype`; integer dtypes get all their values equally often.

    Beside tensors with numbers beyond fp16, those of 8-bit floats, such as what scales are for, have positive ones.
    """
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        drawn = torch.randint(info.min, info.max, shape, generator=rng, dtype=torch.int64, device=rng.device)
        return drawn.to(dtype)
    if distribution not in DISTRIBUTIONS:
        raise ArgumentError(f"inputs: expected one of {', '.join(DISTRIBUTIONS)}, got {distribution!r}")
    if dtype.itemsize == 1 and distribution in BEYOND_FP16:
        distribution = "positive"
    return DISTRIBUTIONS[distribution](shape, rng).to(dtype)


def integers(shape: Shape, dtype: torch.dtype, rng: torch.Generator, largest: int) -> torch.Tensor:
    """Integers in [-largest, largest], never zero, so that leaving one out always shows."""
    sign = torch.randint(0, 2, shape, generator=rng) * 2 - 1
    return (torch.randint(1, largest + 1, shape, generator=rng) * sign).to(dtype)


def exact_range(terms: int, dtype: torch.dtype, products: bool = False, inputs: torch.dtype | None = None) -> int:
    """Largest integers whose sums of `terms` terms (or products of two) stay exact in fp32 and `dtype`; 0 if none.

    inputs: the dtype that holds the integers themselves, if it is not that of the result.
    """
    limit = min(2.0**24, 1 / dtypes.UNIT[dtype]) / max(terms, 1)
    found = int(math.sqrt(limit)) if products else int(limit)
    return found if inputs is None else min(found, int(1 / dtypes.UNIT[inputs]))
