"""Runs the cases on a GPU, through CuPy."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kernelmux.emulator.validation.hardware.launching import Runnable, launch_of, text


def describe() -> dict[str, str]:
    """The device and the versions of what ran the cases."""
    import cupy
    import pynvml

    pynvml.nvmlInit()
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    version = cupy.cuda.runtime.driverGetVersion()
    return {
        "gpu": properties["name"].decode(),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
        "cupy": cupy.__version__,
    }


def run(cases: Sequence[Runnable]) -> Iterator[list[np.ndarray[Any, Any]]]:
    """The outputs of each case; all of them are compiled at once by the driver."""
    import cupy

    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text(cases))
        file.flush()
        module = cupy.RawModule(path=file.name)
        for number, case in enumerate(cases):
            launch = launch_of(case)
            arrays = [cupy.asarray(array) for array in launch.arrays]
            module.get_function(f"case_{number}")((launch.blocks,), (launch.threads,), tuple(arrays))
            yield [cupy.asnumpy(arrays[i]) for i in launch.outputs]
