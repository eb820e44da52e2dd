"""Attention's gradient in two walks over the weights: one for grad_k and grad_v, one for grad_q, so that each sum has one
owner and a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.backends.cuda._launch.occupancy import fits
from kernelmux.backends.cuda._launch.runtime import Source, cdiv
from kernelmux.backends.cuda.attention_backward._call import (
    INPUTS,
    MAPPED,
    ORDER,
    SHAPE,
    AttentionGradientCall,
    Config,
    Walks,
    clusters_at_a_time,
    maps_of,
    section_of,
    shared_bytes,
)  # fmt: skip
from kernelmux.registry.spec.sliding_windows import best_shares, over_keys, over_queries

T = torch.Tensor

_SIMPLE = Source(__file__, "attention_backward_simple.cu")
_TENSOR_CORES = Source(__file__, "attention_backward_tensor_cores.cu")
_TF32X3 = Source(__file__, "attention_backward_tf32x3.cu")
_WGMMA_KEYS = Source(__file__, "attention_backward_wgmma_keys.cu")
_WIDE_KEYS = Source(__file__, "attention_backward_wide_keys.cu")
_WGMMA_QUERIES = Source(__file__, "attention_backward_wgmma_queries.cu")

_KEYS = ("OWN", "TILE", "STAGES", "SIDES", "BLOCKS")
_APART = {1: 2.0, 2: 5.0, 4: 5.0, 8: 5.0}  # what a walk takes beside its steps, in steps; in a cluster sums are added

_STRIDES = "grad_step:struct q_step:struct k_step:struct v_step:struct"


def simple(call: AttentionGradientCall) -> Walks:
    return _two_passes(_SIMPLE, call, 32, 256, 0, {})


def tensor_cores(call: AttentionGradientCall) -> Walks:
    config = tensor_cores_config(call)
    own, shared = config["OWN"], tensor_cores_bytes(call, config)
    return _two_passes(_TENSOR_CORES, call, own, 2 * config["SIDES"] * own, shared, config)


def tensor_cores_config(call: AttentionGradientCall) -> Config:
    """The first that fit: owned rows, rows of a tile, stages, warps for 16 rows, blocks of a multiprocessor.

    An H100 for an A100, bf16, causal, us, with one stage of 64 rows and two warps, and here: 4 x 32 x 4096 x 128 12809,
    7743; x 64 5586, 4195; 4 x 16 x 2048 x 256 (32 rows) 2966, 2622. A T4 has no asynchronous copies: one stage.
    """
    D = call.dims[5]
    kinds = [(64, 64, 2, 1, 3), (64, 64, 1, 1, 3), (64, 64, 1, 1, 1)] * (D <= 64)
    kinds += [(64, 64, 2, 1, 2), (128, 64, 2, 1, 1), (64, 32, 2, 1, 1), (64, 32, 1, 1, 1)] * (D <= 128)
    for kind in (*kinds, (32, 32, 2, 2, 1), (32, 32, 1, 2, 1), (16, 32, 1, 2, 1)):
        config: Config = dict(zip(_KEYS, kind, strict=True))
        room = fits(call.card, tensor_cores_bytes(call, config), 2 * config["SIDES"] * config["OWN"], config["BLOCKS"])
        if room and (config["STAGES"] == 1 or call.card.capability >= (8, 0)):
            break
    return config | {"VECTOR": call.vector(*call.inputs[:4])}


def tensor_cores_bytes(call: AttentionGradientCall, config: Config) -> int:
    """Shared memory of two tensors' owned rows and of tiles; with two sides, of the weights and their gradients."""
    own, tile, row_bytes = config["OWN"], config["TILE"], cdiv(call.dims[5], 16) * 32 + 16
    return 2 * (own + config["STAGES"] * tile) * row_bytes + (config["SIDES"] - 1) * 2 * own * (2 * tile + 16)


