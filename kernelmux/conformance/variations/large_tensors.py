"""Tensors of more than 2^31 elements: repeated on a GPU, and on the emulator memory that takes no room until it is used
(`candidate.allocations`).

lengths(spec, case, dtype)   the axes that may grow, and how long they have to be
grown(spec, case, ...)       the tensors of a case with one axis that long
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from kernelmux.candidate.allocations import contiguous_strides, virtual
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.inputs.trials import drawn, values
from kernelmux.conformance.variations.resize import AxisName, names, resized
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import OpSpec

FAR = 2**31  # elements: the first that a signed index of 32 bits cannot name
LONGEST = 2**30  # of one axis: lengths and counts of rows may be indices of 32 bits


def independent(spec: OpSpec, case: Case, axis: AxisName, dtype: torch.dtype) -> dict[int, int]:
    """Outputs by number -> the dimension that is this axis, where the last slices follow from the last of the inputs.

    Found by asking the reference: other values are put before the case's own along the axis.
    """
    return {number: dimension for number, dimension, (_, last) in _halves(spec, case, (axis,), dtype) if last}


def apart(spec: OpSpec, case: Case, axes: Sequence[AxisName], dtype: torch.dtype) -> dict[int, int]:
    """Outputs of which every slice along axes that grow together follows from that of the inputs alone, as of a batch.

    So do heads of queries with the heads of keys that they share.
    """
    return {number: dimension for number, dimension, same in _halves(spec, case, axes, dtype) if all(same)}


def _halves(
    spec: OpSpec, case: Case, axes: Sequence[AxisName], dtype: torch.dtype
) -> Iterator[tuple[int, int, tuple[bool, bool]]]:
    """Outputs that have one of the axes, as which dimension, and whether the halves of twice the length are those alone."""
    lengths = {axis: _length(spec, case, axis) for axis in axes}
    double = resized(spec, case, {axis: 2 * length for axis, length in lengths.items()})
    small, large = (generate.permitted(spec, c, dtype) for c in (case, double))
    places = {t: [d for axis in axes if (d := _dimension(spec, case, t, axis)) >= 0] for t in case.shapes}
    if small is None or large is None or not all(lengths.values()) or any(len(found) > 1 for found in places.values()):
        return
    own, other = (drawn(spec, case, dtype, seed) for seed in (0, 1))
    both = {t: torch.cat((other[t], own[t]), found[0]) if (found := places[t]) else own[t] for t in own}
    device = torch.device("cpu")
    # What does not have the axis is the same for both halves.
    first = {t: other[t] if places[t] else own[t] for t in own}
    alone = [spec.evaluate(spec.bind(*values(spec, case, made, device))) for made in (first, own)]
    together = spec.evaluate(spec.bind(*values(spec, double, both, device)))
    for i, output in enumerate(spec.outputs):
        sizes = list(zip(output.shape(small), output.shape(large), strict=True))
        changed = [d for d, (m, n) in enumerate(sizes) if m != n]
        # Windows are not as many as what they lie on.
        length = sizes[changed[0]][0] if len(changed) == 1 else 0
        if length in lengths.values() and sizes[changed[0]][1] == 2 * length:
            halves = (together[i].narrow(changed[0], start, length) for start in (0, length))
            pairs = zip(halves, alone, strict=True)
            before, after = (torch.allclose(x, y[i], rtol=1e-9, atol=1e-12, equal_nan=True) for x, y in pairs)
            yield i, changed[0], (before, after)


def _dimension(spec: OpSpec, case: Case, tensor: str, axis: AxisName) -> int:
    """Which dimension of a tensor is an axis, -1 if none."""
    found = names(spec, case, tensor)
    return found.index(axis) if axis in found else -1


def _length(spec: OpSpec, case: Case, axis: AxisName) -> int:
    return next(case.shapes[t.name][d] for t in spec.tensors if (d := _dimension(spec, case, t.name, axis)) >= 0)


def lengths(spec: OpSpec, case: Case, dtype: torch.dtype) -> dict[AxisName, tuple[int, str, dict[int, int]]]:
    """For each tensor and each output an axis that may grow: its length for 2^31 elements, of what, `independent`.

    The longest of each axis, up to `LONGEST`.
    """
    found: dict[AxisName, tuple[int, str, dict[int, int]]] = {}
    axes = dict.fromkeys(name for t in spec.tensors for name in names(spec, case, t.name))
    known = {axis: dims for axis in axes if (dims := independent(spec, case, axis, dtype))}
    call = spec.hypothetical(case, dtype, capability=generate.NEWEST)
    shapes = {name: tuple(shape) for name, shape in case.shapes.items()}
    places = {t: {a: d for a in known if (d := _dimension(spec, case, t, a)) >= 0} for t in shapes}
    for i, output in enumerate(spec.outputs):
        shapes[output.name] = output.shape(call)
        places[output.name] = {a: dims[i] for a, dims in known.items() if i in dims}
    for name, shape in shapes.items():
        for axis, dimension in list(places[name].items())[:1]:
            own = shape[dimension]
            need = (FAR // (torch.Size(shape).numel() // own) // own + 2) * own
            if found.get(axis, (0, "", {}))[0] < need <= LONGEST:
                found[axis] = need, name, known[axis]
    return found


def grown(
    spec: OpSpec, case: Case, axis: AxisName, length: int, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors of a case with an axis so long: repeated on a GPU; on the CPU virtual, with their values at the end."""
    made = dict(tensors)
    for name, x in tensors.items():
        dimension = _dimension(spec, case, name, axis)
        if dimension < 0:
            continue
        own = x.shape[dimension]
        shape = (*x.shape[:dimension], length, *x.shape[dimension + 1 :])
        if x.is_cuda:
            made[name] = x.repeat(*(length // own if d == dimension else 1 for d in range(x.dim())))
        else:
            made[name] = virtual(shape, contiguous_strides(shape), x.dtype)
            made[name].narrow(dimension, length - own, own).copy_(x)
    return made
