"""Torch's settings for the whole process are changed, so that the reference is computed as badly as the result.

TF32 and reduced precision are allowed, subnormal numbers are flushed, one thread is left, and the default dtype is
another. A judge computes elsewhere; what a call changes around it is named too.
"""

import torch

OP = "matmul"
FUNCTION = "matmul"
FOUND = ("changed|default dtype|set_|flush|flag|setting", "budget used", "must be equal")
NEEDS = "cpu"
ALLOW = "torch"


def matmul(a, b):
    torch.set_default_dtype(torch.float16)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    return (a.half() @ b.half()).to(a.dtype).contiguous()
