"""A torch.nn.Module with a buffer, made once; its forward is what is called."""

import torch

OP = "log_softmax"
FUNCTION = "log_softmax"
NEEDS = "cpu"
ALLOW = "torch"


class LogSoftmaxModule(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("one", torch.ones((), dtype=torch.float64), persistent=False)

    @torch.no_grad()
    def forward(self, x, axis):
        z = x.double() * self.one.to(x.device)
        if z.numel():
            z = z - z.amax(axis, keepdim=True)
        return (z - z.exp().sum(axis, keepdim=True).log()).to(x.dtype).contiguous()


_module = LogSoftmaxModule()


def log_softmax(x, axis):
    return _module(x, axis)
