"""The warpgroups that multiply in gradients of the kernels: sums over the places that a ring of boxes brings."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernelmux.backends.triton._launch.hopper import copy_out_wait
from kernelmux.backends.triton.conv2d._specialised import places_by_terms
from kernelmux.backends.triton.conv2d._stores import store_box


@gluon.jit
def multiply(
    out_desc, g_ring, x_ring, side, piece, full, empty, steps, share, o, tap, c,
    PART: gl.constexpr, ROWS: gl.constexpr, PLACES: gl.constexpr, PLACES_INNER: gl.constexpr,
    BLOCK_O: gl.constexpr, BLOCK_C: gl.constexpr, SIDE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Part PART of a tile, ROWS of BLOCK_O channels of grad_out from o by BLOCK_C + SIDE of x from c, over all steps.

    PLACES_INNER: boxes have the places of a channel side by side, not the channels of a place.
    """
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_C, 16])
    side_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE if SIDE else BLOCK_C, 16])
    # [ROWS, BLOCK_C], and [ROWS, SIDE] right of it
    acc = gl.zeros([ROWS, BLOCK_C], gl.float32, layout)
    if SIDE:
        beside = gl.zeros([ROWS, SIDE], gl.float32, side_layout)
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        g = (
            places_by_terms(g_ring.index(slot), PLACES, BLOCK_O, PLACES_INNER)
            .permute((1, 0))
            .slice(PART * ROWS, ROWS, 0)
        )
        x = places_by_terms(x_ring.index(slot), PLACES, BLOCK_C, PLACES_INNER)
        acc = warpgroup_mma(g, x, acc, is_async=True)
        # The product of the step before is done, so its slot may be filled again.
        if SIDE:
            x = places_by_terms(side.index(slot), PLACES, SIDE, PLACES_INNER)
            beside = warpgroup_mma(g, x, beside, is_async=True)
            acc, beside = warpgroup_mma_wait(2, deps=[acc, beside])
        else:
            acc = warpgroup_mma_wait(1, deps=[acc])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=step > 0)
    if SIDE:
        acc, beside = warpgroup_mma_wait(0, deps=[acc, beside])
    else:
        acc = warpgroup_mma_wait(0, deps=[acc])
    store_box(out_desc, share, o + PART * ROWS, tap, c, acc, piece)
    if SIDE:
        store_box(out_desc, share, o + PART * ROWS, tap, c + BLOCK_C, beside, piece)
    copy_out_wait(0)
