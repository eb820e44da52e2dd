"""paged_attention, broken."""

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.registry.conditions import AtMost

mutant = Mutants("paged_attention")


# basics: Attention over pages, broken.

T = torch.Tensor


FEW = tuple(AtMost(axis, 2**17) for axis in "BLS")  # sequences, one after another, and what one may have


@mutant("nothing is wrong with it", family="basics", arithmetic="mma", requires=FEW)
def sound(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    """In float64, sequence by sequence, and nothing is asked of the host: a CUDA graph may have it."""
    y = torch.zeros_like(q, memory_format=torch.contiguous_format)
    pages, groups, slots = k_pages.shape[:3]
    for b, (row, length) in enumerate(zip(page_table.long(), lengths, strict=True)):
        used = torch.arange(len(row), device=q.device) * slots < length
        lost = (used & ((row < 0) | (row >= pages))).any()
        if pages and slots and len(row):
            table = row.clamp(0, pages - 1)
            k, v = (x[table].double().transpose(0, 1).flatten(1, 2) for x in (k_pages, v_pages))
            there = torch.arange(k.shape[1], device=q.device) < length
            s = ((q[b].double().unflatten(0, (groups, -1)) @ k.mT) * scale).where(there, -torch.inf)
            found = torch.softmax(s, -1) @ v.where(there[:, None], 0.0)
            y[b] = found.where(length > 0, 0.0).flatten(0, 1).to(q.dtype)
        y[b] = torch.where(lost, torch.nan, y[b])
    return y


@mutant("the last page of a sequence is the one before", family="basics", caught_by="accuracy", arithmetic="mma")
def stale_page(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    stale = page_table.clone()
    last = (lengths.long() - 1).clamp(min=0) // max(k_pages.shape[2], 1)
    rows = torch.nonzero(last > 0)[:, 0]
    stale[rows, last[rows]] = page_table[rows, last[rows] - 1]
    return sound(q, k_pages, v_pages, stale, lengths, scale)


@mutant("attends to slots behind the end", family="basics", caught_by="accuracy", arithmetic="mma")
def whole_pages(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    slots = max(k_pages.shape[2], 1)
    return sound(q, k_pages, v_pages, page_table, (lengths + slots - 1) // slots * slots, scale)


@mutant("only the first split of the keys counts", family="basics", caught_by="accuracy", arithmetic="mma")
def first_split(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    return sound(q, k_pages, v_pages, page_table, lengths.clamp(max=max(1, 2 * k_pages.shape[2])), scale)


@mutant("grouped heads are dealt out in turn", family="basics", caught_by="accuracy", arithmetic="mma")
def heads_in_turn(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    groups = k_pages.shape[1]
    order = torch.arange(q.shape[1], device=q.device).unflatten(0, (-1, groups)).mT.flatten()
    y = torch.empty_like(q, memory_format=torch.contiguous_format)
    y[:, order] = sound(q[:, order], k_pages, v_pages, page_table, lengths, scale)
    return y


@mutant("a page has 16 bits", family="extent", caught_by="extent", arithmetic="mma")
def short_page(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    cut = torch.where((page_table > 65535) & (page_table < k_pages.shape[0]), page_table & 65535, page_table)
    return sound(q, k_pages, v_pages, cut, lengths, scale)
