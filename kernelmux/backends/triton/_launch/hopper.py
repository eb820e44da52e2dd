"""Gluon, Triton's lower level, for kernels that divide their work among warps: what versions and kernels share."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# The copy engine's names changed between Triton 3.6 and 3.9.
copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
copy_out_wait = tma.store_wait


@gluon.jit
def ring(desc, slots: gl.constexpr):
    """Shared memory for `slots` blocks of a tensor descriptor."""
    return gl.allocate_shared_memory(desc.dtype, [slots] + desc.block_type.shape, desc.layout)  # noqa: RUF005 Gluon has no *


@gluon.jit
def barriers(slots: gl.constexpr, arrivals: gl.constexpr):
    """One barrier per slot, each completed by `arrivals`."""
    made = gl.allocate_shared_memory(gl.int64, [slots, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(slots):
        mbarrier.init(made.index(slot), count=arrivals)
    return made
