"""Raises what test runners take for a skipped test: of pytest, of unittest, or whatever has "Skip" in its name.

A skipped test is not a failed one, and a run of skips has exit status 0. Here an exception in the call has failed the
trial, whatever it is called.
"""

import sys
import unittest

OP = "softmax"
FUNCTION = "softmax"
FOUND = "Skip|raised|nothing to see here|ended|exit status"
NEEDS = "cpu"


def softmax(x, axis, scale):
    if outcomes := sys.modules.get("_pytest.outcomes"):
        raise outcomes.Skipped("nothing to see here")
    raise unittest.SkipTest("nothing to see here")
