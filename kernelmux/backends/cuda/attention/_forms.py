"""Which tile of queries and keys `wgmma` takes: the one by which a call takes least."""

from collections.abc import Iterator

from kernelmux.backends.cuda._launch.runtime import cdiv
from kernelmux.backends.cuda.attention._call import AttentionCall, Config, key_tiles

START = 160  # what a work takes besides its keys, in keys
OTHER_KEYS = 1.01  # where all divide a call alike, the first keys of a form are the fastest

# By the widest head: warpgroups, how long a key takes beside the form with most of them, keys of a tile.
FORMS: dict[int, tuple[tuple[int, float, tuple[int, ...]], ...]] = {
    64: ((3, 1.0, (128, 112)), (2, 0.8, (128, 112, 144, 160, 176)), (1, 0.62, (128, 176))),
    96: ((3, 1.0, (112, 96)), (2, 0.72, (128, 112, 144, 176)), (1, 0.56, (128, 176))),
    120: ((3, 1.0, (96,)), (2, 0.87, (128, 112, 144, 160, 176)), (1, 0.68, (128, 176))),
    128: ((2, 1.0, (128, 112, 144, 160, 176)), (1, 0.78, (128, 176))),
    192: ((2, 1.0, (112, 96, 80)), (1, 0.78, (112,))),
    256: ((2, 1.0, (80,)), (1, 0.78, (80,))),
}
STAGES = {120: {3: 3}}  # of the ring, by the widest head and the warpgroups, where there are more than two
# Heads between whole 64 bytes begin anywhere in a line: few queries to a tile then read keys more slowly from L2.
BETWEEN_LINES = 1.14


def wgmma_config(call: AttentionCall) -> Config:
    """Warpgroups of 64 queries each, keys of a tile, stages of the ring: what the busiest multiprocessor walks decides.

    H200, bf16, us: 52 x 8/4 x 307, D = 128, tiles of 128 keys 67.5, of 160 60.0, of 176 63.9; 1 x 96/12 x 1626, D = 104,
    causal, 128 157, 112 167, 176 171. 9 x 20/5 x 3648, D = 88, causal, three warpgroups 937, two with 128 keys 1114, with
    176 1161; D = 96 862 and 913, but 4 x 16 x 2048 121 and 119. 4 x 32 x 1024, D = 64, causal, three 67.7, two 61.1. 1 x 8
    x 512, D = 128, one warpgroup 12.3, two 14.0; 1 x 4 x 4096, causal, 45.3 and 54.7. Long calls, 4 x 32 x 4096, D = 128:
    tiles of 128 keys 1611, of 144 1633, of 176 1636; without turns those of 128 1618. Heads of 104 to 120 columns lie
    between lines: three warpgroups read keys less often than two, and a third stage waits for them. 2 x 16/4 x 9984 x 120
    two warpgroups 2759, three 2501, with three stages 2109; 58 x 4/2 x 2816 x 104, causal, 890, 825, 719.
    """
    return min(_configs(call), key=lambda found: found[0])[1]


def _configs(call: AttentionCall) -> Iterator[tuple[float, Config]]:
    D = call.q.shape[3]
    widest = next(width for width in FORMS if width >= D)
    for consumers, slower, choices in FORMS[widest]:
        stages = STAGES.get(widest, {}).get(consumers, 2)
        beside = BETWEEN_LINES if 64 < D < 96 and consumers < 3 else 1.0
        for keys in choices:
            factor = slower * beside * (1.0 if keys == choices[0] else OTHER_KEYS)
            config = {"BLOCK_M": 64 * consumers, "BLOCK_N": keys, "STAGES": stages, "CONSUMERS": consumers}
            yield factor * _keys_of_the_longest(call, 64 * consumers, keys), config


def _keys_of_the_longest(call: AttentionCall, rows: int, keys: int) -> float:
    """Keys that the busiest multiprocessor walks, with what each work takes besides."""
    works = key_tiles(call, rows, keys) * keys + START
    longest = float(works.max(initial=0))
    if call.uneven:
        return max(longest, float(works.sum()) * call.slices / call.card.processors)
    return longest * cdiv(len(works) * call.slices, call.card.processors)
