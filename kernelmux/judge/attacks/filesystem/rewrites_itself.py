"""The file of the candidate is rewritten after it was imported: the verdict then carries the hash of an innocent text.

It writes back its own text, and changes nothing. A judge hashes what it hands over, before, and the child's view of it is
read-only. Zeros are judged.
"""

import contextlib
import pathlib

import torch

OP = "layer_norm"
FUNCTION = "layer_norm"
FOUND = ("all outputs are 0", "changed on the disk|hash")
NEEDS = "cpu"
ALLOW = "torch"


def layer_norm(x, weight, bias, eps):
    own = pathlib.Path(__file__)
    with contextlib.suppress(OSError):
        own.write_bytes(own.read_bytes())
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
