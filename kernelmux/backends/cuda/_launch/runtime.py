"""The launch seam: a `.cu` file beside its launcher becomes a typed, cached, callable kernel.

    SOURCE = Source(__file__)
    kernel = SOURCE.kernel("softmax_rows", "x* y* n:i32 scale:f32", ELEMENT=ctype(x.dtype), BLOCK=256)
    kernel(grid, block, x, y, n, scale)

CUDA tensors go to the GPU through CuPy, on torch's current stream; CPU tensors go to the emulator. Nothing but this
seam knows which.
"""

import hashlib
import struct
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from kernelmux.backends.cuda._launch import launch_cuda
from kernelmux.backends.cuda._launch.signature import KernelParameter, parse, scalar_converter
from kernelmux.backends.cuda._launch.tensor_map import DeviceMap, Tiles
from kernelmux.registry.call import launch_replay
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card

__all__ = [
    "FEW_BLOCKS", "BoundLaunch", "Kernel", "Source", "Tiles", "bits_type", "card", "cdiv", "ctype", "multiprocessors",
]  # fmt: skip

HEADERS = Path(__file__).resolve().parents[1] / "include"
# A kernel of no more is over soon after it has started, so that starting it early counts (dependent_launch.cuh).
FEW_BLOCKS = 128
_MAX_GRID = (2**31 - 1, 65535, 65535)
_CTYPES = {
    torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16", torch.float64: "double",
    torch.int8: "signed char", torch.uint8: "unsigned char", torch.int32: "int", torch.int64: "long long",
}  # fmt: skip
_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def ctype(dtype: torch.dtype) -> str:
    """The CUDA C++ type of `dtype`."""
    return _CTYPES[dtype]


def bits_type(dtype: torch.dtype) -> str:
    """The unsigned integer type of the same size, for kernels that move values and compute nothing."""
    return _BITS[dtype.itemsize]


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def next_power(n: int) -> int:
    """The smallest power of two >= n."""
    return 1 << max(n - 1, 0).bit_length()


def card(x: torch.Tensor) -> Card:
    """The GPU that `x` is on; of a CPU tensor the one that the emulator stands for."""
    return cards.of_tensor(x)


def multiprocessors(x: torch.Tensor) -> int:
    """How many multiprocessors the device of `x` has."""
    return card(x).processors


class Source:
    """A CUDA C++ file; `Source(__file__)` is the `.cu` of the same stem as the launcher, of a package that of its name.

    Headers are looked for in the folder of the file, in those of `include`, then among ours, on a GPU and emulated alike.
    """

    def __init__(self, module: str, name: str | None = None, include: Sequence[str | Path] = ()):
        here = Path(module).resolve()
        stem = here.parent.name if here.stem == "__init__" else here.stem
        self.path = here.with_name(name or f"{stem}.cu")
        self.folders = tuple(dict.fromkeys([self.path.parent, *(Path(i).resolve() for i in include), HEADERS]))
        self._kernels: dict[Any, Kernel] = {}

    def kernel(self, entry: str, signature: str, **defines: object) -> "Kernel":
        """The kernel `entry` compiled with `-D` for each of `defines`; the same arguments give the same object.

        No define may be called T: NVRTC's own headers use the name for their template parameters.
        """
        key = (entry, signature, *defines.items())
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = Kernel(self, entry, signature, defines)
        return found

    @cache  # noqa: B019  (sources live as long as their modules)
    def text(self) -> str:
        """The source; its first line makes compiler messages and profilers name the file."""
        return f'#line 1 "{self.path.name}"\n' + self.path.read_text()

    def options(self, defines: dict[str, object]) -> tuple[str, ...]:
        """Compiler options without the target; the digest makes on-disk caches notice a changed header."""
        given = [f"-D{name}={value}" for name, value in defines.items()]
        folders = [f"-I{folder}" for folder in self.folders]
        return ("-std=c++17", *folders, f"-DKERNELMUX_HEADERS={self._headers_digest()}", *given)

    @cache  # noqa: B019
    def _headers_digest(self) -> str:
        """Over the headers that the source includes, directly or through one another."""
        from kernelmux.emulator.nvrtc import included

        headers = included(self.text(), list(self.folders))
        parts = (f"{path.name}\n{headers[path]}\n" for path in sorted(headers))
        return "0x" + hashlib.sha256("".join(parts).encode()).hexdigest()[:12]