def tf32x3(call: AttentionGradientCall) -> Walks:
    config = tf32x3_config(call)
    own, shared = config["OWN"], tf32x3_bytes(call, config)
    return _two_passes(_TF32X3, call, own, 2 * config["SIDES"] * own, shared, config)


def tf32x3_config(call: AttentionGradientCall) -> Config:
    """The first that fit, as above.

    H200, us, these and others: 2 x 16 x 2048 x 64 causal 1069, with tiles of 32 rows and two stages 1082; 3 x 16 / 4 x 838
    x 72 923, with one stage 989; 1 x 16 x 4096 x 128 causal 4426 and 2 x 32 / 8 x 2048 x 128, a window of 512, 2324, with
    128 owned rows and two stages 4307 and 2523; 3 x 2 / 1 x 448 x 144 causal 174, with 64 owned rows 262.
    """
    D = call.dims[5]
    kinds = [(64, 64, 1, 1, 2)] * (D <= 64) + [(64, 32, 2, 1, 2)] * (D <= 96)
    kinds += [(64, 32, 1, 1, 2), (64, 32, 1, 1, 1)] * (D <= 128)
    for kind in (*kinds, (32, 32, 2, 2, 1), (32, 32, 1, 2, 1), (16, 32, 1, 2, 1)):
        config: Config = dict(zip(_KEYS, kind, strict=True))
        if fits(call.card, tf32x3_bytes(call, config), 2 * config["SIDES"] * config["OWN"], config["BLOCKS"]):
            break
    return config | {"VECTOR": call.vector(*call.inputs[:4])}


def tf32x3_bytes(call: AttentionGradientCall, config: Config) -> int:
    """Shared memory as above, with two numbers for each row of a tile and one of the block."""
    own, tile, row_bytes = config["OWN"], config["TILE"], 4 * call.dims[5] + 16
    tiles = 2 * (own + config["STAGES"] * tile) * row_bytes + 8 * config["STAGES"] * tile + 16
    return tiles + (config["SIDES"] - 1) * 2 * own * (4 * tile + 16)


def _two_passes(
    source: Source, call: AttentionGradientCall, rows: int, threads: int, shared: int, config: Config
) -> Walks:
    """The two kernels of a file, whose blocks own so many keys or queries."""
    B, H, G, M, N, _ = call.dims
    defines, steps = {**config, **call.defines}, call.strides[:4]
    of_keys = source.kernel("attention_backward_keys", f"{INPUTS} grad_k* grad_v* {_STRIDES} {SHAPE}", **defines).bind(
        B * G * cdiv(N, rows), threads, *call.numbers, shared=shared
    )
    of_queries = source.kernel("attention_backward_queries", f"{INPUTS} grad_q* {_STRIDES} {SHAPE}", **defines).bind(
        B * H * cdiv(M, rows), threads, *call.numbers, shared=shared
    )

    def launch(inputs: tuple[T, ...], offsets: T, _: None, *grads: T) -> None:
        of_keys(*inputs, offsets, *grads[1:], *steps)
        of_queries(*inputs, offsets, grads[0], *steps)

    return Walks(launch)


