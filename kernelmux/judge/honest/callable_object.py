"""What is judged is an object with `__call__`, made at import, and no function."""

import torch

OP = "log_softmax"
FUNCTION = "log_softmax"
NEEDS = "cpu"
ALLOW = "torch"


class LogSoftmaxOfRows:
    def __init__(self, dtype):
        self.dtype = dtype

    def __call__(self, x, axis):
        z = x.to(self.dtype)
        if not z.numel():
            return torch.empty(x.shape, dtype=x.dtype, device=x.device)
        shifted = z - z.amax(axis, keepdim=True)
        return (shifted - shifted.exp().sum(axis, keepdim=True).log()).to(x.dtype).contiguous()


log_softmax = LogSoftmaxOfRows(torch.float64)
