"""Other libraries as contestants: torch.compile, cuBLAS, cuDNN (through torch and its own frontend), the backends of
torch's attention, QuACK, Liger, FlagGems, FlashAttention-4, DeepGEMM and fla behind the signatures of the specs.

A backend like any other, but only a run with `--peers` sees it: one module per operator, one variant per library. A
library that is not installed is left out with that reason. Libraries round more often than a spec allows, so an output
is right within `SLACK` times the bound; a wrong one is reported as wrong, and not timed.
"""

from kernelmux.registry.backend import Backend
from kernelmux.registry.util import entry_points

NAME = "peers"
ABSENT = "is not installed"
SLACK = 16.0  # a product or two rounded to the dtype on the way

BACKEND = Backend(
    name=NAME,
    summary="other libraries, for comparison",
    priority=-1,
    unavailable=lambda device: None if device.type == "cuda" else "other libraries are compared only on a GPU",
)


def join() -> None:
    """Make the backend known in this process."""
    entry_points.announce(NAME, __name__)
