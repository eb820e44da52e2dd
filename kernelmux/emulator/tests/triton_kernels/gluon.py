"""Gluon kernels: layouts, shared memory, copies, barriers and products are written out."""

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import ampere, hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# Triton 3.8 has shorter names for these.
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
cp_async = getattr(ampere.async_copy, "async_load", None) or ampere.async_copy.async_copy_global_to_shared
commit_group, wait_group = ampere.async_copy.commit_group, ampere.async_copy.wait_group
tma_load_im2col: Any = getattr(tma, "async_load_im2col", None)
atomic_add: Any = getattr(tma, "async_atomic_add", None)


@gluon.jit
def transpose_kernel(x_ptr, y_ptr, M: gl.constexpr, N: gl.constexpr, VIA_SHARED: gl.constexpr):
    """One layout in, another out: by a conversion, or by shared memory that is read the other way round."""
    ROWS: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    COLUMNS: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1])
    offs_m = gl.arange(0, M, layout=gl.SliceLayout(1, ROWS))
    offs_n = gl.arange(0, N, layout=gl.SliceLayout(0, ROWS))
    x = gl.load(x_ptr + offs_m[:, None] * N + offs_n[None, :])
    if VIA_SHARED:
        place = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [M, N], gl.SwizzledSharedLayout(4, 1, 8, [1, 0]), x)
        x = place.permute((1, 0)).load(ROWS)
    else:
        x = gl.convert_layout(gl.permute(gl.convert_layout(x, COLUMNS), (1, 0)), ROWS)
    offs_n = gl.arange(0, N, layout=gl.SliceLayout(1, ROWS))
    offs_m = gl.arange(0, M, layout=gl.SliceLayout(0, ROWS))
    gl.store(y_ptr + offs_n[:, None] * M + offs_m[None, :], x)


