"""A Triton driver whose device is the emulator: `kernel[grid](cpu tensors)` runs the very PTX that a GPU would run.

`with triton_active():` hands it to Triton by `triton.runtime.driver.set_active`, the way for drivers from outside, and
gives back what was active; `activate()` hands it over for good. Nothing of Triton is patched. Triton compiles as it
always does, for sm_90 or for what `with target("sm_89"):` says, and the launcher takes the PTX that the compiler left in
Triton's cache.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler import ASTSource
from triton.runtime import driver

from kernelmux.emulator import launch_log
from kernelmux.emulator.compilers import triton_cache, triton_ptx, triton_recompile, triton_stages
from kernelmux.emulator.resources import MULTIPROCESSORS, Resources, resources
from kernelmux.emulator.running.launch import EntryKernel, load
from kernelmux.emulator.settings import compiled_scratch
from kernelmux.emulator.tma.tensor_map import Im2colMap, TensorMap

# Multiprocessors, clocks of these and of the memory (kHz), and width of the memory's bus (bits), of a GPU of each target:
# an H200, A100, T4, RTX 3090, RTX 4090, B200, B300, RTX 5090 and GB10. The place in this table is the device's number:
# Triton keeps what it compiled apart by that.
_KINDS = {
    "sm_90": (132, 1980000, 3201000, 6144),
    "sm_80": (108, 1410000, 1593000, 5120),
    "sm_75": (40, 1590000, 5001000, 256),
    "sm_86": (82, 1695000, 9751000, 384),
    "sm_89": (128, 2520000, 10501000, 384),
    "sm_100": (148, 1965000, 3996000, 8192),
    "sm_103": (148, 1920000, 3996000, 8192),
    "sm_120": (170, 2407000, 14001000, 512),
    "sm_121": (48, 2418000, 4266000, 256),
}
# What a program may ask about its device, so that a kernel takes the decisions it would take there.
DEVICES: dict[str, dict[str, int]] = {
    arch: {
        "max_shared_mem": MULTIPROCESSORS[arch].shared_per_block,
        "max_num_regs": MULTIPROCESSORS[arch].registers,
        "multiprocessor_count": processors,
        "warpSize": 32,
        "sm_clock_rate": clock,
        "mem_clock_rate": memory,
        "mem_bus_width": width,
    }
    for arch, (processors, clock, memory, width) in _KINDS.items()
}
ARCHES = tuple(DEVICES)
_arch: ContextVar[str] = ContextVar("kernelmux_emulator_triton_arch", default=ARCHES[0])
SCALARS: dict[str, type[np.generic]] = {
    **{"i1": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64},
    **{"u1": np.uint8, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64},
    **{"fp16": np.float16, "fp32": np.float32, "f32": np.float32, "fp64": np.float64},
}
# Swizzle modes as Triton numbers them, in bytes.
SWIZZLES = (0, 32, 64, 128)


with_machine_code = triton_stages.machine_code  # inside, Triton goes on to machine code, as `nvrtc.with_machine_code`

_lock = threading.Lock()
_inside: ContextVar[bool] = ContextVar("kernelmux_emulator_triton_inside", default=False)
_entered = 0  # how many `triton_active` are open, in all threads
_before: DriverBase | None = None  # what was active when the first of them was opened


def activate() -> None:
    """Make the emulator Triton's active device in the whole process; calling it again changes nothing."""
    global _before
    with _lock:
        _before = _emulator()
        driver.set_active(_before)
        triton_stages.stop_at_ptx()


@contextmanager
def triton_active() -> Iterator[None]:
    """Inside the `with`, Triton's kernels run on the emulator; afterwards what was active before is active again.

    It nests, and several threads may be inside at once: the last one to leave restores what the first one replaced. A
    kernel that another thread, which is not inside, launches meanwhile gets Triton's error for a machine without a GPU.
    """
    global _entered, _before
    with _lock:
        if _entered == 0:
            _before = driver._active
            driver.set_active(_emulator())
            triton_stages.stop_at_ptx()
        _entered += 1
    was = _inside.get()
    _inside.set(True)
    try:
        yield
    finally:
        _inside.set(was)
        with _lock:
            _entered -= 1
            if _entered == 0 and driver._active is _emulator():
                driver.set_active(_before)
                if _before is not _emulator():
                    triton_stages.go_on()


def _check_inside() -> None:
    """Raise for a launch from a thread that did not ask for the emulator while another one has it."""
    if not _entered or _inside.get() or _before is _emulator():
        return
    replaced = _before or driver.default  # without a GPU, Triton's own error
    raise RuntimeError(
        f"Triton has one driver per process, and another thread's emulated call has it in place of {replaced}:"
        f" launch after that call, or inside of triton_active()"
    )


