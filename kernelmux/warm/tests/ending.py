"""In place of `pool.compile_one`: a compiler that ends its process where it meets matrices."""

from __future__ import annotations

import os
from dataclasses import replace

from kernelmux.warm.pool import Compilation


def compile_one(one: Compilation) -> Compilation:
    if len(dict(one.call.arguments)["x"].shape) == 2:
        os._exit(9)
    return replace(one, seconds=1.0)
