"""Matrix product with an operand that is packed once."""

import torch

from kernelmux.conformance.mutants._batches import each
from kernelmux.conformance.mutants._sound import sound
from kernelmux.conformance.mutants.state._memory import Packed, capturing
from kernelmux.registry.backend import Implementation

LARGE = 8192  # elements
_padded: dict[object, torch.Tensor] = {}
_by_address: dict[object, torch.Tensor] = {}
_by_version: dict[object, torch.Tensor] = {}
PACKED = Packed(lambda b: b.mT.clone())
CARELESS = Packed(lambda b: b.mT.clone(), watchful=False)


def _packed(kept: dict[object, torch.Tensor], key: object, b: torch.Tensor) -> torch.Tensor:
    if key not in kept:
        kept.clear()
        kept[key] = b.mT.clone()
    return kept[key].mT


def by_address(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    key = (b.data_ptr(), b.shape, b.stride(), b.dtype)
    result: torch.Tensor = sound("matmul", a, _packed(_by_address, key, b), precision)
    return result


def by_address_and_version(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Another tensor may come to the same address, and its version begins at the same number."""
    key = (b.data_ptr(), b._version, b.shape, b.stride(), b.dtype)
    result: torch.Tensor = sound("matmul", a, _packed(_by_version, key, b), precision)
    return result


def large_by_address(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Packing small operands does not pay."""
    if b.numel() < LARGE:
        small: torch.Tensor = sound("matmul", a, b, precision)
        return small
    return by_address(a, b, precision)


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


def by_object(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    result: torch.Tensor = sound("matmul", a, PACKED.of(b).mT, precision)
    return result


def packed_before_capture(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """A graph that is captured after a call holds what was packed then, whatever b holds when it is replayed."""
    result: torch.Tensor = sound("matmul", a, CARELESS.of(b).mT, precision)
    return result


VARIANTS = {
    "packed_before_capture": Implementation(fn=packed_before_capture, idea="a graph finds b packed already"),
    "large_by_address": Implementation(fn=large_by_address, idea="a large b is packed once per address"),
    "padded": Implementation(fn=padded, idea="the padding of K is cleared once"),
    "by_address": Implementation(fn=by_address, idea="b is packed once per address"),
    "by_address_and_version": Implementation(
        fn=by_address_and_version, idea="b is packed once per address and version"
    ),
    "by_object": Implementation(fn=by_object, idea="b is packed once per tensor and version"),
}

CAUGHT_BY = {
    "large_by_address": "state",
    "padded": "state",
    "by_address": "state",
    "by_address_and_version": "state",
    "packed_before_capture": "graphs",
}
ONLY_CUDA = {"packed_before_capture"}
