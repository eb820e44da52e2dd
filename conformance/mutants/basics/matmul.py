"""Matrix product, broken."""

import torch

from kernelmux.conformance.mutants._batches import each
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtLeast, OneOf

TF32_BITS = 13  # mantissa bits of fp32 that tf32 does not keep
ORDERS = torch.Generator().manual_seed(0)  # of its own: orders that differ must not be alike by chance on some days


def sound(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return (a.double() @ b.double()).to(a.dtype)


@each
def low_accumulator(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """Sums in the storage dtype, 8 terms at a time; fp32 in bf16."""
    low = torch.bfloat16 if a.dtype == torch.float32 else a.dtype
    total = torch.zeros(a.shape[0], b.shape[1], dtype=low, device=a.device)
    for k in range(0, a.shape[1], 8):
        total += (a[:, k : k + 8].double() @ b[k : k + 8].double()).to(low)
    return total.to(a.dtype)


@each
def dropped_tile(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    k = a.shape[1] - a.shape[1] % 16 if a.shape[1] > 16 else a.shape[1]
    return sound(a[:, :k], b[:k], precision)


@each
def dropped_term(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    k = max(a.shape[1] - 1, min(a.shape[1], 1))
    return sound(a[:, :k], b[:k], precision)


def _tf32(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        return x
    raw = x.contiguous().view(torch.int32)
    return ((raw + (1 << TF32_BITS - 1)) & ~((1 << TF32_BITS) - 1)).view(torch.float32)


def silent_tf32(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return sound(_tf32(a), _tf32(b), precision)


@each
def random_order(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    order = torch.randperm(a.shape[1], generator=ORDERS).to(a.device)
    total = torch.zeros(a.shape[0], b.shape[1], device=a.device)
    for k in order.split(4):
        total += a[:, k].float() @ b[k].float()
    return total.to(a.dtype)


def undeclared_limit(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    if a.shape[-1] % 8:
        raise RuntimeError("K must be a multiple of 8")
    return sound(a, b, precision)


class Forgiving(AtLeast):
    """A condition that is announced and not enforced."""

    def check(self, call: object) -> str | None:
        return None


class Pessimist(OneOf):
    """A condition that refuses what it announces to accept."""

    def check(self, call: object) -> str | None:
        return f"precision is wrong, needs {self.text}"


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it"),
    "low_accumulator": Implementation(fn=low_accumulator, idea="accumulates in the storage dtype"),
    "dropped_tile": Implementation(fn=dropped_tile, idea="leaves out the last incomplete tile of K"),
    "dropped_term": Implementation(fn=dropped_term, idea="leaves out the last term"),
    "silent_tf32": Implementation(fn=silent_tf32, idea="tf32 where ieee was asked for"),
    "random_order": Implementation(fn=random_order, idea="adds in an order that changes from call to call"),
    "undeclared_limit": Implementation(fn=undeclared_limit, idea="needs K a multiple of 8 and does not say so"),
    "unenforced_limit": Implementation(fn=sound, idea="says K >= 4 and runs K = 3", requires=(Forgiving("K", 4),)),
    "refuses_all": Implementation(
        fn=sound, idea="refuses what it announces", requires=(Pessimist("precision", "ieee", "tf32"),)
    ),
}

CAUGHT_BY = {
    "low_accumulator": "accuracy",
    "dropped_tile": "shapes",
    "dropped_term": "exact",
    "silent_tf32": "accuracy",
    "random_order": "repeatability",
    "undeclared_limit": "accuracy",
    "unenforced_limit": "claims",
    "refuses_all": "claims",
}
