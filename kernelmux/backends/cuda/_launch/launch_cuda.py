"""Launches on a CUDA device: NVRTC compiles, CuPy loads and launches, torch owns memory, device and stream."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from copy import copy
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch

from kernelmux.backends.cuda._launch.launch_emulated import AS_CUPY
from kernelmux.backends.cuda._launch.signature import KernelParameter, form
from kernelmux.emulator import nvrtc
from kernelmux.registry.util import cards
from kernelmux.registry.util.cuda_driver import Configurations, Frame, launch_kernel_ex, refused

# Two of torch's own bindings instead of their public wrappers: the wrappers build a Stream object and repeat the
# lazy initialisation, which together cost more host time than the rest of this file.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device = getattr(torch._C, "_cuda_getDevice", None)


def current_stream(index: int) -> int:
    """The raw handle of torch's current stream on device `index`."""
    return int(_raw_stream(index))  # type: ignore[misc]


@cache
def architecture(index: int) -> str:
    """The compile target of device `index`, or of the lesser card that it stands for."""
    return cards.of(index).arch


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kernelmux_code_")


def _module(text: str, options: tuple[str, ...], filename: str, folders: tuple[Path, ...], index: int) -> Any:
    """The module of a source on device `index`, from the emulator's cache, which a process without a GPU may have filled.

    For a lesser card than the one at hand it is compiled to PTX, which the driver translates. What this NVRTC does not
    compile, for want of a header perhaps, CuPy is asked for, which brings its own.
    """
    import cupy

    target, lesser = architecture(index), cards.stands_in(index)
    given = (text, (*options, *AS_CUPY), target, filename, folders)
    try:
        code = nvrtc.compile_ptx(*given).encode() if lesser else nvrtc.compile_cubin(*given).image
    except (nvrtc.CompileError, nvrtc.NvrtcUnavailableError):
        if lesser:
            raise
        return cupy.RawModule(code=text, options=(*options, "-lineinfo", f"-arch={target}"))
    return cupy.RawModule(path=_file(code, ".ptx" if lesser else ".cubin"))


def _file(code: bytes, suffix: str) -> str:
    """A file with this code, one for the same code: CuPy reads it when the first kernel of the module is asked for."""
    path = Path(_folder().name, hashlib.sha256(code).hexdigest() + suffix)
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)  # another thread may look for it
    return str(path)


@lru_cache(maxsize=1024)
def _following(sizes: tuple[int, ...]) -> Configurations:
    return Configurations(sizes, follows=True)


def launch_following(handle: int, *sizes_stream_arguments: int) -> None:
    """As CuPy's launchKernel; the kernel may start before the one ahead of it has ended (programmatic dependent launch)."""
    *sizes, stream, pointers, extra = sizes_stream_arguments
    status = launch_kernel_ex()(_following(tuple(sizes))[stream], handle, pointers, extra)
    if status:
        raise refused(status)


class CudaFunction:
    """One kernel entry on one device: compiled once, its driver handle kept.

    CuPy loads; the launch goes straight to the driver's entry, since CuPy's own call wraps each argument in an
    object (5.2 us for four arguments on the host of an H200).
    """

    def __init__(
        self,
        text: str,
        entry: str,
        options: tuple[str, ...],
        filename: str,
        folders: tuple[Path, ...],
        index: int,
        parameters: tuple[KernelParameter, ...],
    ):
        import cupy

        with torch.cuda.device(index):
            self._raw = _module(text, options, filename, folders, index).get_function(entry)
            self._handle = self._raw.kernel.ptr
        self._launch = cupy.cuda.driver.launchKernel
        self._parameters, self._index = parameters, index
        self._frames: list[Frame] = []  # free ones; a launch takes one, so threads do not share it
        self._shared_limit = 0

    def launch(self, grid: tuple[int, ...], block: tuple[int, ...], values: list[Any], shared: int) -> None:
        """Launches on torch's current stream of this device, whichever device is current."""
        if _current_device() != self._index:  # type: ignore[misc]
            with torch.cuda.device(self._index):
                return self.launch(grid, block, values, shared)
        if shared > self._shared_limit:
            self._raw.max_dynamic_shared_size_bytes = shared
            self._shared_limit = shared
        try:
            frame = self._frames.pop()
        except IndexError:
            frame = Frame([form(p, v) for p, v in zip(self._parameters, values, strict=True)], {})
        frame.fill(values)
        self._launch(self._handle, *grid, *block, shared, _raw_stream(self._index), frame.pointers, 0)  # type: ignore[misc]
        self._frames.append(frame)  # the driver has copied the arguments

    def prepared(
        self, grid: tuple[int, ...], block: tuple[int, ...], shared: int, numbers: tuple[Any, ...]
    ) -> Callable[..., None]:
        """A launch of a function that has run, on the device that is current: called with a raw stream and the values
        before the numbers, addresses and bytes."""
        frames: list[Frame] = []  # of this launch alone: the numbers are in them
        parameters, (launch, fixed) = self._parameters, self._with_sizes((*grid, *block, shared))

        def launched(stream: int, *values: Any) -> None:
            try:
                frame = frames.pop()
            except IndexError:
                given = (*values, *numbers)
                forms = [form(p, v) for p, v in zip(parameters, given, strict=True)]
                frame = Frame(forms, dict(enumerate(given[len(values) :], len(values))))
            frame.pack_into(frame.buffer, 0, *values)
            launch(*fixed, stream, frame.pointers, 0)
            frames.append(frame)

        return launched

    def _with_sizes(self, sizes: tuple[int, ...]) -> tuple[Callable[..., None], tuple[int, ...]]:
        """A launch, and what it takes before the raw stream, the address of the arguments' pointers and 0."""
        return self._launch, (self._handle, *sizes)

    @cached_property
    def following(self) -> "CudaFunction":
        """The same function, launched before the kernel ahead of it has ended; it waits for that one itself. Older GPUs
        have no such launch."""
        if cards.of(self._index).capability < (9, 0):
            return self
        other = copy(self)
        other.__class__, other._launch, other._frames = _Following, launch_following, []
        return other

    @property
    def resources(self) -> dict[str, int]:
        """Registers, local and shared bytes of the compiled kernel, as the driver reports them."""
        return dict(self._raw.attributes)


class _Following(CudaFunction):
    """A function whose launches may start before the kernel ahead has ended."""

    def _with_sizes(self, sizes: tuple[int, ...]) -> tuple[Callable[..., None], tuple[int, ...]]:
        handle, configurations, launch = self._handle, _following(sizes), launch_kernel_ex()

        def start(stream: int, pointers: int, extra: int) -> None:
            status = launch(configurations[stream], handle, pointers, None)
            if status:
                raise refused(status)

        return start, ()
