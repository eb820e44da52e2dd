"""Which kernels a call has launched on a GPU: told in the process of a candidate, so a remark and no proof."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

MOVES = ("Memcpy", "Memset")  # how names of copies begin


class Seen:
    """Inside of the `with`, kernels of the GPU are noted. names: of each, with how often; {} where no profiler works."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._profile: Any = None

    def __enter__(self) -> Seen:
        torch.cuda.synchronize()
        self._profile = profile(activities=[ProfilerActivity.CUDA])
        self._profile.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        torch.cuda.synchronize()
        self._profile.__exit__(None, None, None)
        events = [e for e in self._profile.events() if e.device_type == DeviceType.CUDA]
        self.names = dict(Counter(e.name[:200] for e in events if not e.name.startswith(MOVES)))
