"""A set of lanes of a chunk, and what follows from their numbers: thread coordinates, warps, blocks."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kernelmux.emulator.running.block_orders import Order

WARP = 32

Triple = tuple[int, int, int]


class Shape:
    """Lane numbers of `blocks` blocks; the same for every launch of one block size."""

    def __init__(self, block: Triple, blocks: int) -> None:
        self.block, self.blocks = block, blocks
        self.threads = block[0] * block[1] * block[2]
        self.warps = -(-self.threads // WARP)  # per block
        self.lanes = self.threads * blocks
        self.index = np.arange(self.lanes, dtype=np.int64)
        self.block_of = self.index // self.threads
        self.thread_of = self.index - self.block_of * self.threads
        self.warp_of = self.block_of * self.warps + (self.thread_of >> 5)
        self.specials: dict[str, Any] = {}  # special registers that depend on nothing else


@lru_cache(maxsize=64)
def shape(block: Triple, blocks: int) -> Shape:
    """The lanes of `blocks` blocks of this size."""
    return Shape(block, blocks)


class Geometry:
    """The blocks that run together: those at `blocks` places from `first` on, lane = block * threads + thread.

    Blocks are counted cluster after cluster, in a cluster and among clusters with x running fastest.
    """

    def __init__(
        self,
        grid: Triple,
        block: Triple,
        first: int,
        blocks: int,
        cluster_shape: Triple = (1, 1, 1),
        order: Order | None = None,
    ) -> None:
        """cluster_shape: blocks of a cluster in each dimension; the grid consists of whole clusters.

        order: which block runs at each place; None: as they are numbered.
        """
        self.order = order
        self.grid, self.block, self.first, self.blocks, self.cluster_shape = grid, block, first, blocks, cluster_shape
        self.cluster = cluster_shape[0] * cluster_shape[1] * cluster_shape[2]
        self.clusters = (grid[0] // cluster_shape[0], grid[1] // cluster_shape[1], grid[2] // cluster_shape[2])
        self.shape = shape(block, blocks)
        self.threads, self.warps, self.lanes = self.shape.threads, self.shape.warps, self.shape.lanes
        self.everyone = Lanes(self)

    def coordinates(self, lane: int) -> tuple[Triple, Triple]:
        """Block and thread coordinates of a lane."""
        return self.block_at(lane // self.threads), _unfold(lane % self.threads, self.block)

    def in_grid(self, number: Any) -> Any:
        """The number of a block of the chunk (or of an array of them) in the grid, with x running fastest."""
        if self.cluster == self.cluster_shape[0]:
            return self.numbered(number)
        x, y, z = self.block_at(number)
        return x + self.grid[0] * (y + self.grid[1] * z)

    def numbered(self, block: Any) -> Any:
        """The number of a block of the chunk (or of an array of them) in the launch, cluster after cluster."""
        place = block + self.first
        return place if self.order is None else self.order(place)

    def block_at(self, number: Any) -> Any:
        """Coordinates of a block of the chunk (or of an array of them) in the grid."""
        number = self.numbered(number)
        if self.cluster == self.cluster_shape[0]:
            return _unfold(number, self.grid)
        corners = _unfold(number // self.cluster, self.clusters)
        places = _unfold(number % self.cluster, self.cluster_shape)
        return tuple(c * s + p for c, s, p in zip(corners, self.cluster_shape, places, strict=True))


def _unfold(number: Any, extent: Triple) -> Any:
    return number % extent[0], number // extent[0] % extent[1], number // (extent[0] * extent[1])


class Lanes:
    """Ascending lane numbers of a chunk; derived arrays are computed once."""

    def __init__(self, geometry: Geometry, index: np.ndarray | None = None) -> None:
        self.geometry = geometry
        self.every = index is None
        self.index = geometry.shape.index if index is None else index
        self.n = len(self.index)
        self._specials: dict[str, Any] = {}

    def _of(self, every: np.ndarray) -> np.ndarray:
        return every if self.every else every[self.index]

    @cached_property
    def block(self) -> np.ndarray:
        """Block number inside the chunk."""
        return self._of(self.geometry.shape.block_of)

    @cached_property
    def thread(self) -> np.ndarray:
        """Linear thread number inside the block."""
        return self._of(self.geometry.shape.thread_of)

    @cached_property
    def lane(self) -> np.ndarray:
        """Lane number inside the warp, 0 to 31."""
        return self.thread & (WARP - 1)

    @cached_property
    def warp(self) -> np.ndarray:
        """Warp number, unique inside the chunk."""
        return self._of(self.geometry.shape.warp_of)

    @cached_property
    def whole_warps(self) -> bool:
        """Whether all 32 lanes of every warp are here, so that `x.reshape(-1, 32)` is one row per warp."""
        if self.every:
            return self.geometry.threads % WARP == 0
        return _runs(self.index, self.lane, WARP)

    def shared_base(self, stride: int) -> np.ndarray:
        """Where the shared memory of each lane's block begins when the windows lie end to end."""
        base = self._specials.get("shared base")
        if base is None:
            base = self._specials["shared base"] = self.block * stride
        return np.asarray(base)

    @cached_property
    def warp_starts(self) -> np.ndarray:
        """Positions at which a new warp begins."""
        return np.flatnonzero(np.diff(self.warp, prepend=-1))

    @cached_property
    def warp_rank(self) -> np.ndarray:
        """For each lane the number of its warp among the warps that are here: 0, 1, …"""
        return np.cumsum(np.diff(self.warp, prepend=-1) != 0) - 1

    def special(self, name: str) -> Any:
        """The value of a special register, uint32 (64-bit ones as uint64)."""
        if name not in self._specials:
            self._specials[name] = self._compute(name[1:]) if self.every else self._some(name)
        return self._specials[name]

    def _some(self, name: str) -> Any:
        value = self.geometry.everyone.special(name)
        return value[self.index] if value.__class__ is np.ndarray else value

    def _compute(self, name: str) -> Any:
        base, _, axis = name.partition(".")
        geometry = self.geometry
        at = "xyz".index(axis) if axis and axis in "xyz" else 0
        if base in ("tid", "laneid", "warpid") or base.startswith("lanemask_"):
            return self._of_thread(name, base, at)
        if "cluster" in base:
            return self._of_cluster(base, at)
        if base == "ctaid":
            if geometry.blocks == 1:
                return np.uint32(geometry.block_at(0)[at])
            return _compact(geometry.block_at(self.block)[at])
        if base == "ntid":
            return np.uint32(geometry.block[at] if axis != "w" else 0)
        if base == "nctaid":
            return np.uint32(geometry.grid[at] if axis != "w" else 0)
        return _constant(base, geometry)

    def _of_cluster(self, base: str, at: int) -> Any:
        """Places and sizes in units of clusters."""
        geometry = self.geometry
        constants = {
            "cluster_nctaid": np.uint32(geometry.cluster_shape[at]),
            "cluster_nctarank": np.uint32(geometry.cluster),
            "nclusterid": np.uint32(geometry.clusters[at]),
            "is_explicit_cluster": np.bool_(geometry.cluster > 1),
        }
        if base in constants:
            return constants[base]
        cluster, rank = np.divmod(geometry.numbered(self.block), geometry.cluster)
        if base == "cluster_ctarank":
            return _compact(rank)
        places = {"clusterid": (cluster, geometry.clusters), "cluster_ctaid": (rank, geometry.cluster_shape)}
        number, extent = places[base]
        return _compact(_unfold(number, extent)[at])

    def _of_thread(self, name: str, base: str, at: int) -> Any:
        """What depends on the thread's place in its block alone is kept for the next launch."""
        known = self.geometry.shape.specials
        if name not in known:
            values = {"laneid": self.lane, "warpid": self.thread >> 5}.get(base)
            if base.startswith("lanemask_"):
                values = _lane_mask(self.lane.astype(np.uint64), base[9:])
            known[name] = _compact(_unfold(self.thread, self.geometry.block)[at] if values is None else values)
        return known[name]


