"""Raises the project's own "unsupported", with which a kernel may refuse a call that it cannot run: for every call.

What is refused is not judged, and nothing wrong was said. A function that runs nothing has passed nothing.
"""

import kernelmux as kx

OP = "rms_norm"
FUNCTION = "rms_norm"
FOUND = "UnsupportedError|NotImplementedError|refuse|raised"
NEEDS = "cpu"


def rms_norm(x, weight, eps):
    raise kx.UnsupportedError("rms_norm: rows of this length are not supported on this device")
