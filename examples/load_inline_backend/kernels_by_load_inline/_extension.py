"""The compiled extension. A name with _ in front is no operator."""

from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@cache
def extension() -> Any:
    """The module, compiled where torch keeps its extensions if it is not there yet."""
    from torch.utils.cpp_extension import load_inline

    return load_inline(
        name="kernelmux_load_inline",
        cpp_sources=(HERE / "extension.cpp").read_text(encoding="utf-8"),
        cuda_sources=(HERE / "rms_norm.cu").read_text(encoding="utf-8"),
        functions=["rms_norm"],
        no_implicit_headers=True,  # the .cu file needs none of torch's, which take nvcc half a minute
        with_cuda=True,
    )