def keys_config(call: AttentionGradientCall) -> Config:
    """Queries of a tile, stages of the ring, warpgroups of 64 keys each; TURNS: these issue their scores in turn.

    H200, bf16, 4 x 32 x 4096 x D, TFLOP/s of these four products: at D = 128 tiles of 80 queries 719 (without turns
    692), of 64 queries 570 (624); wider ones, or turns with the bounds of a window, need more registers than there are.
    At D = 64 tiles of 128 queries 615 without turns, 518 to 587 with them. At D = 96, 4 x 16 heads, causal: tiles of 112
    queries 703 us (in turns 714), of 96 711, of 80 736; 112 are too many with the bounds of a window. Beyond D = 128 a
    block owns 64 keys, and the whole call takes, with tiles of 96, 80 and 64 queries: 4 x 8 x 2048 x 192 causal 429, 431
    and 436 us, 2 x 16 / 4 x 3000 x 160 1190, 1212 and 1247.
    """
    if call.dims[5] > 128:
        tile = 96 if call.dims[5] <= 192 else 64
        return {"TILE": tile, "STAGES": 2, "CONSUMERS": 2, "SHARES": keys_shares(call, tile)}
    if call.dims[5] <= 64:
        return {"TILE": 128, "STAGES": 4, "CONSUMERS": 2, "TURNS": 0}
    if call.dims[5] <= 96 and call.mask.window:
        return {"TILE": 96, "STAGES": 3, "CONSUMERS": 2, "TURNS": 0}
    if call.dims[5] <= 96:
        return {"TILE": _filled(call, call.dims[3], (112, 96), 8), "STAGES": 2, "CONSUMERS": 2, "TURNS": 0}
    return {"TILE": 80, "STAGES": 3, "CONSUMERS": 2, "TURNS": int(not call.mask.window)}


def queries_config(call: AttentionGradientCall) -> Config:
    """Keys of a tile, stages of the rings of keys and of values, warpgroups of 64 queries each; TURNS as above.

    H200 as above, TFLOP/s of these three products: at D = 128 tiles of 96 keys 796, without turns 717; at D = 64 tiles
    of 128 keys 660, without turns 523. At D = 96 tiles of 128 keys take 470 us, of 112 485, of 96 490. Beyond D = 128 the
    stages count, and the whole call takes: at D = 256, 2 x 16 x 4096 causal, three of 32 keys 1520 us, two and one of 64
    keys 1553, two of 48 1652; at D = 192, 4 x 8 x 2048 causal, three and two of 64 378 (without turns 382), two of 80 424,
    two and one of 64 431.
    """
    if call.dims[5] > 192:
        return {"TILE": 32, "STAGES": 3, "V_STAGES": 3, "CONSUMERS": 2, "TURNS": 0, "SHARES": queries_shares(call, 32)}
    if call.dims[5] > 128:
        return {"TILE": 64, "STAGES": 3, "V_STAGES": 2, "CONSUMERS": 2, "TURNS": 1, "SHARES": queries_shares(call, 64)}
    tile = 96 if call.dims[5] > 96 else _filled(call, call.dims[4], (128, 112, 96), 16)
    return {"TILE": tile, "STAGES": 3, "V_STAGES": 2, "CONSUMERS": 2, "TURNS": 1, "SHARES": 1}


def _filled(call: AttentionGradientCall, rows: int, tiles: tuple[int, ...], apart: int) -> int:
    """The tile that walks over so many rows in the least time, the widest under a mask; a step takes `apart` rows more.

    H200, bf16, us of the whole call, no mask, 39 x 7 x 192 x 72: tiles of 112 queries and 128 keys 85.7, of 96 and 128
    80.1, of 96 and 96 76.8; 20 x 12 x 320 x 80 of 112 and 128 123.8, of 112 and 112 120.7, of 80 and 112 123.4.
    """
    return tiles[0] if call.mask.causal or call.mask.window else min(tiles, key=lambda n: cdiv(rows, n) * (n + apart))


