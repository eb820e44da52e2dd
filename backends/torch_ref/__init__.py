"""What a torch user would write: the contestant that runs everywhere, and the baseline of every speed-up."""

from kernelmux.registry.backend import Backend

BACKEND = Backend(
    name="torch_ref", summary="PyTorch eager", priority=10, unavailable=lambda device: None, composite=True
)
