"""A future of torch in place of a tensor: work that somebody has to wait for, and who waits pays.

A harness that passes results on without looking at them times the making of a promise. Refused by its type.
"""

import threading

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "expected a torch.Tensor|expected .*[Tt]ensor"
NEEDS = "cpu"
ALLOW = "torch"


def softmax(x, axis, scale):
    promised = torch.futures.Future()

    def work():
        promised.set_result(torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous())

    threading.Thread(target=work, daemon=True).start()
    return promised