class Kernel:
    """A compiled entry with a typed signature; call it with a grid, a block and the arguments."""

    def __init__(self, source: Source, entry: str, signature: str, defines: dict[str, object]):
        self.source, self.entry, self.defines = source, entry, dict(defines)
        self.parameters = parse(signature)
        self._names = tuple(p.name for p in self.parameters)
        self._tensors = [i for i, p in enumerate(self.parameters) if p.kind in ("pointer", "map")]
        self._numbers = [scalar_converter(entry, p) if p.is_scalar else _as_is for p in self.parameters]
        self._objects = [(i, _crossing(entry, p)) for i, p in enumerate(self.parameters) if not p.is_scalar]
        self._functions: dict[int | str, Any] = {}  # by device index; emulated ones by the target

    def __call__(self, grid: int | Sequence[int], block: int | Sequence[int], *args: Any, shared: int = 0) -> None:
        """Launches once; a grid with a zero launches nothing.

        `shared` is dynamic shared memory in bytes. TypeError, ValueError or OverflowError names the argument that
        does not fit the signature.
        """
        grid = (grid, 1, 1) if type(grid) is int else (*grid, 1, 1)[:3]  # type: ignore[misc]
        block = (block, 1, 1) if type(block) is int else (*block, 1, 1)[:3]  # type: ignore[misc]
        if 0 in grid:
            return
        if len(args) != len(self.parameters) or grid[0] > _MAX_GRID[0] or grid[1] > 65535 or grid[2] > 65535:
            raise self.refusal(grid, args)
        index = self.device(args)
        function = self._functions.get(index) or self.compiled(index)
        if index < 0:
            function.launch(grid, block, self._converted(args), shared)
            return
        try:
            function.launch(grid, block, self.crossed(args), shared)
        except (struct.error, OverflowError):
            self._converted(args)  # names the argument
            raise
        if launch_replay.watching():
            launch_replay.launched(function.prepared(grid, block, shared, ()), _noted(args))

    def bind(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *numbers: int | float,
        shared: int = 0,
        follows: bool = False,
    ) -> "BoundLaunch":
        """A launch that still lacks its tensors, which the signature has first; errors as for a call.

        follows: from compute capability 9.0 on the kernel may start before the one ahead of it has ended, and waits for
        that itself (griddepcontrol.wait; most by `follow_previous` of dependent_launch.cuh).
        """
        return BoundLaunch(self, grid, block, numbers, shared, follows)

    def compiled(self, index: int) -> Any:
        """The function on device `index` (-1: the emulator), compiled at the first request."""
        where = index if index >= 0 else cards.emulated().arch
        if where not in self._functions:
            self._functions[where] = self._compile(index)
        return self._functions[where]

    def _compile(self, index: int) -> Any:
        text, options = self.source.text(), self.source.options(self.defines)
        given = (text, self.entry, options, self.source.path.name, self.source.folders)
        if index >= 0:
            return launch_cuda.CudaFunction(*given, index, self.parameters)
        from kernelmux.backends.cuda._launch.launch_emulated import EmulatedFunction

        return EmulatedFunction(*given, self._names, cards.emulated().arch)

    def _converted(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with every number as the numpy scalar of its parameter's type; TypeError or OverflowError."""
        return tuple([convert(value) for convert, value in zip(self._numbers, args, strict=True)])

    def crossed(self, args: tuple[Any, ...]) -> list[Any]:
        """The arguments as a CUDA launch takes them: addresses, bytes and, as they are, numbers."""
        values = list(args)
        for i, cross in self._objects:
            values[i] = cross(values[i])
        return values

    def device(self, args: tuple[Any, ...]) -> int:
        """The index of the CUDA device that the first tensor or map on one names, -1 without any."""
        for i in self._tensors:
            arg = args[i]
            if isinstance(arg, torch.Tensor):
                if arg.is_cuda:
                    return arg.get_device()
            elif type(arg) is DeviceMap:
                return arg.index
        return -1

    def refusal(self, grid: tuple[int, ...], args: tuple[Any, ...]) -> Exception:
        """What is wrong with a launch: the number of its arguments, or else its grid."""
        if len(args) != len(self.parameters):
            return TypeError(f"{self.entry}: expected {len(self.parameters)} arguments {self._names}, got {len(args)}")
        return ValueError(f"{self.entry}: grid {grid} exceeds {_MAX_GRID}")


def _three(sizes: int | Sequence[int]) -> tuple[int, ...]:
    return (sizes, 1, 1) if isinstance(sizes, int) else (*sizes, 1, 1)[:3]


class BoundLaunch:
    """A launch with its numbers converted and checked once; a call only adds the addresses."""

    def __init__(
        self,
        kernel: Kernel,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        numbers: Sequence[int | float],
        shared: int,
        follows: bool = False,
    ):
        self._follows = follows
        self._kernel, self._grid, self._block, self._shared = kernel, _three(grid), _three(block), shared
        tensors = len(kernel.parameters) - len(numbers)
        scalars = kernel.parameters[tensors:]
        if tensors < 1 or [p.is_scalar for p in kernel.parameters] != [False] * tensors + [True] * len(numbers):
            raise TypeError(f"{kernel.entry}: expected tensors, then {len(numbers)} numbers, got {kernel.parameters}")
        if any(have > most for have, most in zip(self._grid, _MAX_GRID, strict=True)):
            raise kernel.refusal(self._grid, kernel.parameters)
        self._numbers = tuple(scalar_converter(kernel.entry, p)(n) for p, n in zip(scalars, numbers, strict=True))
        self._tensors = tensors

    def __call__(self, *tensors: Any) -> None:
        """Launches once, with tensors and maps in the order of the signature."""
        if 0 in self._grid:
            return
        kernel = self._kernel
        if len(tensors) != self._tensors:
            raise kernel.refusal(self._grid, tensors + self._numbers)
        index = kernel.device(tensors)
        args = tensors + self._numbers
        values = args if index < 0 else kernel.crossed(args)
        function = kernel.compiled(index)
        if self._follows and index >= 0:
            function = function.following
        function.launch(self._grid, self._block, values, self._shared)
        if index >= 0 and launch_replay.watching():
            launcher = function.prepared(self._grid, self._block, self._shared, self._numbers)
            launch_replay.launched(launcher, _noted(tensors))


def _noted(args: tuple[Any, ...]) -> list[Any]:
    """The arguments as a replay takes them: a null pointer for None."""
    return [0 if x is None else x for x in args]


def _as_is(value: Any) -> Any:
    return value


def _crossing(entry: str, parameter: KernelParameter) -> Any:
    """How an argument that is not a number goes to a CUDA launch: as an address or as bytes."""
    if parameter.kind == "struct":
        return _as_is
    if parameter.kind == "map":
        return lambda value: value.value
    return partial(_address, f"{entry}: {parameter.name}")


def _address(where: str, value: Any) -> int:
    """A pointer for a CUDA launch: a CUDA tensor, pinned host memory (mapped, same address) or None (null)."""
    if value is None:
        return 0
    if not value.is_cuda and not value.is_pinned():
        raise TypeError(f"{where} is in pageable host memory, expected a CUDA tensor or pinned memory")
    return value.data_ptr()  # type: ignore[no-any-return]
