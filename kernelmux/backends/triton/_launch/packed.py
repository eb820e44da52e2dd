"""Compiled kernels launched by the CUDA driver itself, with their arguments packed.

Triton's launcher parses every argument at each call, constexprs too, and encodes every tensor descriptor anew. Here the
arguments that stay lie ready, and a tensor map is looked up by its address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

from kernelmux.registry.util.cuda_driver import (
    MAP_BYTES,
    PROMOTION_128B,
    Configurations,
    Frame,
    TensorMaps,
    Tiled,
    argument_bytes,
    launch_kernel_ex,
    refused,
)

_FORMS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "fp32": "f", "fp64": "d",
}  # fmt: skip
_POINTER, _MAP = "Q", f"{MAP_BYTES}s"
_SIZES = {_POINTER: 8, _MAP: MAP_BYTES, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "f": 4, "q": 8, "d": 8}

Ints = tuple[int, ...]


class ArgumentSlot(NamedTuple):
    """Stands among the arguments of a kernel for the one that a launch gives at this place.

    shape, strides: of the tensor, if it goes in as a descriptor.
    """

    place: int
    shape: Sequence[int] = ()
    strides: Sequence[int] = ()


class PackedLaunch(NamedTuple):
    """A launch on the current device, called with a raw stream and what stands for each argument that is given.

    maps: by place, the tensor maps of those that go in as descriptors; all others go in as they are.
    """

    launch: Callable[..., None]
    maps: dict[int, TensorMaps]


def packed(compiled: Any, grid: Ints, arguments: Sequence[Any]) -> PackedLaunch | None:
    """The launch of a compiled kernel with these arguments, `ArgumentSlot` among them, those of constexprs at the end.

    None if it needs what only Triton's own launcher does: working memory, clusters, a cooperative grid, descriptors in
    parts, another vendor's GPU; or where the driver tells of other arguments.
    """
    about = compiled.metadata
    scratch = about.global_scratch_size or about.profile_scratch_size
    if about.target.backend != "cuda" or scratch or about.num_ctas != 1 or about.launch_cooperative_grid or 0 in grid:
        return None
    maps: dict[int, TensorMaps] = {}
    descriptors = iter(getattr(about, "tensordesc_meta", None) or ())
    try:
        found = [*_flat(compiled.src.signature.values(), arguments, descriptors, maps)]
    except KeyError:
        return None
    found += [(_POINTER, 0)] * 2  # working memory of the kernel and of a profiler
    forms = [form for form, _ in found]
    places = [value.place for _, value in found if isinstance(value, ArgumentSlot)]
    if places != list(range(len(places))) or argument_bytes(compiled.function) != [_SIZES[form] for form in forms]:
        return None
    fixed = {i: value for i, (_, value) in enumerate(found) if not isinstance(value, ArgumentSlot)}
    configurations = Configurations((*grid, 32 * about.num_warps, 1, 1, about.shared), about.launch_pdl)
    return PackedLaunch(_launcher(compiled.function, configurations, forms, fixed, launch_kernel_ex()), maps)


def _launcher(
    handle: int, configurations: Configurations, forms: list[str], fixed: dict[int, Any], start: Callable[..., int]
) -> Callable[..., None]:
    frames: list[Frame] = []  # free ones; a launch takes one, so threads do not share it

    def launched(stream: int, *values: Any) -> None:
        try:
            frame = frames.pop()
        except IndexError:
            frame = Frame(forms, fixed)
        frame.pack_into(frame.buffer, 0, *values)
        status = start(configurations[stream], handle, frame.pointers, None)
        if status:
            raise refused(status)
        frames.append(frame)  # the driver has copied the arguments

    return launched


def _flat(
    kinds: Sequence[Any], arguments: Sequence[Any], descriptors: Iterator[dict[str, Any]], maps: dict[int, TensorMaps]
) -> Iterator[tuple[str, Any]]:
    """Form and value of each parameter of the compiled kernel. maps: gets those of descriptors.

    KeyError for an argument that is not packed here.
    """
    for kind, argument in zip(kinds, arguments, strict=True):
        if isinstance(kind, tuple):
            yield from _flat(kind, argument, descriptors, maps)
        elif kind.startswith("tensordesc"):
            maps[argument.place] = TensorMaps(_encoder(argument, next(descriptors, None)))
            yield _MAP, argument
            yield from (("i", size) for size in argument.shape)
            yield from (("q", stride) for stride in argument.strides)
        elif kind.startswith("*"):
            yield _POINTER, argument
        elif kind != "constexpr":
            yield _FORMS[kind], argument


def _encoder(x: ArgumentSlot, descriptor: dict[str, Any] | None) -> Tiled:
    """A descriptor as Triton's launcher encodes it; descriptor: what the compiler says of it, if it is not taken apart."""
    if descriptor is None or descriptor["fp4_padded"] or descriptor.get("is_im2col"):
        raise KeyError("another kind of descriptor")
    pitches = tuple(descriptor["elem_size"] * stride for stride in x.strides[:-1])
    data_type, box = TMA_DTYPE_DEVICE_TO_HOST[descriptor["elem_type"]], tuple(descriptor["block_size"])
    return Tiled(data_type, tuple(x.shape), pitches, box, descriptor["swizzle"], PROMOTION_128B)
