"""Clusters in x, y and z: coordinates, ranks, sizes from the kernel and from the launch, grids that do not fit."""

from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, checks
from kernelmux.emulator.running.launch import EntryKernel, load

NAMES = (
    *(f"{n}.{axis}" for n in ("ctaid", "cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid") for axis in "xyz"),
    "cluster_ctarank",
    "cluster_nctarank",
)
HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
# The number of a block in the grid, x running fastest.
BLOCK = """.reg .b32 %x, %y, %z, %nx, %ny, %n, %v;
.reg .b64 %out, %at; .reg .pred %p;
ld.param.u64 %out, [out];
mov.u32 %x, %ctaid.x; mov.u32 %y, %ctaid.y; mov.u32 %z, %ctaid.z; mov.u32 %nx, %nctaid.x; mov.u32 %ny, %nctaid.y;
mad.lo.u32 %n, %z, %ny, %y; mad.lo.u32 %n, %n, %nx, %x;
"""


def kernel(body: str, directive: str = "") -> EntryKernel:
    text = f"{HEAD}.visible .entry k(.param .u64 out) {directive} {{\n{BLOCK}{body}\nret;\n}}"
    return load(text).kernel("k")


def specials(directive: str = "") -> EntryKernel:
    store = f"mul.lo.u32 %n, %n, {4 * len(NAMES)}; cvt.u64.u32 %at, %n; add.u64 %out, %out, %at;\n"
    store += "".join(f"mov.u32 %v, %{name}; st.global.u32 [%out+{4 * i}], %v;\n" for i, name in enumerate(NAMES))
    store += "mov.pred %p, %is_explicit_cluster;\n"
    return kernel(store, directive)


