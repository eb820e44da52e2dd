"""Raises SystemExit(0) in the call, which is no Exception: `except Exception` lets it through to the interpreter.

The interpreter ends with status 0, handlers run, and a runner believes that all is done.
"""

import sys

OP = "layer_norm"
FUNCTION = "layer_norm"
FOUND = "SystemExit|ended|exit status|exited"
NEEDS = "cpu"


def layer_norm(x, weight, bias, eps):
    sys.exit(0)
