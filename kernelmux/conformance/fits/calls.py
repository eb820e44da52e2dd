"""What each card is asked: the workloads of a spec in every dtype, and seeded shapes drawn around its cases."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

from kernelmux.conformance.inputs.generate import permitted, pick
from kernelmux.conformance.inputs.trials import shown
from kernelmux.registry.cases import CHANNELS_LAST, TURNED, Case, generator, written
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.spec import Call, OpSpec

CARDS = ("t4", "a100", "rtx3090", "rtx4090", "h100", "b200", "b300", "rtx5090", "gb10")  # one for each capability
DRAWN = ("t4", "a100", "rtx4090", "h100", "b200", "rtx5090")  # which are asked drawn shapes, too
SHAPES = 60  # drawn shapes of an operator
TRIES = 40  # draws for each that is wanted
MOST = 1 << 31  # bytes of all tensors of a drawn call
SMALLEST, LARGEST = -6.0, 1.5  # by which powers of two an axis is changed
ROUND = (1, 8, 64)  # what a drawn length is a multiple of

Ask = tuple[Case, torch.dtype]


def calls_of(spec: OpSpec, card: str, seed: int = 0) -> Iterator[Ask]:
    """The calls of an operator that a card is asked, each once."""
    seen: set[tuple[str, torch.dtype]] = set()
    for case, dtype in (*_workloads(spec), *(drawn(spec, SHAPES, seed) if card in DRAWN else ())):
        if (case.text, dtype) not in seen:
            seen.add((case.text, dtype))
            yield case, dtype


def _workloads(spec: OpSpec) -> Iterator[Ask]:
    """Every workload in every dtype, and of an operator without workloads its cases."""
    for case in spec.workloads or spec.cases:
        for dtype in case.dtypes or spec.dtypes:
            if permitted(spec, case, dtype):
                yield case, dtype


def drawn(spec: OpSpec, count: int, seed: int) -> Iterator[Ask]:
    """Up to `count` calls like the cases and workloads of a spec, with other lengths; dtypes in turn.

    Forms, scalars and strides are those of the case. The same seed gives the same calls on every card.
    """
    rng = generator(spec.name, spec.version, "fits", seed)
    bases = [c for c in (*spec.workloads, *spec.cases) if all(0 not in s for s in c.shapes.values())]
    turn = 0
    for _ in range(count * TRIES if bases else 0):
        base = pick(bases, rng)
        kinds = base.dtypes or spec.dtypes
        dtype = kinds[turn % len(kinds)]
        call = permitted(spec, base, dtype)
        made = _changed(spec, base, call, rng) if call else None
        fits = permitted(spec, made, dtype) if made else None
        if made is None or fits is None or _bytes(fits) > MOST:
            continue
        yield made, dtype
        turn += 1
        if turn == count:
            return


def _bytes(call: Call) -> int:
    outputs = sum(prod(o.shape(call)) * o.dtype_of(call).itemsize for o in call.spec.outputs)
    return outputs + sum(x.numel() * x.element_size() for x in call.tensors.values())


def _changed(spec: OpSpec, base: Case, call: Call, rng: torch.Generator) -> Case | None:
    """The case with other lengths of its axes; None for a tensor whose form cannot be told from its axes."""
    axes = {name: _length(n, rng) if isinstance(n, int) else n for name, n in call.axes.items()}
    axes["..."] = tuple(_length(n, rng) for n in call.axes.get("...", ()))
    words = []
    for tensor in spec.tensors:
        if tensor.name not in base.shapes:
            continue
        form = next((f for f in tensor.forms if _sizes(f, call.axes) == base.shapes[tensor.name]), None)
        if form is None:
            return None
        turned = TURNED if tensor.name in base.turned else ""
        kind = f":{SHORT[given]}" if (given := base.parsed[2].get(tensor.name)) else ""
        words.append(f"{tensor.name}={shown(_sizes(form, axes) or ())}{turned}{kind}")
    words += [f"{name}={written(value)}" for name, value in base.scalars.items() if value is not None]
    words += [CHANNELS_LAST] if base.channels_last else []
    return spec.case(" ".join(words))


def _sizes(form: tuple[str, ...], axes: dict[str, object]) -> tuple[int, ...] | None:
    """The shape of a form with these axes; None where it has one that is not among them."""
    found: list[int] = []
    for name in form:
        value = int(name) if name.isdigit() else axes.get(name, () if name == "..." else None)
        if value is None:
            return None
        found += value if isinstance(value, tuple) else [value]  # type: ignore[list-item]
    return tuple(found)


def _length(n: int, rng: torch.Generator) -> int:
    """A length between n/64 and 3 n, in two of three draws; n in the others."""
    if pick((0, 1, 2), rng) == 0:
        return n
    power = SMALLEST + (LARGEST - SMALLEST) * float(torch.rand((), generator=rng))
    factor: int = pick(ROUND, rng)
    return max(1, int(round(n * 2.0**power / factor) * factor))
