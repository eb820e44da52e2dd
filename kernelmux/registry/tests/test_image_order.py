"""Results of operators on images lie alike from every backend, whatever the images look like: each stride is the spec's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch

from kernelmux.backends.cuda._launch import runtime
from kernelmux.backends.triton._launch import launch as triton_launch
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.call.launch_replay import LaunchRecorder
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.interop import torch_ops
from kernelmux.registry.util.memory_format import format_of, fresh, strides_of

Shape = tuple[int, int, int, int]
Made = tuple[Mapping[str, Shape], Mapping[str, Any]]
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")


def convolution(images: Shape, filters: int, kernel: int = 3) -> dict[str, Made]:
    """The three operators of a convolution of these images."""
    n, c, h, w = images
    weight, places = (filters, c, kernel, kernel), (n, filters, h - kernel + 1, w - kernel + 1)
    return {
        "conv2d": ({"x": images, "weight": weight}, {}),
        "conv2d_backward_input": ({"grad_out": places, "weight": weight}, {}),
        "conv2d_backward_weight": ({"grad_out": places, "x": images}, {"kernel": kernel}),
    }


def side_by_side(images: Shape, filters: int, kernel: int) -> dict[str, Made]:
    """The same of windows that do not overlap."""
    n, c, h, w = images
    weight, places, along = (filters, c, kernel, kernel), (n, filters, h // kernel, w // kernel), {"stride": kernel}
    return {
        "conv2d": ({"x": images, "weight": weight}, along),
        "conv2d_backward_input": ({"grad_out": places, "weight": weight}, along),
        "conv2d_backward_weight": ({"grad_out": places, "x": images}, {"kernel": kernel, **along}),
    }


def pooling(images: Shape) -> dict[str, Made]:
    """Both operators of a pool of these images."""
    n, c, h, w = images
    pooled = (n, c, h // 2, w // 2)
    return {
        "max_pool2d": ({"x": images}, {"kernel": 2}),
        "max_pool2d_backward": ({"grad_out": pooled, "index": pooled}, {"kernel": 2, "size": (h, w)}),
    }


CALLS = [
    *(
        convolution(shape, filters, kernel)
        for shape, filters, kernel in (
            ((2, 3, 3, 4), 2, 2),
            ((1, 16, 2, 4), 1, 2),
            ((2, 16, 1, 1), 8, 1),
            ((8, 8, 1, 2), 8, 1),
            ((2, 1, 3, 3), 8, 2),
            ((2, 3, 2, 2), 8, 2),
            ((0, 3, 3, 4), 2, 2),
            ((2, 0, 3, 4), 2, 2),
            ((2, 3, 3, 4), 0, 2),
        )
    ),
    side_by_side((2, 9, 4, 8), 8, 4),
    side_by_side((2, 1, 4, 8), 3, 4),
    *(pooling(shape) for shape in ((2, 3, 4, 4), (1, 1, 4, 4), (2, 3, 2, 2), (0, 3, 4, 4))),
]


def shaped(shape: Shape, strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers under these strides, which may overlap."""
    room = 1 + sum(max(size - 1, 0) * step for size, step in zip(shape, strides, strict=True))
    return (torch.arange(room) % 7).to(dtype).as_strided(shape, strides)


LAYOUTS: dict[str, Callable[..., tuple[int, ...]]] = {
    "contiguous": lambda n, c, h, w: (c * h * w, h * w, w, 1),
    "channels last": lambda n, c, h, w: (h * w * c, 1, w * c, c),
    "channels last with gaps": lambda n, c, h, w: (h * w * (c + 2), 1, w * (c + 2), c + 2),
    "channels last, rows apart": lambda n, c, h, w: ((h + 1) * w * c, 1, w * c, c),
    "channels last, images expanded": lambda n, c, h, w: (0, 1, w * c, c),
    "channels expanded": lambda n, c, h, w: (h * w, 0, w, 1),
    "all expanded": lambda n, c, h, w: (0, 0, 0, 0),
    "overlapping rows of channels last": lambda n, c, h, w: (h * c, 1, c, 1),
    "sliding windows": lambda n, c, h, w: (c * h * w, h * w, 1, 1),
    "images innermost": lambda n, c, h, w: (1, h * w * n, w * n, n),
}


