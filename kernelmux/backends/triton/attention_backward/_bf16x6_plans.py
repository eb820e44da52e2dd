"""Launches of the kernels of `bf16x6`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from kernelmux.backends.triton._launch.launch import Config, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.attention._planes import pieces, planes_map, planes_of, split_plan
from kernelmux.backends.triton.attention._problem import POINTER, section
from kernelmux.backends.triton.attention_backward._bf16x6 import attention_gradient_bf16x6_kernel
from kernelmux.backends.triton.attention_backward._descriptors import pitch
from kernelmux.backends.triton.attention_backward._problem import AttentionGradientProblem
from kernelmux.backends.triton.attention_backward._specialised_plans import rows_plan, shares_plan
from kernelmux.registry.spec.sliding_windows import best_shares, over_queries

T = torch.Tensor
Rule = Callable[[AttentionGradientProblem], dict[str, Config]]

OWN = 64  # rows of a gradient
ADDED = 12e6  # bytes of shares that are written and read while a step of a walk takes place


def bf16x6_shares(p: AttentionGradientProblem, tile: int) -> int:
    """Programs that share the queries of a block of keys, where blocks are few or a long one would be left over."""
    walks = [p.H // p.G * tiles for tiles in over_queries(p.mask, p.M, p.N, OWN, tile)]
    counts = (1, 2, 3, 4, 6, 8)
    places = {n: processors(p.device) // n for n in counts}
    added = 2 * p.B * p.G * p.N * p.D * 8 / ADDED
    return best_shares(walks, p.B * p.G, places, {n: 2.0 if n == 1 else 3.0 for n in counts}, added)


def gradient_plan(p: AttentionGradientProblem, kind: str, config: Config) -> Launch:
    """The launch for the gradient of queries, or those of keys and values."""
    heads, rows, share = (p.B * p.H, p.M, p.H // p.G) if kind == "queries" else (p.B * p.G, p.N, 1)
    # Under a mask programs are of many lengths: those of as many heads as share L2 start longest first.
    walked = 12 * p.N * p.D if kind == "queries" else 12 * p.M * p.D * (p.H // p.G)
    of_lines = section(p.B * p.G, walked) * share if p.mask.causal else 1
    columns, rest = pieces(p.D)

    def maps(width: int) -> tuple[Map, ...]:
        blocks = (OWN, config["TILE"]) if kind == "queries" else (config["TILE"], OWN)
        queries = planes_map(p.B * p.H, p.M, p.D, blocks[0], width)
        keys = planes_map(p.B * p.G, p.N, p.D, blocks[1], width)
        return (queries, queries, keys, keys) if kind == "queries" else (keys, keys, queries, queries)

    constants = p.constants | {"COLUMNS": columns, "REST": rest}
    return Launch(
        attention_gradient_bf16x6_kernel, (cdiv(rows, OWN) * heads * config["SHARES"],), *p.sizes, pitch(p), heads,
        of_lines, maps=(POINTER, POINTER, POINTER, *maps(columns), *maps(rest or columns)), KIND=kind, OWN=OWN, num_warps=4,
        **constants, **config,
    )  # fmt: skip


class GradientPlan(NamedTuple):
    """Launches: those that split q, k and v, and grad_out; for the rows; for the gradients of keys and of queries; and what
    adds the shares of the first, if there are several."""

    split: Launch
    split_grad_out: Launch
    of_rows: Launch
    for_keys: Launch
    for_queries: Launch
    shares: int
    add: Launch | None


@plan
def plans(p: AttentionGradientProblem, rule: Rule) -> GradientPlan:
    """The plan with the tiles of a rule."""
    queries, keys = (p.B, p.H, p.M, p.D), (p.B, p.G, p.N, p.D)
    configs, none = rule(p), (0, p.H, p.M, p.D)
    shares = configs["keys"]["SHARES"]
    return GradientPlan(
        split_plan(p.device, (queries, keys, keys), (p.q_strides, p.k_strides, p.v_strides)),
        split_plan(p.device, (queries, none, none), (p.g_strides,) * 3),
        rows_plan(p),
        gradient_plan(p, "keys", configs["keys"]),
        gradient_plan(p, "queries", configs["queries"]),
        shares,
        shares_plan(p, shares) if shares > 1 else None,
    )


def bf16x6(
    p: AttentionGradientProblem, grads: tuple[T, ...], grad_out: T, q: T, k: T, v: T, y: T, lse: T, rule: Rule
) -> None:  # fmt: skip
    """Writes grads: of q, k and v."""
    split, split_grad_out, of_rows, for_keys, for_queries, shares, add = plans(p, rule)
    g3, q3, k3, v3 = planes_of(grad_out, q, k, v)
    rows = lse.new_empty(p.B * p.H, 2, pitch(p))
    split(q3, k3, v3, q, k, v)
    split_grad_out(g3, g3, g3, grad_out, grad_out, grad_out)
    of_rows(rows, rows, lse, grad_out, y)
    parts = lse.new_empty(2, shares, *k.shape) if shares > 1 else rows
    of_keys, of_values = (parts[0], parts[1]) if shares > 1 else (grads[1], grads[2])
    for_keys(of_keys, of_values, rows, k3, v3, q3, g3, k3, v3, q3, g3)
    for_queries(grads[0], grads[0], rows, q3, g3, k3, v3, q3, g3, k3, v3)
    if add:
        add(*grads[1:], parts)
