"""Instructions of thread-block clusters: barrier.cluster, mapa, getctarank."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.ptx.dtypes import dtype_of
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.cluster import TAG, ranks, tagged


@operation("mapa")
def map_address(ins: Instruction) -> Action:
    """`mapa{.shared::cluster}.u32 d, a, rank`: the address of the same variable in another block of the cluster."""
    target, source, rank = ins.operands
    dtype = dtype_of(ins.type)

    def run(group: Any, address: Any, wanted: Any) -> Any:
        size = group.run.geometry.cluster
        outside = group.full(wanted) >= size
        if outside.any():
            group.fail("out of bounds", f"mapa of a rank outside the cluster, which has {size} blocks", outside)
        return address if size == 1 else tagged(address, wanted)

    return Action(run, inputs=((source, dtype), (rank, np.uint32)), outputs=((target, dtype),))


@operation("getctarank")
def rank_of_address(ins: Instruction) -> Action:
    """`getctarank{.shared::cluster}.u32 d, a`: the rank of the block that a shared-memory address belongs to."""
    target, source = ins.operands

    def run(group: Any, address: Any) -> Any:
        tag = (group.full(address) >> address.dtype.type(TAG) & address.dtype.type(0xFF)).astype(np.int64)
        return np.where(tag > 0, tag - 1, ranks(group)).astype(np.uint32)

    return Action(run, inputs=((source, dtype_of(ins.type)),), outputs=((target, np.uint32),))


class Arrivals:
    """How often every lane has arrived at the barrier of its cluster, and which arrivals are already ordered."""

    def __init__(self, run: Any) -> None:
        geometry = run.geometry
        self.run, self.lanes = run, geometry.threads * geometry.cluster
        self.counts = np.zeros(geometry.lanes, np.int64)
        self.ordered = np.zeros(geometry.lanes // self.lanes, np.int64)

    @staticmethod
    def of(group: Any) -> Arrivals:
        """The arrivals of the chunk that `group` belongs to."""
        found: Arrivals = group.run.kept("cluster", lambda: Arrivals(group.run))
        return found

    def complete(self) -> np.ndarray:
        """How many barriers each cluster has completed: arrivals of the slowest of its lanes that have not ended."""
        counts = np.where(self.run.alive, self.counts, np.iinfo(np.int64).max)
        slowest: np.ndarray = counts.reshape(-1, self.lanes).min(axis=1)
        return slowest

    def order(self, clusters: np.ndarray, arrivals: np.ndarray) -> None:
        """Accesses before and after a completed barrier are ordered, once for each."""
        fresh = np.unique(clusters[arrivals > self.ordered[clusters]])
        if len(fresh):
            self.ordered[clusters] = np.maximum(self.ordered[clusters], arrivals)
            size = self.run.geometry.cluster
            self.run.shared.synchronise((fresh[:, None] * size + np.arange(size)).ravel())


@operation("barrier.cluster.arrive")
def arrive(ins: Instruction) -> Action:
    """`barrier.cluster.arrive{.release}{.aligned}`."""

    def run(group: Any) -> None:
        Arrivals.of(group).counts[group.index] += 1

    return Action(run)


@operation("barrier.cluster.wait")
def wait(ins: Instruction) -> Action:
    """`barrier.cluster.wait{.acquire}{.aligned}`: until all lanes of the cluster have arrived as often as this one."""

    def ready(group: Any) -> Any:
        arrivals = Arrivals.of(group)
        return arrivals.complete()[group.index // arrivals.lanes] >= arrivals.counts[group.index]

    def run(group: Any) -> None:
        arrivals = Arrivals.of(group)
        arrivals.order(group.index // arrivals.lanes, arrivals.counts[group.index])

    return Action(run, ready=ready)
