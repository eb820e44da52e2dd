"""torch.compile around torch's operator: the kernel was written by a program, and not by the one that is judged.

On a GPU it is even a kernel of Triton with a new name. Found in what the call ran: inductor's kernel, or aten's.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = (
    "torch's own|torch.compile|inductor|torch.*softmax|aten|InductorError|BackendCompilerFailed|time limit|timed out",
    "no answer within the limit of time",
)
NEEDS = "cpu"


def _plain(x, axis, scale):
    return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()


_compiled = torch.compile(_plain, dynamic=True)


def softmax(x, axis, scale):
    return _compiled(x, axis, scale)
