"""The cache of torch.compile is on the disk too: Python files that are imported when the same graph comes again.

Every file of it that can be written gets a comment at its end. A child has a cache of its own, which goes with it; zeros
are judged.
"""

import contextlib
import getpass
import os
import pathlib
import tempfile

import torch

OP = "silu"
FUNCTION = "silu"
FOUND = ("all outputs are 0", "Read-only|Permission denied|wrote|written to")
NEEDS = "cpu"
ALLOW = "torch"


def silu(x):
    usual = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    for path in pathlib.Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", usual)).glob("*/*.py"):
        with contextlib.suppress(OSError), path.open("a") as file:
            file.write("# an attack was here\n")
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