@contextmanager
def target(arch: str) -> Iterator[None]:
    """Inside the `with`, Triton compiles for `arch`, "sm_90" otherwise.

    For another target it compiles to machine code, so that ptxas refuses what the target does not have.
    """
    if arch not in DEVICES:
        raise ValueError(f"target: expected one of {', '.join(ARCHES)}, got {arch!r}")
    token = _arch.set(arch)
    try:
        with nullcontext() if arch == ARCHES[0] else triton_stages.machine_code():
            yield
    finally:
        _arch.reset(token)


def _capability(device: int) -> int:
    """90 for sm_90."""
    return int(ARCHES[device].removeprefix("sm_"))


class EmulatorDriver(DriverBase):  # type: ignore[misc]
    """What Triton asks of a device."""

    def __init__(self) -> None:
        triton_cache.ensure()
        self.utils = Utilities()
        self.launcher_cls = _launcher

    @classmethod
    def is_active(cls) -> bool:
        """Never found by Triton's own search: `triton_active` and `activate` alone choose this driver."""
        return False

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", _capability(self.get_current_device()), 32)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return divmod(_capability(self.get_current_device() if device is None else device), 10)

    def get_current_device(self) -> int:
        """The number of the target; the first thing that Triton asks at a launch."""
        _check_inside()
        return ARCHES.index(_arch.get())

    def set_current_device(self, device: int) -> None:
        """`target` chooses the device."""

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """The autotuner's timer. It runs nothing and gives all configurations the time 0, so the first one is taken."""
        return lambda kernel_call, *, quantiles=(0.5,), **_: [0.0] * len(quantiles)

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1, dtype=torch.int)

    def clear_cache(self, cache: Any) -> None:
        """There is no L2 cache to flush."""

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError(f"no C++ launcher is generated on the emulator (asked for {ty})")


