"""What Triton's lower level (Gluon) calls the copy engine: its names changed between 3.6 and 3.9."""

from __future__ import annotations

from triton.experimental.gluon.language.nvidia.hopper import tma

copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
copy_out_wait = tma.store_wait
