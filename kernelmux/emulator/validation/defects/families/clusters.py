"""Blocks of a cluster that use one another's shared memory."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.validation.arrays import empty, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "clusters"
SOURCE = Path(__file__).with_suffix(".cu")


def exchange() -> CudaLaunch:
    x, y = ramp(4, 32), empty(4, 32)
    return CudaLaunch(SOURCE, "exchange", 4, 32, {"x": x, "y": y}, {"y": x[np.arange(4) ^ 1]})


def send() -> CudaLaunch:
    x, y = ramp(2, 2, 32), empty(2, 2, 32)
    return CudaLaunch(SOURCE, "send", (2, 2), 32, {"x": x, "y": y}, {"y": x[::-1]})


def add_up() -> CudaLaunch:
    x, y = np.arange(128, dtype=np.int32).reshape(4, 32), np.zeros(4, np.int32)
    return CudaLaunch(SOURCE, "add_up", 4, 32, {"x": x, "y": y}, {"y": x.sum(1)[np.arange(4) ^ 1]})


def pass_on() -> CudaLaunch:
    x, y = ramp(4, 32), empty(4, 32)
    return CudaLaunch(SOURCE, "pass_on", 4, 32, {"x": x, "y": y}, {"y": 2 * x[np.arange(4) ^ 1]})


def share() -> CudaLaunch:
    x, y = ramp(32), empty(8, 32)
    return CudaLaunch(SOURCE, "share", (2, 4), 32, {"x": x, "y": y}, {"y": np.tile(x, (8, 1))})


ASYNC = ("asynchronous",)
EARLY = "It reads what was there before, or half of what arrives."
HANGS = "The cluster hangs."

DEFECTS = (
    Defect(
        "no_cluster_barrier",
        "A block reads the shared memory of its neighbour with no cluster barrier before.",
        "It reads what was there before the neighbour wrote, or before it started.",
        exchange,
        ("race", "uninitialised"),
    ),
    Defect(
        "cluster_barrier_not_awaited",
        "A block arrives at the cluster barrier and reads its neighbour's shared memory before it waits.",
        "It reads what was there before the neighbour wrote.",
        exchange,
        ("race", "uninitialised"),
    ),
    Defect(
        "rank_out_of_range",
        "A block asks for a rank that its cluster does not have.",
        "An illegal address.",
        exchange,
        ("out of bounds",),
    ),
    Defect(
        "block_leaves_early",
        "A block ends while its neighbour may still read its shared memory.",
        "The memory may belong to another block by then.",
        exchange,
        ASYNC,
    ),
    Defect(
        "store_read_too_early",
        "A block reads what its neighbour sends with st.async before it waits for it.",
        EARLY,
        send,
        ("uninitialised",),
    ),
    Defect(
        "stores_never_awaited",
        "The kernel ends with stores (st.async) that no thread has waited for.",
        "The stores may go to memory that belongs to another block by then.",
        send,
        ASYNC,
    ),
    Defect(
        "sent_before_init",
        "A block sends to its neighbour before that has initialised its mbarrier: no cluster barrier stands between.",
        "Undefined: mostly the cluster hangs.",
        send,
        ("race",),
    ),
    Defect(
        "reports_to_own_block",
        "A store to the neighbour (st.async) reports to the mbarrier of the sender.",
        "Undefined: mostly the cluster hangs.",
        send,
        ASYNC,
    ),
    Defect("fewer_bytes_sent", "One thread does not send, but all bytes are expected.", HANGS, send, ("deadlock",)),
    Defect(
        "sum_read_too_early",
        "A block reads a sum before it waits for the reductions (red.async) of its neighbour.",
        "It reads a part of the sum.",
        add_up,
        ("uninitialised",),
    ),
    Defect(
        "target_not_cleared",
        "The place that reductions (red.async) go to is not cleared.",
        "The sum contains what another kernel has left there.",
        add_up,
        ("uninitialised",),
    ),
    Defect(
        "no_fence_before_sending",
        "Threads write an array and a bulk copy sends it to another block with no fence.proxy.async between.",
        "The copy may send what was there before.",
        pass_on,
        ASYNC,
    ),
    Defect(
        "sent_array_changed",
        "An array is changed while a bulk copy to another block reads it.",
        "The neighbour gets a mixture of both.",
        pass_on,
        ASYNC,
    ),
    Defect(
        "mask_without_a_block",
        "The mask of a multicast copy leaves out one block, which waits for its bytes.",
        HANGS,
        share,
        ("deadlock",),
    ),
    Defect(
        "mask_beyond_cluster",
        "The mask of a multicast copy names a block that the cluster does not have.",
        "The launch ends with an error.",
        share,
        ("out of bounds",),
    ),
)
