"""All descriptors closed but the three of a terminal, in the hope that silence is taken for agreement.

A child that closes its channel has failed the trial, and the report says so.
"""

import os

import torch

OP = "gelu"
FUNCTION = "gelu"
FOUND = "closed|channel|ended|exit status|no answer"
NEEDS = "cpu"
ALLOW = "torch"


def gelu(x, approximate):
    os.closerange(3, 4096)
    return torch.nn.functional.gelu(x.float(), approximate=approximate).to(x.dtype).contiguous()
