"""Kernels in PTX for clusters: a head with the usual registers, and a launch with full checks."""

from typing import Any

import numpy as np

from kernelmux.emulator import checks, time_limit
from kernelmux.emulator.running.launch import load

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"
# %a: the barrier; %tile and %other: two places in shared memory; %remote..: the same in the next block of the cluster.
START = """.shared .align 8 .b64 bar; .shared .align 128 .b8 tile[1024]; .shared .align 128 .b8 other[1024];
.reg .b64 %x, %y, %at, %g, %gbar, %d<8>; .reg .b32 %a, %t, %rank, %size, %next, %n, %v<8>; .reg .pred %p, %first;
.reg .b32 %tile, %other, %rtile, %rother, %ra, %mine, %byte, %off; .reg .f32 %f<8>; .reg .f64 %e<8>; .reg .b16 %mask;
ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; mov.u32 %t, %tid.x; setp.eq.u32 %first, %t, 0;
mov.u32 %a, bar; mov.u32 %tile, tile; mov.u32 %other, other;
mov.u32 %rank, %cluster_ctarank; mov.u32 %size, %cluster_nctarank; add.u32 %next, %rank, 1; rem.u32 %next, %next, %size;
mapa.shared::cluster.u32 %ra, %a, %next; mapa.shared::cluster.u32 %rtile, %tile, %next;
mapa.shared::cluster.u32 %rother, %other, %next;
"""
SYNC = "barrier.cluster.arrive; barrier.cluster.wait;\n"
INIT = "@%first mbarrier.init.shared.b64 [%a], 1; @%first fence.mbarrier_init.release.cluster;\n"
EXPECT = "@%first mbarrier.arrive.expect_tx.shared.b64 _, [%a], {};\n"
WAIT = "wait: mbarrier.try_wait.parity.shared.b64 %p, [%a], 0; @!%p bra wait;\n"


def run(
    body: str,
    x: Any,
    y: Any,
    threads: int = 32,
    blocks: Any = 2,
    cluster: Any = (2, 1, 1),
    parameter: str = ".b64 x",
    mode: str = "full",
) -> Any:
    """Launches a kernel of x (a pointer, or what `parameter` declares) and y; returns y."""
    start = (
        START
        if parameter == ".b64 x"
        else START.replace("ld.param.u64 %x, [x];", "mov.b64 %x, x; cvta.param.u64 %x, %x;")
    )
    text = f"{HEAD}.visible .entry k(.param {parameter}, .param .u64 y) {{\n{start}{body}\nret;\n}}"
    with checks(mode), time_limit(5):
        load(text).kernel("k").launch(blocks, threads, (x, y), names=("x", "y"), cluster=cluster)
    return y


def place(base: str, size: int) -> str:
    """Code that makes `%at` the element of this thread of the whole grid, `size` bytes each, in an array."""
    return f"""mov.u32 %n, %ctaid.x; mov.u32 %v7, %ntid.x; mad.lo.u32 %n, %n, %v7, %t;
    mul.wide.u32 %at, %n, {size}; add.u64 %at, %at, {base};\n"""


def arrays(blocks: int, threads: int, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Different numbers to move, and a place for as many."""
    x = np.arange(1, blocks * threads * words + 1, dtype=np.uint32).reshape(blocks, threads, words)
    return x, np.zeros_like(x)