def expected(grid: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """One row of special registers per block."""
    rows = []
    for z, y, x in np.ndindex(*grid[::-1]):
        block = np.array([x, y, z])
        place, cluster = block % shape, block // shape
        rank = place[0] + shape[0] * (place[1] + shape[1] * place[2])
        rows.append([*block, *place, *shape, *cluster, *(np.array(grid) // shape), rank, np.prod(shape)])
    return np.array(rows, np.uint32)


SHAPES = [
    ((4, 2, 1), (2, 2, 1)),
    ((3, 4, 2), (1, 2, 2)),
    ((2, 3, 4), (1, 1, 4)),
    ((6, 2, 2), (3, 1, 2)),
    ((4, 1, 1), (4, 1, 1)),
]


@pytest.mark.parametrize(("grid", "shape"), SHAPES)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled for it", "asked for at launch"])
def test_special_registers(grid: tuple[int, ...], shape: tuple[int, ...], compiled: bool) -> None:
    out = np.zeros((int(np.prod(grid)), len(NAMES)), np.uint32)
    directive = f".reqnctapercluster {shape[0]}, {shape[1]}, {shape[2]}" if compiled else ""
    with checks("full"):
        specials(directive).launch(grid, 32, (out,), cluster=None if compiled else shape)
    assert np.array_equal(out, expected(grid, shape))


def test_clusters_stay_together_in_grids_of_several_chunks() -> None:
    grid, shape = (6, 8, 4), (2, 4, 2)  # 192 blocks of 256 threads: more than run together
    out = np.zeros((192, len(NAMES)), np.uint32)
    specials().launch(grid, 256, (out,), cluster=shape)
    assert np.array_equal(out, expected(grid, shape))


# Each block writes its number to the next rank's memory; after the barrier it stores what it has got.
PASS_ON = """.shared .align 4 .b32 tile;
.reg .b32 %rank, %size, %to, %from;
barrier.cluster.arrive; barrier.cluster.wait;
mov.u32 %rank, %cluster_ctarank; mov.u32 %size, %cluster_nctarank; add.u32 %rank, %rank, 1; rem.u32 %rank, %rank, %size;
mov.u32 %to, tile; mapa.shared::cluster.u32 %to, %to, %rank; getctarank.shared::cluster.u32 %from, %to;
setp.ne.u32 %p, %from, %rank; @%p trap;
st.shared::cluster.u32 [%to], %n;
barrier.cluster.arrive; barrier.cluster.wait;
ld.shared.u32 %v, [tile];
mul.lo.u32 %n, %n, 4; cvt.u64.u32 %at, %n; add.u64 %out, %out, %at; st.global.u32 [%out], %v;
"""


@pytest.mark.parametrize(("grid", "shape"), SHAPES)
def test_ranks_name_the_blocks_of_the_cluster(grid: tuple[int, ...], shape: tuple[int, ...]) -> None:
    out = np.zeros(int(np.prod(grid)), np.uint32)
    with checks("full"):
        kernel(PASS_ON).launch(grid, 1, (out,), cluster=shape)
    rows = expected(grid, shape)
    clusters, ranks, size = rows[:, 9:12], rows[:, 15], int(np.prod(shape))
    for number, got in enumerate(out.tolist()):
        assert (clusters[got] == clusters[number]).all() and (ranks[got] + 1) % size == ranks[number]


@pytest.mark.parametrize(
    ("grid", "wanted", "directive", "text"),
    [
        ((4, 3, 2), (2, 2, 1), "", "cannot be divided into clusters of"),
        ((4, 2, 3), (1, 1, 2), "", "cannot be divided into clusters of"),
        ((4, 4, 4), (4, 4, 4), "", "a cluster has 1 to 16"),
        ((4, 4, 4), (0, 1, 1), "", "a cluster has 1 to 16"),
        ((4, 4, 4), (2, 1, 1), ".reqnctapercluster 1, 2, 1", "compiled for exactly"),
    ],
)
def test_sizes_that_do_not_fit(grid: Any, wanted: Any, directive: str, text: str) -> None:
    with pytest.raises(EmulatorError, match=text) as raised:
        specials(directive).launch(grid, 32, (np.zeros(64 * len(NAMES), np.uint32),), cluster=wanted)
    assert raised.value.kind == "argument"


def test_errors_name_the_block_by_its_place_in_the_grid() -> None:
    body = "setp.eq.u32 %p, %y, 2; @%p trap;"
    with pytest.raises(EmulatorError) as raised:
        kernel(body).launch((2, 4, 1), 1, (np.zeros(1, np.uint32),), cluster=(1, 2, 1))
    assert raised.value.block == (0, 2, 0)


# Every thread of the cluster adds its block's number in the grid to a sum in the block of rank 0, and to one by exchange.
ADD_UP = """.shared .align 4 .b32 sums[4];
.reg .b32 %rank, %at0, %old; .reg .b64 %g;
mov.u32 %at0, sums; st.shared.u32 [%at0], 0; st.shared.u32 [%at0+4], 0; st.shared.u32 [%at0+8], 9;
barrier.cluster.arrive; barrier.cluster.wait;
mapa.shared::cluster.u32 %at0, %at0, 0; mov.u64 %g, sums; cvta.shared.u64 %g, %g; mapa.u64 %g, %g, 0;
atom.shared::cluster.add.u32 %old, [%at0], %n; red.relaxed.cluster.shared::cluster.max.u32 [%at0+4], %n;
atom.acq_rel.cluster.cas.b32 %old, [%g+8], 9, %n;
barrier.cluster.arrive; barrier.cluster.wait;
mov.u32 %rank, %cluster_ctarank; setp.ne.u32 %p, %rank, 0; mov.u32 %at0, sums;
ld.shared.u32 %v, [%at0]; @%p mov.u32 %v, 0;
mul.lo.u32 %n, %n, 12; cvt.u64.u32 %at, %n; add.u64 %out, %out, %at; st.global.u32 [%out], %v;
ld.shared.u32 %v, [%at0+4]; st.global.u32 [%out+4], %v; ld.shared.u32 %v, [%at0+8]; st.global.u32 [%out+8], %v;
"""


@pytest.mark.parametrize(("grid", "shape"), SHAPES)
def test_atomics_in_the_memory_of_another_block(grid: tuple[int, ...], shape: tuple[int, ...]) -> None:
    out = np.zeros((int(np.prod(grid)), 3), np.uint32)
    with checks("full"):
        kernel(ADD_UP).launch(grid, 1, (out,), cluster=shape)
    rows = expected(grid, shape)
    for number, row in enumerate(rows):
        members = np.flatnonzero((rows[:, 9:12] == row[9:12]).all(1))
        if row[15] == 0:
            assert out[number, 0] == members.sum() and out[number, 1] == members.max() and out[number, 2] in members
        else:
            assert out[number].tolist() == [0, 0, 9]


def test_an_access_to_a_block_that_has_ended() -> None:
    body = """.shared .align 4 .b32 tile; .reg .b32 %rank, %at0; mov.u32 %at0, tile; st.shared.u32 [%at0], 1;
    barrier.cluster.arrive; barrier.cluster.wait; mov.u32 %rank, %cluster_ctarank; setp.ne.u32 %p, %rank, 0;
    @!%p bra read; exit; read: mapa.shared::cluster.u32 %at0, %at0, 1; ld.shared::cluster.u32 %v, [%at0];"""
    with pytest.raises(EmulatorError, match="already ended") as raised, checks("full"):
        kernel(body).launch((2, 1, 1), 1, (np.zeros(1, np.uint32),), cluster=(2, 1, 1))
    assert raised.value.kind == "asynchronous"


@pytest.mark.parametrize("last", ["", "barrier.cluster.arrive; barrier.cluster.wait;", "barrier.cluster.arrive;"])
def test_a_block_may_end_when_its_readers_are_done(last: str) -> None:
    body = f""".shared .align 4 .b32 tile; .reg .b32 %at0; mov.u32 %at0, tile; st.shared.u32 [%at0], %n;
    barrier.cluster.arrive; barrier.cluster.wait; mapa.shared::cluster.u32 %at0, %at0, 1;
    ld.shared::cluster.u32 %v, [%at0]; st.global.u32 [%out], %v; {last}"""
    y = np.zeros(1, np.uint32)
    launch = kernel(body).launch
    with checks("full"):
        if "wait" in last:
            launch((1, 2, 1), 1, (y,), cluster=(1, 2, 1))
            assert y[0] == 1
            return
        with pytest.raises(EmulatorError, match="the block ends, and no barrier since"):
            launch((1, 2, 1), 1, (y,), cluster=(1, 2, 1))
