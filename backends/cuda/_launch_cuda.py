"""Launches on a CUDA device: CuPy compiles and launches, torch owns memory, device and stream."""

from functools import cache, lru_cache
from typing import Any

import torch

# Two of torch's own bindings instead of their public wrappers: the wrappers build a Stream object and repeat the
# lazy initialisation, which together cost more host time than the rest of this file.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device = getattr(torch._C, "_cuda_getDevice", None)


@lru_cache(maxsize=256)
def cupy_stream(pointer: int) -> Any:
    """CuPy's object for a raw stream; 0 is the legacy default stream, which CuPy keeps as a singleton."""
    import cupy

    return cupy.cuda.ExternalStream(pointer) if pointer else cupy.cuda.Stream.null


def current_stream(index: int) -> int:
    """The raw handle of torch's current stream on device `index`."""
    return int(_raw_stream(index))  # type: ignore[misc]


@cache
def architecture(index: int) -> str:
    """The compile target of device `index`; from sm_90 on the "a" variant, which alone has wgmma and setmaxnreg."""
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


class CudaFunction:
    """One kernel entry on one device: compiled once, its driver handle kept."""

    def __init__(self, text: str, entry: str, options: tuple[str, ...], index: int):
        import cupy

        with torch.cuda.device(index):
            target = ("-lineinfo", f"-arch={architecture(index)}")
            self._raw = cupy.RawModule(code=text, options=options + target).get_function(entry)
            self._function = self._raw.kernel
        self._index = index
        self._shared_limit = 0

    def launch(self, grid: tuple[int, ...], block: tuple[int, ...], values: tuple[Any, ...], shared: int) -> None:
        """Launches on torch's current stream of this device, whichever device is current."""
        if _current_device() != self._index:  # type: ignore[misc]
            with torch.cuda.device(self._index):
                return self.launch(grid, block, values, shared)
        if shared > self._shared_limit:
            self._raw.max_dynamic_shared_size_bytes = shared
            self._shared_limit = shared
        stream = cupy_stream(_raw_stream(self._index))  # type: ignore[misc]
        self._function(grid, block, values, shared_mem=shared, stream=stream)

    @property
    def resources(self) -> dict[str, int]:
        """Registers, local and shared bytes of the compiled kernel, as the driver reports them."""
        return dict(self._raw.attributes)
