"""Attention over pages, broken."""

import torch

from kernelmux.registry.backend import Implementation

T = torch.Tensor


def sound(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    """In float64, sequence by sequence."""
    y = torch.zeros_like(q, memory_format=torch.contiguous_format)
    pages, groups, slots = k_pages.shape[:3]
    for b, length in enumerate(lengths.tolist()):
        used = page_table[b, : -(-length // max(slots, 1))].long()
        if bool(((used < 0) | (used >= pages)).any()):
            y[b] = torch.nan
        elif length:
            k, v = (x[used].double().transpose(0, 1).flatten(1, 2)[:, :length] for x in (k_pages, v_pages))
            s = (q[b].double().unflatten(0, (groups, -1)) @ k.mT) * scale
            y[b] = (torch.softmax(s, -1) @ v).flatten(0, 1).to(q.dtype)
    return y


def stale_page(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    stale = page_table.clone()
    last = (lengths.long() - 1).clamp(min=0) // max(k_pages.shape[2], 1)
    rows = torch.nonzero(last > 0)[:, 0]
    stale[rows, last[rows]] = page_table[rows, last[rows] - 1]
    return sound(q, k_pages, v_pages, stale, lengths, scale)


def whole_pages(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    slots = max(k_pages.shape[2], 1)
    return sound(q, k_pages, v_pages, page_table, (lengths + slots - 1) // slots * slots, scale)


def first_split(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    return sound(q, k_pages, v_pages, page_table, lengths.clamp(max=max(1, 2 * k_pages.shape[2])), scale)


def heads_in_turn(q: T, k_pages: T, v_pages: T, page_table: T, lengths: T, scale: float) -> T:
    groups = k_pages.shape[1]
    order = torch.arange(q.shape[1], device=q.device).unflatten(0, (-1, groups)).mT.flatten()
    y = torch.empty_like(q, memory_format=torch.contiguous_format)
    y[:, order] = sound(q[:, order], k_pages, v_pages, page_table, lengths, scale)
    return y


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it", arithmetic="mma"),
    "stale_page": Implementation(fn=stale_page, idea="the last page of a sequence is the one before", arithmetic="mma"),
    "whole_pages": Implementation(fn=whole_pages, idea="attends to slots behind the end", arithmetic="mma"),
    "first_split": Implementation(fn=first_split, idea="only the first split of the keys counts", arithmetic="mma"),
    "heads_in_turn": Implementation(fn=heads_in_turn, idea="grouped heads are dealt out in turn", arithmetic="mma"),
}

CAUGHT_BY = {
    "stale_page": "accuracy", "whole_pages": "accuracy", "first_split": "accuracy", "heads_in_turn": "accuracy",
}  # fmt: skip