def tensors(shapes: Mapping[str, Shape], layout: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The tensors of a call, all in this layout."""
    kinds = {name: torch.int32 if name == "index" else dtype for name in shapes}
    return {name: shaped(shape, LAYOUTS[layout](*shape), kinds[name]) for name, shape in shapes.items()}


def outline(value: Any) -> Any:
    """A tensor without memory that lies as this one does; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


EMULATED = ("channels last", "channels last with gaps", "all expanded")
OPS = [op for calls in (CALLS[0], CALLS[-1]) for op in calls]
VARIANTS = [(op, f"{b}/{v}") for op in OPS for b in registered.backends() for v in registered.variants(b, op)]


@pytest.fixture
def no_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled or run: launchers allocate and view, and results lie as they lie, whatever their values."""
    for launch in (runtime.BoundLaunch, triton_launch.Launch):
        monkeypatch.setattr(launch, "__call__", lambda *given, **more: None)


@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_every_stride_is_that_of_the_spec(op: str, variant: str, no_launches: None) -> None:
    spec, ran = catalog.spec(op), False
    dtype = torch.float32 if variant == "torch_ref/plain" or variant.endswith(("/sums", "/bf16x6")) else torch.float16
    layouts: Iterable[str] = LAYOUTS if variant.startswith("torch_ref") else EMULATED
    made = [calls[op] for calls in CALLS if op in calls]
    if variant.endswith("/pointwise"):
        layouts, made = ("contiguous",), [convolution((2, 32, 8, 16), 64, kernel=1)[op]]
    for shapes, scalars in made:
        for layout in layouts:
            values = {**tensors(shapes, layout, dtype), **scalars}
            call = spec.bind(**values)
            try:
                outputs = dispatch.outputs(op, **values, backend=variant)
            except UnsupportedError:
                continue
            ran = True
            for output, got in zip(spec.outputs, outputs, strict=True):
                want = strides_of(output.shape(call), output.memory_format(call))
                assert got.stride() == want, f"{output.name} of {shapes}, {layout}"
    assert ran


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize(("channels", "kernel"), [(64, 3), (64, 1), (5, 3)])
@pytest.mark.parametrize("backend", ["cuda", "triton"])
@pytest.mark.parametrize("op", [op for op in OPS if op.startswith("conv2d")])
def test_a_convolution_can_be_replayed(op: str, backend: str, channels: int, kernel: int, layout: str) -> None:
    """It does nothing but allocate, view, copy and launch, and what it returns is memory of its own, whole."""
    shapes, scalars = convolution((2, channels, 8, 10), channels, kernel)[op]
    values = {**tensors(shapes, layout, torch.float16), **scalars}
    with LaunchRecorder(tuple(values.values())) as watch:
        (made,) = dispatch.outputs(op, **values, backend=backend)
    name, whole = watch.origin(made)
    assert not watch.problem and name.startswith("_t")
    assert made.data_ptr() == whole.data_ptr() and made.numel() == whole.numel()


@pytest.mark.parametrize("op", OPS)
def test_shapes_without_values_lie_as_the_results_do(op: str) -> None:
    for shapes, scalars in (calls[op] for calls in CALLS if op in calls):
        for layout in LAYOUTS:
            given = catalog.spec(op).given(**tensors(shapes, layout, torch.float32), **scalars)
            hollow = torch_ops.shapes(catalog.spec(op), *map(outline, given))
            real = dispatch.call(catalog.spec(op), given, "torch_ref")
            pairs = list(zip(*((x if isinstance(x, tuple) else (x,)) for x in (hollow, real)), strict=True))
            assert [a.stride() for a, _ in pairs] == [b.stride() for _, b in pairs], f"{shapes}, {layout}"


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (2, 1, 4, 5), (2, 3, 1, 1), (0, 3, 4, 5), (2, 0, 4, 5)])
def test_a_fresh_tensor_has_the_strides_of_a_new_one(form: torch.memory_format, shape: Shape) -> None:
    assert strides_of(shape, form) == torch.empty(shape, memory_format=form).stride()
    for steps in LAYOUTS.values():
        x = shaped(shape, steps(*shape), torch.float32)
        assert fresh(x, form).stride() == strides_of(shape, form) and torch.equal(fresh(x, form), x)
    x = torch.empty(shape, memory_format=form)
    assert fresh(x, form) is x
    assert strides_of((), torch.contiguous_format) == () and strides_of((3, 0, 2), torch.contiguous_format) == (2, 2, 1)


def test_what_is_dense_and_channels_last_alone_decides() -> None:
    made = {name: shaped((2, 3, 4, 5), steps(2, 3, 4, 5), torch.float32) for name, steps in LAYOUTS.items()}
    assert [name for name, x in made.items() if format_of(x) == torch.channels_last] == ["channels last"]
