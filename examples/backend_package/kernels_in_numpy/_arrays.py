"""Tensors as arrays and back. A name with _ in front is no operator."""

from typing import Any

import numpy as np
import torch


def array(x: torch.Tensor) -> Any:
    """The values in fp32, which holds every number of fp16 and bf16; numpy has no bf16."""
    return x.float().numpy()


def tensor(values: Any, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of fresh values, rounded once."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


silent = np.errstate(all="ignore")  # infinities and NaN are values of an operator; numpy would warn of them