@gluon.jit
def cp_async_kernel(x_ptr, y_ptr, n, BLOCK: gl.constexpr):
    """Two groups of copies on their way; the second is waited for last."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    shared = gl.allocate_shared_memory(gl.float32, [2, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    offs = gl.arange(0, BLOCK, layout=LAYOUT)
    for i in gl.static_range(2):
        cp_async(shared.index(i), x_ptr + i * BLOCK + offs, mask=i * BLOCK + offs < n)
        commit_group()
    wait_group(1)
    first = shared.index(0).load(LAYOUT)
    wait_group(0)
    gl.store(y_ptr + offs, first * 2, mask=offs < n)
    gl.store(y_ptr + BLOCK + offs, shared.index(1).load(LAYOUT) * 3, mask=BLOCK + offs < n)


@gluon.jit
def mma_kernel(a_ptr, b_ptr, c_ptr, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr):
    """mma.sync, with operands from registers."""
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[2, 2], instr_shape=[16, 8])
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    am, ak = gl.arange(0, M, layout=gl.SliceLayout(1, A)), gl.arange(0, K, layout=gl.SliceLayout(0, A))
    bk, bn = gl.arange(0, K, layout=gl.SliceLayout(1, B)), gl.arange(0, N, layout=gl.SliceLayout(0, B))
    a = gl.load(a_ptr + am[:, None] * K + ak[None, :])
    b = gl.load(b_ptr + bk[:, None] * N + bn[None, :])
    c = ampere.mma_v2(a, b, gl.zeros([M, N], gl.float32, MMA))
    cm, cn = gl.arange(0, M, layout=gl.SliceLayout(1, MMA)), gl.arange(0, N, layout=gl.SliceLayout(0, MMA))
    gl.store(c_ptr + cm[:, None] * N + cn[None, :], c)


@gluon.jit
def wgmma_kernel(a_desc, b_desc, c_desc, K, STAGES: gl.constexpr, WARPS: gl.constexpr):
    """One tile of C: TMA loads STAGES ahead, asynchronous products one behind."""
    M: gl.constexpr = c_desc.block_type.shape[0]
    N: gl.constexpr = c_desc.block_type.shape[1]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES, M, BLOCK_K], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, N, BLOCK_K], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, N, 16])
    sums = hopper.warpgroup_mma_init(gl.zeros((M, N), dtype=gl.float32, layout=MMA))
    m, n = gl.program_id(0) * M, gl.program_id(1) * N
    steps = gl.cdiv(K, BLOCK_K)
    for i in gl.static_range(STAGES - 1):
        mbarrier.expect(full.index(i), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma_load(a_desc, [m, i * BLOCK_K], full.index(i), a_tiles.index(i))
        tma_load(b_desc, [n, i * BLOCK_K], full.index(i), b_tiles.index(i))
    for i in range(steps):
        mbarrier.wait(full.index(i % STAGES), (i // STAGES) & 1)
        a, b = a_tiles.index(i % STAGES), b_tiles.index(i % STAGES).permute((1, 0))
        sums = hopper.warpgroup_mma(a, b, sums, is_async=True)
        sums = hopper.warpgroup_mma_wait(num_outstanding=0, deps=(sums,))
        sums = hopper.warpgroup_mma_init(sums)
        ahead = i + STAGES - 1
        more = ahead < steps
        mbarrier.expect(full.index(ahead % STAGES), a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=more)
        tma_load(a_desc, [m, ahead * BLOCK_K], full.index(ahead % STAGES), a_tiles.index(ahead % STAGES), pred=more)
        tma_load(b_desc, [n, ahead * BLOCK_K], full.index(ahead % STAGES), b_tiles.index(ahead % STAGES), pred=more)
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(i))
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    c.store(hopper.warpgroup_mma_wait(num_outstanding=0, deps=(sums,)).to(c_desc.dtype))
    hopper.fence_async_shared()
    tma_store(c_desc, [m, n], c)
    tma.store_wait(0)


@gluon.jit
def load_partition(x_desc, tiles, full, empty, steps, STAGES: gl.constexpr):
    for i in range(steps):
        mbarrier.wait(empty.index(i % STAGES), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(i % STAGES), x_desc.block_type.nbytes)
        tma_load(x_desc, [0, i * x_desc.block_type.shape[1]], full.index(i % STAGES), tiles.index(i % STAGES))


@gluon.jit
def sum_partition(out_ptr, tiles, full, empty, steps, M: gl.constexpr, STAGES: gl.constexpr, LAYOUT: gl.constexpr):
    sums = gl.zeros([M], gl.float32, gl.SliceLayout(1, LAYOUT))
    for i in range(steps):
        mbarrier.wait(full.index(i % STAGES), (i // STAGES) & 1)
        sums += gl.sum(tiles.index(i % STAGES).load(LAYOUT).to(gl.float32), 1)
        mbarrier.arrive(empty.index(i % STAGES), count=1)
    gl.store(out_ptr + gl.arange(0, M, layout=gl.SliceLayout(1, LAYOUT)), sums)


@gluon.jit
def specialized_kernel(x_desc, out_ptr, K, STAGES: gl.constexpr):
    """One warp loads, four warps sum the rows of what has come."""
    M: gl.constexpr = x_desc.block_type.shape[0]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    tiles = gl.allocate_shared_memory(x_desc.dtype, [STAGES, M, x_desc.block_type.shape[1]], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    hopper.fence_async_shared()
    steps = gl.cdiv(K, x_desc.block_type.shape[1])
    gl.warp_specialize(
        [
            (sum_partition, (out_ptr, tiles, full, empty, steps, M, STAGES, LAYOUT)),
            (load_partition, (x_desc, tiles, full, empty, steps, STAGES)),
        ],
        [1],
        [24],
    )


@gluon.jit
def reduce_kernel(x_ptr, out_desc):
    """Adds a tile to memory by TMA."""
    M: gl.constexpr = out_desc.block_type.shape[0]
    N: gl.constexpr = out_desc.block_type.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    offs_m = gl.arange(0, M, layout=gl.SliceLayout(1, LAYOUT))
    offs_n = gl.arange(0, N, layout=gl.SliceLayout(0, LAYOUT))
    x = gl.load(x_ptr + offs_m[:, None] * N + offs_n[None, :])
    place = gl.allocate_shared_memory(out_desc.dtype, [M, N], out_desc.layout, x)
    hopper.fence_async_shared()
    atomic_add(out_desc, [0, 0], place)
    tma.store_wait(0)


@gluon.jit
def multicast_kernel(x_desc, out_ptr, LAYOUT: gl.constexpr):
    """One copy fills the tile of both blocks of a cluster."""
    M: gl.constexpr = x_desc.block_type.shape[0]
    N: gl.constexpr = x_desc.block_type.shape[1]
    tile = gl.allocate_shared_memory(x_desc.dtype, [M, N], x_desc.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    gl.barrier(cluster=True)
    mbarrier.expect(full, x_desc.nbytes_per_cta)
    tma_load(x_desc, [0, 0], full, tile, multicast=True)
    mbarrier.wait(full, 0)
    x = tile.load(LAYOUT)
    gl.barrier(cluster=True)
    offs_m = gl.arange(0, M, layout=gl.SliceLayout(1, LAYOUT))
    offs_n = gl.arange(0, N, layout=gl.SliceLayout(0, LAYOUT))
    gl.store(out_ptr + offs_m[:, None] * N + offs_n[None, :], x * 2)


@gluon.jit
def im2col_kernel(x_desc, out_ptr, n, h, w, R: gl.constexpr, S: gl.constexpr, LAYOUT: gl.constexpr):
    """The pixels under the element (R, S) of a filter whose base points start at (n, h, w)."""
    PIXELS: gl.constexpr = x_desc.block_type.shape[0]
    CHANNELS: gl.constexpr = x_desc.block_type.shape[1]
    tile = gl.allocate_shared_memory(x_desc.dtype, [PIXELS, CHANNELS], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.expect(full, x_desc.block_type.nbytes)
    tma_load_im2col(x_desc, [n, h, w, 0], [R, S], full, tile)
    mbarrier.wait(full, 0)
    offs_p = gl.arange(0, PIXELS, layout=gl.SliceLayout(1, LAYOUT))
    offs_c = gl.arange(0, CHANNELS, layout=gl.SliceLayout(0, LAYOUT))
    gl.store(out_ptr + offs_p[:, None] * CHANNELS + offs_c[None, :], tile.load(LAYOUT))