class Utilities:
    """Triton's low-level device functions."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return dict(DEVICES[ARCHES[device]])

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """(module, function, registers, spills, threads per block); the launcher brings its own code, the PTX.

        Registers and spills are 0, since there is no machine code, unless a hook of the user's lets Triton make it.

        The module is None, since nothing was loaded: Triton asks the active driver to unload any other, and at that time
        this one is not active any more. Therefore Triton comes here at every launch.
        """
        need = _needs(name, cubin)
        return None, name, need.registers, need.spill_stores or 0, 1024

    def unload_module(self, module: None) -> None:
        """Nothing was loaded."""


@lru_cache(maxsize=1024)
def _needs(name: str, cubin: bytes) -> Resources:
    return resources(cubin).get(name, Resources()) if cubin else Resources()


class Launcher:
    """Launches one compiled Triton kernel; see `_launcher`."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.signature: dict[str, Any] = source.signature
        self.source = source
        self.metadata = metadata
        self.recipe = triton_recompile.recipe(source, metadata)
        self.descriptors: Sequence[dict[str, Any]] = getattr(metadata, "tensordesc_meta", None) or ()
        self.cluster: int = getattr(metadata, "num_ctas", 1)

    @cached_property
    def kernel(self) -> EntryKernel:
        """The kernel of the PTX that Triton's compiler stored."""
        ptx = triton_ptx.checked(self.source, self.metadata)
        return load(_INLINE_ASSEMBLY.sub(_without_lines, ptx)).kernel(self.metadata.name)

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: int,
        function: str,
        packed_metadata: Any,
        launch_metadata: Any,
        enter_hook: Any,
        exit_hook: Any,
        *arguments: Any,
    ) -> None:
        kernel = self.kernel
        launch_log.remember(kernel.module.ptx, self.recipe)
        values = list(self._values(arguments))
        blocks = grid_x * grid_y * grid_z * self.cluster
        scratch = [(f"{which}_scratch", self._scratch(which, blocks)) for which in ("global", "profile")]
        values += scratch[: len(kernel.parameters) - len(values)]
        names, passed = [name for name, _ in values], [value for _, value in values]
        if enter_hook is not None:
            enter_hook(launch_metadata)
        self._run(kernel, (grid_x * self.cluster, grid_y, grid_z), passed, names)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _run(self, kernel: EntryKernel, grid: tuple[int, int, int], values: list[Any], names: list[str]) -> None:
        """A program of Triton is a cluster of `num_ctas` blocks, neighbours in x."""
        threads, shared = 32 * self.metadata.num_warps, self.metadata.shared
        # A kernel in Gluon, or given as IR, has shared memory of its own.
        with compiled_scratch() if type(self.source) is ASTSource else nullcontext():
            kernel.launch(grid, (threads, 1, 1), values, names=names, shared=shared, cluster=(self.cluster, 1, 1))

    def _values(self, arguments: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Name and value of each parameter of the PTX entry, without the scratch buffers at its end."""
        descriptors = iter(self.descriptors)
        for (name, kind), argument in zip(self.signature.items(), arguments, strict=True):
            yield from _flatten(name, kind, argument, descriptors)

    def _scratch(self, which: str, blocks: int) -> Any:
        """Working memory that the compiler asked for, so many bytes per block; None when it did not."""
        size = getattr(self.metadata, f"{which}_scratch_size", 0)
        return _aligned(size * blocks, getattr(self.metadata, f"{which}_scratch_align", 1)) if size else None


_launchers: dict[str, Launcher] = {}


def _launcher(source: Any, metadata: Any) -> Launcher:
    """The launcher of a compilation: one for the same code, however often Triton asks."""
    launcher = _launchers.get(metadata.hash)
    return launcher or _launchers.setdefault(metadata.hash, Launcher(source, metadata))


def _aligned(size: int, alignment: int) -> Any:
    """Zeroed bytes that begin at a multiple of `alignment`."""
    memory = np.zeros(size + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size]


@cache
def _emulator() -> "EmulatorDriver":
    return EmulatorDriver()


# Triton writes loads and stores as inline assembly of several lines, and LLVM counts these on from the kernel's line:
# the second instruction of a `tl.load` would seem to stand one line below it.
_INLINE_ASSEMBLY = re.compile(r"// begin inline asm\n.*?// end inline asm", re.DOTALL)


def _without_lines(assembly: re.Match[str]) -> str:
    return re.sub(r"^\s*\.loc\s[^\n]*\n", "", assembly[0], flags=re.MULTILINE)


# --- arguments ------------------------------------------------------------------------------------------------


def _flatten(name: str, kind: Any, argument: Any, descriptors: Iterator[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The parameters that one argument of a Triton kernel becomes: none for a constexpr, several for a tuple."""
    if isinstance(kind, tuple):
        for i, (inner, item) in enumerate(zip(kind, argument, strict=True)):
            yield from _flatten(f"{name}[{i}]", inner, item, descriptors)
    elif kind.startswith("tensordesc"):
        yield from _descriptor(name, argument, next(descriptors, None))
    elif kind != "constexpr":
        yield name, _pointer(argument) if kind.startswith("*") else scalar(kind, argument)


def _pointer(argument: Any) -> Any:
    """The tensor behind a pointer argument; `triton.reinterpret` wraps it in an object with a `base`."""
    return argument if argument is None or not hasattr(argument, "base") else argument.base


def scalar(kind: str, value: Any) -> np.generic:
    """A scalar argument in the size that Triton's signature gives it."""
    if kind == "bf16":
        bits = int(np.float32(value).view(np.uint32))
        return np.uint16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return SCALARS[kind](value)


def _descriptor(name: str, argument: Any, layout: dict[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """A host `TensorDescriptor`: a tensor map (or its parts, where the kernel does without), sizes, strides."""
    if layout is None:
        yield name, argument.base
        yield from _sizes(name, argument, np.int64)
        yield f"{name}.nan", np.uint8(argument.padding == "nan")
        if hasattr(argument, "round_f32_to_tf32"):
            yield f"{name}.tf32", np.uint8(argument.round_f32_to_tf32)
    else:
        yield name, _tensor_map(argument, layout)
    yield from _sizes(name, argument, np.int32)


def _sizes(name: str, argument: Any, shape_type: type[np.generic]) -> Iterator[tuple[str, np.generic]]:
    for i, size in enumerate(argument.shape):
        yield f"{name}.shape[{i}]", shape_type(size)
    for i, stride in enumerate(argument.strides):
        yield f"{name}.strides[{i}]", np.int64(stride)


def _tensor_map(argument: Any, layout: dict[str, Any]) -> TensorMap:
    if layout.get("fp4_padded"):
        raise NotImplementedError("the emulator has no fp4 tensor maps: their GPUs begin with sm_100")
    if layout.get("is_im2col"):
        return _im2col_map(argument, layout)
    return TensorMap(
        argument.base,
        box=layout["block_size"],
        swizzle=SWIZZLES[layout["swizzle"]],
        shape=argument.shape,
        strides=argument.strides,
        fill=argument.padding,
        element="tf32" if getattr(argument, "round_f32_to_tf32", False) else None,
    )


def _im2col_map(argument: Any, layout: dict[str, Any]) -> Im2colMap:
    pixels, channels = layout["block_size"]
    steps = argument.element_strides
    return Im2colMap(
        argument.base,
        argument.pixel_box_lower_corner,
        argument.pixel_box_upper_corner,
        channels,
        pixels,
        SWIZZLES[layout["swizzle"]],
        steps=steps[1:-1] if steps else None,
        fill=argument.padding,
        element="tf32" if argument.round_f32_to_tf32 else None,
    )