def _constant(base: str, geometry: Geometry) -> Any:
    zeros = ("smid", "gridid", "total_smem_size")
    if base == "nwarpid":
        return np.uint32(geometry.warps)
    if base == "nsmid" or base in zeros or base.startswith(("envreg", "pm")):
        return np.uint32(base == "nsmid")
    raise KeyError(base)


def _lane_mask(lane: np.ndarray, relation: str) -> np.ndarray:
    one = np.uint64(1)
    below, own = (one << lane) - one, one << lane
    every = np.uint64(0xFFFFFFFF)
    masks = {"eq": own, "lt": below, "le": below | own, "ge": every ^ below, "gt": every ^ (below | own)}
    return masks[relation].astype(np.uint32)


def _compact(values: np.ndarray) -> Any:
    """As uint32; one number when all lanes agree."""
    values = np.asarray(values).astype(np.uint32)
    return values[0] if len(values) and (values == values[0]).all() else values


def _runs(index: np.ndarray, offset: np.ndarray, size: int) -> bool:
    """Whether `index` consists of whole aligned runs of `size` lanes; offset = place of each lane in its run."""
    if len(index) % size:
        return False
    rows, places = index.reshape(-1, size), offset.reshape(-1, size)
    return bool(
        (places[:, 0] == 0).all() and (np.diff(rows, axis=1) == 1).all() and (np.diff(places, axis=1) == 1).all()
    )
