"""torch's operators: the contestant that runs everywhere, and the baseline of every speed-up.

plain   what a user of torch writes; what it rounds on the way is declared
exact   where that rounds more often than the spec says, or cannot run every call: the last variant, which calls run
"""

from kernelmux.registry.backend import Backend

BACKEND = Backend(
    name="torch_ref", summary="PyTorch eager", priority=10, unavailable=lambda device: None, composite=True
)
