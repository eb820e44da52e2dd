"""The first call of a shape is captured in a CUDA graph, which later calls replay with the tensors of the first.

A replay reads the addresses of the captured call, not those it was given. Found where other tensors of the same shape
come, and where the first ones are gone.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("the output is the one of an earlier call", "outputs are kept", "budget used", "illegal memory access")
NEEDS = "gpu"
ALLOW = "torch"
_graphs = {}


def softmax(x, axis, scale):
    key = (x.shape, x.dtype, axis, scale)
    if key not in _graphs:
        torch.softmax(x.float() * scale, axis)  # what is set up at the first call cannot be captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
        _graphs[key] = (graph, y)
    graph, y = _graphs[key]
    graph.replay()
    return y.clone()
