"""How many rows count, which their gradients need, and what the losses of all rows add up to.

The count is on its way while rows are read; what adds the losses up is there when the last row is written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Config, Launch, cdiv, overlaps, plan
from kernelmux.backends.triton._losses.targets import wanted_of
from kernelmux.backends.triton._rows.rows import clamp, next_power

BLOCK = 4096
COUNTS = 16  # programs that count at most; each row adds up what they found
# Losses that a program adds up before there are several, which take as many; the programs at most.
ALONE, SHARE, MOST = 16384, 8192, 128


@triton.jit
def count_kernel(out_ptr, target_ptr, M, share, target_step, ignore_index, BLOCK: tl.constexpr, LEADS: tl.constexpr):
    """How many rows of each share count."""
    if LEADS:
        cuda.gdc_launch_dependents()
    first = tl.program_id(0).to(tl.int64) * share
    count = tl.zeros([BLOCK], tl.float32)
    for at in range(0, share, BLOCK):
        rows = first + at + tl.arange(0, BLOCK)
        mask = rows < tl.minimum(first + share, M)
        target = tl.load(target_ptr + rows * target_step, mask=mask, other=ignore_index)
        count += (target != ignore_index).to(tl.float32)
    tl.store(out_ptr + tl.program_id(0), tl.sum(count, 0))


@triton.jit
def weight_of_rows(count_ptr, COUNTS: tl.constexpr, FOLLOWS: tl.constexpr):
    """1 over the number of rows that count, of what the kernel ahead has found; 1 without it."""
    h = 1.0
    if COUNTS:
        if FOLLOWS:
            cuda.gdc_wait()
        h = 1.0 / tl.sum(tl.load(count_ptr + tl.arange(0, COUNTS)), 0)
    return h


@triton.jit
def added_kernel(
    out_ptr, loss_ptr, count_ptr, M, share, WANTED: tl.constexpr, BLOCK: tl.constexpr, COUNTS: tl.constexpr,
    FOLLOWS: tl.constexpr,
):  # fmt: skip
    """The sum of each share of losses, or their mean."""
    if FOLLOWS:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    first = tl.program_id(0).to(tl.int64) * share
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(0, share, BLOCK):
        rows = first + at + tl.arange(0, BLOCK)
        total += tl.load(loss_ptr + rows, mask=rows < tl.minimum(first + share, M), other=0.0)
    count = tl.sum(tl.load(count_ptr + tl.arange(0, COUNTS)), 0) if WANTED == "mean" else 1.0
    tl.store(out_ptr + tl.program_id(0), wanted_of(tl.sum(total, 0), count, WANTED))


def counted(target: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """How many rows count, in parts [1 to COUNTS]."""
    parts, launch = _counts(target.shape[0], target.stride(0), ignore_index, target.get_device())
    counts = torch.empty(parts, dtype=torch.float32, device=target.device)
    launch(counts, target)
    return counts


def added(loss: torch.Tensor, counts: torch.Tensor | None, wanted: str) -> torch.Tensor:
    """The "mean" or "sum" of the losses [M]. counts: of `counted`."""
    first, last, parts = _added(loss.shape[0], wanted, 0 if counts is None else counts.shape[0], loss.get_device())
    given = loss if counts is None else counts
    out = loss.new_empty(())
    if last is None:
        first(out, loss, given)
    else:
        sums = loss.new_empty(parts)
        first(sums, loss, given)
        last(out, sums, given)
    return out


@plan
def _counts(M: int, step: int, ignore_index: int, device: int) -> tuple[int, Launch]:
    parts = clamp(next_power(cdiv(M, BLOCK)), 1, COUNTS)
    share = cdiv(M, parts)
    return parts, Launch(count_kernel, (parts,), M, share, step, ignore_index, LEADS=overlaps(device), **_block(share))


@plan
def _added(M: int, wanted: str, counts: int, device: int) -> tuple[Launch, Launch | None, int]:
    parts = 1 if M <= ALONE else clamp(cdiv(M, SHARE), 1, MOST)
    follows = overlaps(device)
    more: Config = {"COUNTS": counts, "FOLLOWS": follows, **({"launch_pdl": True} if follows else {})}

    def launch(programs: int, rows: int, wanted: str) -> Launch:
        share = cdiv(rows, programs)
        return Launch(added_kernel, (programs,), rows, share, WANTED=wanted, **_block(share), **more)

    if parts == 1:
        return launch(1, M, wanted), None, 1
    return launch(parts, M, "sum"), launch(1, parts, wanted), parts


def _block(share: int) -> Config:
    block = clamp(next_power(share), 128, BLOCK)
    return {"BLOCK": block, "num_warps": max(1, block // 256)}
