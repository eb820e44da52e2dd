"""What attention and its gradient share in torch: which keys are seen, what fits into memory, what torch's kernel takes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernelmux.backends.torch_ref._conditions import USUAL, Where, filled
from kernelmux.backends.torch_ref.matmul import _allowed
from kernelmux.registry.conditions import Aligned, AtMost, Condition, Multiple
from kernelmux.registry.spec.sliding_windows import Limit
from kernelmux.registry.util.torch_modes import has_memory

T = torch.Tensor

LOWEST = torch.finfo(torch.float32).smallest_normal
HIGHEST = 2.0**64  # beyond it scores, which reach 2^48 in fp16, times the scale overflow fp32
PAIRS = 65535  # of batch and head in one call: torch's fused kernels put them into grid.y (torch 2.11)
ELEMENTS = 2**27  # of a piece of the matrices of scores


def wide(x: T, precision: str) -> torch.dtype:
    """The dtype to compute in: fp64 where torch's flags would give products of fp32 less than the call asks for."""
    if x.dtype == torch.float64 or (x.dtype == torch.float32 and not _allowed(x, precision)):
        return torch.float64
    return torch.float32


def hidden(rows: int, columns: int, causal: bool, window: Limit, ahead: Limit, device: torch.device) -> T | None:
    """Which keys each query does not see [M, N], or None if it sees all; the last query stands at the last key."""
    if causal:
        ahead = 0
    if ahead is None and window is None:
        return None
    everything, most = torch.ones(rows, columns, dtype=torch.bool, device=device), rows + columns
    later = ~everything if ahead is None else everything.triu(columns - rows + min(ahead, most) + 1)
    return later if window is None else later | everything.tril(columns - rows - min(window, most))


def pieces(q: T, k: T) -> Iterator[tuple[slice, slice, slice]]:
    """Batches, heads of q and heads of k whose scores fit into memory together."""
    batches, groups, share = q.shape[0], k.shape[1], q.shape[1] // k.shape[1]
    each = max(1, share * q.shape[2] * k.shape[2])
    at_once = max(1, ELEMENTS // each)
    if at_once >= groups:
        for b in range(0, batches, at_once // groups):
            yield slice(b, b + at_once // groups), slice(None), slice(None)
        return
    for b in range(batches):
        for g in range(0, groups, at_once):
            yield slice(b, b + 1), slice(g * share, (g + at_once) * share), slice(g, g + at_once)


def aligned(x: T) -> T:
    """A copy of what is not made of rows at multiples of 16 bytes: torch's fused kernels fault there (torch 2.11, H200)."""
    start = x.data_ptr() if has_memory(x) else x.storage_offset() * x.element_size()
    places = (start, *(s * x.element_size() for s, n in zip(x.stride()[:-1], x.shape[:-1], strict=True) if n > 1))
    return x.clone(memory_format=torch.contiguous_format) if any(p % 16 for p in places) else x


def flash(*tensors: str) -> tuple[Condition, ...]:
    """What torch's FlashAttention-2 needs to compute a call as the spec says, of which these tensors are read."""
    return (
        USUAL,
        filled("q", "k"),
        Multiple("D", 8),
        AtMost("D", 256),
        Where("no window", lambda call: call.scalars["window"] is None, "it has no window"),
        Where("no ahead", lambda call: call.scalars["ahead"] is None, "it has no keys ahead"),
        Where(
            "M = N if causal",
            lambda call: not call.scalars["causal"] or call.axes["M"] == call.axes["N"],
            "it aligns queries and keys at the first key",
        ),
        Where(
            f"a scale from {LOWEST:.2g} to 2^64",
            lambda call: LOWEST <= call.scalars["scale"] <= HIGHEST,
            "it takes the largest score before it scales",
        ),
        Where(
            f"B * H <= {PAIRS}", lambda call: call.axes["B"] * call.axes["H"] <= PAIRS, "its grid has no more places"
        ),
        *(Aligned(name) for name in tensors),
    )


def fits(q: T, k: T, causal: bool, scale: float, window: Limit, ahead: Limit) -> bool:
    """Whether torch's FlashAttention-2 computes a call as the spec says. It aligns queries and keys at the first key."""
    if not q.is_cuda or q.dtype not in (torch.float16, torch.bfloat16) or q.shape[3] % 8 or q.shape[3] > 256:
        return False
    plain = window is None and ahead is None and (not causal or q.shape[2] == k.shape[2])
    return plain and LOWEST <= abs(scale) <= HIGHEST and q.shape[1] <= PAIRS and q.numel() > 0 < k.numel()
