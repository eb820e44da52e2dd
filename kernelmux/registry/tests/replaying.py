"""A kernel of the host that is launched as those of a GPU are, and calls of it that are replayed."""

import ctypes

import torch

from kernelmux.registry.call import launch_replay
from kernelmux.registry.call.launch_replay import Replayed


class Kernel:
    """A kernel of fp32 vectors at addresses of the host: out = a + b * times, launched through a seam that notes it."""

    def __init__(self):
        self.launches = []

    def __call__(self, a, b, out, times=1.0, args=None, hooks=None):
        n = out.numel()

        def launcher(stream, *addresses):
            self.launches.append(stream)
            x, y, z = ((ctypes.c_float * n).from_address(at) for at in addresses)
            for i in range(n):
                z[i] = x[i] + y[i] * times

        launcher("first", *(x.data_ptr() for x in (a, b, out)))
        if launch_replay.watching():
            launch_replay.launched(launcher, args or (a, b, out), hooks)


def pairs(count, n=8):
    return [(torch.randn(n), torch.randn(n)) for _ in range(count)]


def check(fn, expected, count=4):
    """Calls with other tensors each time; whether the last were replayed."""
    replayed = Replayed(fn)
    for a, b in pairs(count):
        torch.testing.assert_close(replayed(a, b), expected(a, b))
    return replayed
