"""The largest element of each window of an image, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.registry.cases import Case, draw
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import CHOSEN, EQUAL
from kernelmux.registry.spec import Call, Composed, Constraint, OpSpec, Output, Scalar, Tensor
from kernelmux.registry.spec.sliding_windows import Pair, Window

# Of a kernel, a stride, a padding: with fewer than 2^30 elements in a plane all coordinates fit in 32 bits.
MOST = 2**20


def elements(
    size: Pair, kernel: Pair, stride: Pair, padding: Pair, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each window [OH OW], of each of its elements [KH * KW]: the position h * W + w, and whether it is in the image.

    Positions outside of the image are those of its nearest element.
    """
    lines, inside = [], []
    for n, k, s, p in zip(size, kernel, stride, padding, strict=True):
        at = torch.arange(Window(k, s, p).places(n), device=device)[:, None] * s - p + torch.arange(k, device=device)
        lines.append(at.clamp(0, n - 1))
        inside.append((at >= 0) & (at < n))
    (h, w), (row, column) = lines, inside
    positions = h[:, None, :, None] * size[1] + w[None, :, None, :]
    return positions.flatten(2), (row[:, None, :, None] & column[None, :, None, :]).flatten(2)


def reference(x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    """The positions at which the largest element stands, of them the first; of those with NaN the last."""
    positions, inside = elements((x.shape[-2], x.shape[-1]), kernel, stride, padding, x.device)
    plane = x.flatten(-2)
    window = plane.detach()[..., positions].masked_fill(~inside, -torch.inf)
    best = window.amax(-1, keepdim=True)
    found = inside & ((window == best) | (window.isnan() & best.isnan()))
    first = torch.where(found, positions, MOST**2).amin(-1)
    index = torch.where(best[..., 0].isnan(), torch.where(found, positions, -1).amax(-1), first)
    return plane.gather(-1, index.flatten(-2)).view(index.shape), index.to(torch.int32)


def normalise(arguments: dict[str, Any], axes: Mapping[str, Any]) -> None:
    """A stride that is not given is the kernel: windows side by side."""
    if arguments["stride"] is None:
        arguments["stride"] = arguments["kernel"]


def derive(arguments: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, int]:
    """N: images, 1 where there is no axis of them. KH, KW: of a window. OH, OW: how many windows there are."""
    sides = zip((axes["H"], axes["W"]), *(arguments[n] for n in ("kernel", "stride", "padding")), strict=True)
    oh, ow = (Window(k, s, p).places(n) for n, k, s, p in sides)
    kh, kw = arguments["kernel"]
    return {"N": axes.get("N", 1), "KH": kh, "KW": kw, "OH": oh, "OW": ow}


def shape(call: Call) -> tuple[int, ...]:
    """As many leading axes as x has, then OH, OW."""
    return (*call.arguments["x"].shape[:-2], call.axes["OH"], call.axes["OW"])


def exact(case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """Anything at all: numbers are compared, not computed with."""
    return {"x": draw(case.shapes["x"], dtype, rng, "ties")}


def cost(call: Call) -> Cost:
    """Elements between windows that no window covers are not read."""
    x, axes = call.arguments["x"], call.axes
    (kh, kw), (sh, sw) = call.arguments["kernel"], call.arguments["stride"]
    rows = min(axes["H"], kh + (axes["OH"] - 1) * min(kh, sh))
    columns = min(axes["W"], kw + (axes["OW"] - 1) * min(kw, sw))
    planes = axes["N"] * axes["C"]
    results = planes * axes["OH"] * axes["OW"]
    size = x.element_size()
    return Cost(bytes=planes * rows * columns * size + results * (size + 4), flops=results * kh * kw)


def gradient(kx: Any, values: Mapping[str, Any], grads: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By the saved index; of x only its shape is needed."""
    options = (values[name] for name in ("kernel", "stride", "padding"))
    return {"x": kx.max_pool2d_backward(grads["y"], values["index"], tuple(values["x"].shape[-2:]), *options)}


KERNEL = Scalar(
    "kernel", int, range=(1, MOST), length=2, trials=(2, 3, (3, 2), (1, 4)), doc="rows and columns of a window"
)
STRIDE = Scalar(
    "stride",
    int,
    None,
    range=(1, MOST),
    length=2,
    optional=True,
    trials=(1, 2, (2, 1), (3, 2)),
    doc="from one window to the next; None: the kernel",
)
PADDING = Scalar(
    "padding", int, 0, range=(0, MOST), length=2, trials=(1, (1, 0), (0, 1)), doc="rows and columns of -inf around it"
)
LIMITS = (
    Constraint("C, H and W of at least 1", lambda v: v["C"] >= 1 and v["H"] >= 1 and v["W"] >= 1),
    Constraint("fewer than 2**30 elements in a plane of H * W", lambda v: v["H"] * v["W"] < 2**30),
    Constraint(
        "a padding of at most half the kernel",
        lambda v: all(2 * p <= k for p, k in zip(v["padding"], v["kernel"], strict=True)),
    ),
)
SOURCES = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.max_pool2d.html",)

SPEC = OpSpec(
    name="max_pool2d",
    version=1,
    family="Images",
    summary="Largest element of each window of an image; a NaN wins. Channels-last images give channels-last results.",
    math="y[oh, ow] = max of x[h, w] over oh*sh - ph <= h < oh*sh - ph + kh, and so for w, within the image",
    sources=SOURCES,
    inputs=(Tensor("x", "N C H W | C H W", doc="images"), KERNEL, STRIDE, PADDING),
    outputs=(
        Output("y", like="x", dims=shape, order="x"),
        Output(
            "index",
            like="x",
            dims=shape,
            dtype=torch.int32,
            saved=True,
            order="x",
            doc="h * W + w of the first of the largest elements, of the last NaN, as torch's return_indices",
        ),
    ),
    normalise=normalise,
    derive=derive,
    constraints=(
        *LIMITS,
        Constraint("a window at least: OH >= 1 and OW >= 1", lambda v: v["OH"] >= 1 and v["OW"] >= 1),
    ),
    reference=reference,
    error=(CHOSEN, EQUAL),
    exact=exact,
    cases=(
        Case("x=2x3x9x11 kernel=3 stride=2 padding=1", tier="smoke"),
        Case("x=3x8x6 kernel=2", inputs="ties", tier="smoke"),
        Case("x=1x16x33x40 kernel=3 stride=2 padding=1", inputs="ties", dtypes=(torch.bfloat16,)),  # as in ResNet
        Case("x=2x5x13x37 kernel=3x2 stride=2x1 padding=1x0"),
        Case("x=1x2x3x2 kernel=7 stride=3 padding=3", dtypes=(torch.float32, torch.float16)),  # wider than the image
        Case("x=1x2x12x20 kernel=2x3 stride=4x5", inputs="ties", dtypes=(torch.float16,)),  # rows that no window has
        Case("x=2x2x5x7 kernel=1", dtypes=(torch.float32,)),  # a copy
        Case("x=2x4x9x70 kernel=5 stride=1 padding=2", inputs="masked", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=2x3x17x19 kernel=17x19", inputs="ties", dtypes=(torch.float16,)),  # the whole plane
        Case("x=0x3x8x8 kernel=2"),
        Case("x=1x1x2x700 kernel=2x3 stride=2x2 padding=0x1", dtypes=(torch.float32,)),  # a row beyond a tile
        Case("x=4x3x6x10 kernel=2 stride=1", inputs="tiny", dtypes=(torch.float32, torch.bfloat16)),
        Case("x=2x3x9x12 kernel=3 stride=2 padding=1", inputs="masked"),  # windows of -inf, and the padding beside them
        Case("x=2x8x5x6 kernel=3 stride=2 padding=1 channels-last"),
        Case("x=1x5x5x6 kernel=2 channels-last", dtypes=(torch.float32,)),  # a channel of a thread
        Case("x=1x3x9x20 kernel=2 channels-last", inputs="ties", dtypes=(torch.float16,)),  # channels that fill no word
        Case("x=1x2x40x301 kernel=3 stride=3", inputs="ties", dtypes=(torch.float32,)),  # a plane beyond a block
        Case("x=1x1x4x3001 kernel=3 stride=3", dtypes=(torch.float32,)),  # and three rows
        Case("x=1x1x4099x4099 kernel=2", dtypes=(torch.float16,), tier="full"),  # indices that fp32 does not have
        Case("x=1x1x4100x4100 kernel=2", dtypes=(torch.bfloat16,), tier="full"),  # the same in aligned rows
        Case("x=1x2x5x20000 kernel=3 stride=2 padding=1", tier="full"),
        Case("x=8x64x56x56 kernel=3 stride=2 padding=1", tier="full"),
        Case("x=3x17x55x55 kernel=3 stride=2", inputs="ties", tier="full"),
        Case("x=8x64x65x65 kernel=3 stride=2 padding=1 channels-last", tier="full"),  # several rows of a thread
        Case("x=2x8x300x300 kernel=13 stride=1 padding=6", tier="full"),
        Case("x=3x2x3x2 kernel=2", dtypes=(torch.bfloat16,)),  # a window of each plane
    ),
    workloads=(
        Case("x=32x64x112x112 kernel=3 stride=2 padding=1"),  # ResNet
        Case("x=32x128x112x112 kernel=2", dtypes=(torch.bfloat16,)),  # VGG, U-Net
        Case("x=128x64x55x55 kernel=3 stride=2", dtypes=(torch.bfloat16,)),  # AlexNet: rows of odd length
        Case("x=32x256x40x40 kernel=5 stride=1 padding=2", dtypes=(torch.float16,)),  # pyramids of detectors
    ),
    cost=cost,
    gradient=Composed(("x",), gradient, saves=("index",)),
)
