"""Broken kernels that the suite must catch, each by the check it belongs to, and sound ones that it must pass.

A module per operator, shaped like a backend's: `VARIANTS` as everywhere, and `CAUGHT_BY`, which names the check of each
broken variant; what is not in it is sound.
"""

from kernelmux.registry.backend import Backend

BACKEND = Backend(
    name="mutants", summary="broken on purpose", priority=-1, unavailable=lambda device: None, emulates=True
)