def keys_shares(call: AttentionGradientCall, tile: int) -> int:
    """Blocks of a cluster that share a walk over queries.

    H200, bf16, causal, us in 1, 2, 4 and 8 shares: 1 x 16 / 2 x 600 x 192 113.5, 75.0, 54.5 and 47.7. 1 x 4 x 512 x 256
    takes 42.4, 26.9 with the walk over keys in two, 27.0 with both, and 28.4 with that over keys in four.
    """
    B, H, G, M, N, _ = call.dims
    walks = [H // G * tiles for tiles in over_queries(call.mask, M, N, 64, tile)]
    return best_shares(walks, B * G, clusters_at_a_time(call.card), _APART)


def queries_shares(call: AttentionGradientCall, tile: int) -> int:
    """Blocks of a cluster that share a walk over keys."""
    B, H, _, M, N, _ = call.dims
    walks = over_keys(call.mask, M, N, 128, tile)[::-1]
    return best_shares(walks, B * H, clusters_at_a_time(call.card), _APART)


def wgmma_keys(call: AttentionGradientCall, config: Config) -> Walks:
    B, H, G, M, N, _ = call.dims
    own, read = 64 * config["CONSUMERS"], H // G * M
    maps = maps_of(call, {"grad_out": config["TILE"], "q": config["TILE"], "k": own, "v": own})
    kernel = _WGMMA_KEYS.kernel(
        "attention_backward_wgmma_keys",
        f"{MAPPED} grad_k* grad_v* {SHAPE} {ORDER}",
        **config, **call.defines,
    )  # fmt: skip
    launch = kernel.bind(
        B * G * cdiv(N, own), 128 * (config["CONSUMERS"] + 1), *call.numbers, B * G, section_of(call, B * G, read),
        shared=shared_bytes(call, config) + 8 * config["TILE"] * config["STAGES"], follows=True,
    )  # fmt: skip

    def run(inputs: tuple[T, ...], offsets: T, _: None, *grads: T) -> None:
        launch(*(tiles.of(x) for tiles, x in zip(maps, inputs, strict=True)), offsets, *grads[1:])

    return Walks(run)


def wide_keys(call: AttentionGradientCall, config: Config) -> Walks:
    """Beyond D = 128: a block owns 64 keys, and its two warpgroups have a sum each."""
    B, H, G, M, N, _ = call.dims
    tile, stages = config["TILE"], config["STAGES"]
    maps = maps_of(call, {"grad_out": tile, "q": tile, "k": 64, "v": 64})
    kernel = _WIDE_KEYS.kernel(
        "attention_backward_wide_keys", f"{MAPPED} grad_k* grad_v* {SHAPE} {ORDER}", **config, **call.defines
    )
    shared = 2 * (64 + stages * tile) * call.panels * 128 + tile * (64 * 4 + 8 * stages) + 1024
    launch = kernel.bind(
        B * G * cdiv(N, 64) * config["SHARES"], 384, *call.numbers, B * G, section_of(call, B * G, H // G * M),
        shared=shared, follows=True,
    )  # fmt: skip

    def run(inputs: tuple[T, ...], offsets: T, _: None, *grads: T) -> None:
        launch(*(tiles.of(x) for tiles, x in zip(maps, inputs, strict=True)), offsets, *grads[1:])

    return Walks(run)


def wgmma_queries(call: AttentionGradientCall, config: Config) -> Walks:
    B, H, G, M, N, _ = call.dims
    own = 64 * config["CONSUMERS"]
    maps = maps_of(call, {"grad_out": own, "q": own, "k": config["TILE"], "v": config["TILE"]})
    kernel = _WGMMA_QUERIES.kernel(
        "attention_backward_wgmma_queries",
        f"{MAPPED} grad_q* {SHAPE} {ORDER}",
        **config, **call.defines,
    )  # fmt: skip
    launch = kernel.bind(
        B * H * cdiv(M, own) * config["SHARES"], 128 * (config["CONSUMERS"] + 1), *call.numbers, B * H,
        section_of(call, B * H, N * G // H),
        shared=shared_bytes(call, config), follows=True,
    )  # fmt: skip

    def run(inputs: tuple[T, ...], offsets: T, _: None, *grads: T) -> None:
        launch(*(tiles.of(x) for tiles, x in zip(maps, inputs, strict=True)), offsets, grads[0])

    return Walks(run)


def wgmma(call: AttentionGradientCall) -> Walks:
    keys = wide_keys if call.dims[5] > 128 else wgmma_keys
    walks = keys(call, keys_config(call)), wgmma_queries(call, queries_config(call))

    def launch(*given: Any) -> None:
        for walk in walks:
            walk.launch(*given)

    return Walks(launch)
