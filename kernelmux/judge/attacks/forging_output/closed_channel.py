"""All descriptors closed but the three of a terminal, in the hope that silence is taken for agreement.

A child that closes its channel has failed the trial, and the report says so.
"""

import os

OP = "square"
FUNCTION = "square"
FOUND = "closed|channel|ended|exit status|no answer"
NEEDS = "cpu"
ALLOW = "torch"


def square(x):
    os.closerange(3, 4096)
    return (x.float() * x.float()).to(x.dtype).contiguous()
