"""The gradient of images by strides through the copy engine (TMA): a product for each phase of them, all in one launch.

Pixels that are equal modulo the stride, a phase, meet every so manieth element of a kernel, and grad_out at neighbouring
places, whose boxes the copy engine brings as it does for `_specialised`. Phases that meet the most elements come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, ring
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, plan, processors
from kernelmux.backends.triton.conv2d._boxes import box_of, covering
from kernelmux.backends.triton.conv2d._maps import map_of
from kernelmux.backends.triton.conv2d._order import channels_first, copies, wanted
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, images
from kernelmux.backends.triton.conv2d._specialised import (
    ALONE,
    LOADER_REGISTERS,
    MULTIPLIER_REGISTERS,
    place_of,
)
from kernelmux.backends.triton.conv2d._stores import pieces_of, store_lines
from kernelmux.backends.triton.conv2d._tiles import RING, TILES
from kernelmux.backends.triton.matmul._epilogue import WholeTensor
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Window
from kernelmux.registry.util.memory_format import format_of

MOST_PHASES = 4096


@gluon.jit
def _phase(i, OVER: gl.constexpr):
    """Of an axis, OVER as the kernel has it: the residue of the i-th phase, the first element of a kernel that it meets,
    how many it meets, and where position 0 meets the first. Phases are in the order of their first elements, those that
    meet none last."""
    TAPS: gl.constexpr = OVER[0]
    STRIDE: gl.constexpr = OVER[1]
    PERIOD: gl.constexpr = STRIDE // OVER[4]
    first = i % PERIOD
    meets = first * OVER[3] + i // PERIOD - OVER[2]
    residue = (meets % STRIDE + STRIDE) % STRIDE
    count = gl.where(i < PERIOD, gl.maximum(TAPS - first + PERIOD - 1, 0) // PERIOD, 0)
    return residue, first, count, (residue - meets) // STRIDE


@gluon.jit
def _work(start, tiles, phases):
    """The tile of this program in the round that begins with tile `start`: from the left and from the right in turn, so
    that the longest of one round and the shortest of the next meet."""
    programs = gl.num_programs(0)
    turned = start // programs % 2 == 1
    index = start + gl.where(turned, programs - 1 - gl.program_id(0), gl.program_id(0))
    return index, index < tiles * phases


@gluon.jit
def _load(
    x_desc, weight_desc, x_ring, weight_ring, full, empty, tiles, images, rows, columns, out_channels, channels,
    H: gl.constexpr, W: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    step = 0
    for start in range(0, tiles * H[1] * W[1], gl.num_programs(0)):
        work, real = _work(start, tiles, H[1] * W[1])
        phase = work // tiles
        n, p, q, o = place_of(work % tiles, images, rows, columns, out_channels, BOX, BLOCK_O, GROUP)
        _, tap_h, count_h, at_h = _phase(phase // W[1], H)
        _, tap_w, count_w, at_w = _phase(phase % W[1], W)
        for i in range(gl.where(real, count_h, 0)):
            p0 = p + at_h - i * (H[3] // H[4])
            r = tap_h + i * (H[1] // H[4])
            for j in range(count_w):
                q0 = q + at_w - j * (W[3] // W[4])
                s = tap_w + j * (W[1] // W[4])
                for c in range(0, channels, BLOCK_K):
                    slot = step % STAGES
                    mbarrier.wait(empty.index(slot), (step // STAGES + 1) & 1)
                    ready = full.index(slot)
                    mbarrier.expect(ready, (BOX[0] * BOX[1] * BOX[2] + BLOCK_O) * BLOCK_K * 2)
                    copy_in(x_desc, [n, p0, q0, c], ready, x_ring.index(slot))
                    copy_in(weight_desc, [c, r, s, o], ready, weight_ring.index(slot))
                    step += 1


@gluon.jit
def _multiply(
    y_ptr, x_ring, weight_ring, y_piece, full, empty, tiles, images, rows, columns, height, width, out_channels, steps,
    H: gl.constexpr, W: gl.constexpr, PART: gl.constexpr, UNIT: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr,
    BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The places from PART * PLACES on of each box. steps: of a single element of a kernel."""
    HELD: gl.constexpr = BOX[0] * BOX[1] * BOX[2]
    PLACES: gl.constexpr = HELD if HELD <= ALONE else HELD // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_O, 16])
    step = 0
    for start in range(0, tiles * H[1] * W[1], gl.num_programs(0)):
        work, real = _work(start, tiles, H[1] * W[1])
        phase = work // tiles
        row, _, count_h, _ = _phase(phase // W[1], H)
        column, _, count_w, _ = _phase(phase % W[1], W)
        many = gl.where(real, count_h * count_w * steps, 0)
        # [PLACES, BLOCK_O]
        acc = gl.zeros([PLACES, BLOCK_O], gl.float32, layout)
        for k in range(many):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
            x = x_ring.index(slot).reshape([HELD, BLOCK_K]).slice(PART * PLACES, PLACES, 0)
            acc = warpgroup_mma(x, weight_ring.index(slot).reshape([BLOCK_K, BLOCK_O]), acc, is_async=True)
            # The product of the step before is done, so its slot may be filled again.
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=many > 0)
        n, p, q, o = place_of(work % tiles, images, rows, columns, out_channels, BOX, BLOCK_O, GROUP)
        until = gl.where(real, images, 0)
        store_lines(
            y_ptr, n, p, q, o, acc, y_piece, until, height, width, out_channels, row, column, H[1], W[1],
            PART, BOX, UNIT,
        )  # fmt: skip


@gluon.jit(do_not_specialize=range(3, 10))
def conv2d_phases_kernel(
    y_ptr, x_desc, weight_desc, images, rows, columns, height, width, out_channels, channels,
    H: gl.constexpr, W: gl.constexpr, UNIT: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """x [N P Q channels], weight [channels R S O], y [N height width O], dense, with the UNIT of `store_lines`. rows,
    columns: of the largest phase. H, W: along each axis the elements of a kernel, stride, padding, dilation, and the
    greatest divisor of stride and dilation, known when this is compiled because much is divided by them."""
    HELD: gl.constexpr = BOX[0] * BOX[1] * BOX[2]
    PARTS: gl.constexpr = 1 if HELD <= ALONE else 2
    boxes = gl.cdiv(images, BOX[0]) * gl.cdiv(rows, BOX[1]) * gl.cdiv(columns, BOX[2])
    tiles = boxes * gl.cdiv(out_channels, BLOCK_O)
    steps = gl.cdiv(channels, BLOCK_K)
    x_ring = ring(x_desc, STAGES)
    weight_ring = ring(weight_desc, STAGES)
    y_pieces = pieces_of(y_ptr, PARTS, HELD // PARTS, BLOCK_O // 2, UNIT)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, PARTS)
    if PARTS == 1:
        gl.warp_specialize(
            [
                (_multiply, (y_ptr, x_ring, weight_ring, y_pieces.index(0), full, empty, tiles, images, rows, columns,
                             height, width, out_channels, steps, H, W, 0, UNIT, BOX, BLOCK_O, BLOCK_K, GROUP, STAGES)),
                (_load, (x_desc, weight_desc, x_ring, weight_ring, full, empty, tiles, images, rows, columns, out_channels,
                         channels, H, W, BOX, BLOCK_O, BLOCK_K, GROUP, STAGES)),
            ],
            [1],
            [LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (y_ptr, x_ring, weight_ring, y_pieces.index(0), full, empty, tiles, images, rows, columns,
                             height, width, out_channels, steps, H, W, 0, UNIT, BOX, BLOCK_O, BLOCK_K, GROUP, STAGES)),
                (_multiply, (y_ptr, x_ring, weight_ring, y_pieces.index(1), full, empty, tiles, images, rows, columns,
                             height, width, out_channels, steps, H, W, 1, UNIT, BOX, BLOCK_O, BLOCK_K, GROUP, STAGES)),
                (_load, (x_desc, weight_desc, x_ring, weight_ring, full, empty, tiles, images, rows, columns, out_channels,
                         channels, H, W, BOX, BLOCK_O, BLOCK_K, GROUP, STAGES)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip


@dataclass(frozen=True)
class FewPhases:
    """Works of all phases together are few enough to be counted."""

    text: str = f"stride[0] * stride[1] <= {MOST_PHASES}"

    def check(self, call: Call) -> str | None:
        """None, or how many phases there are."""
        rows, columns = call.arguments["stride"]
        return None if rows * columns <= MOST_PHASES else f"stride = ({rows}, {columns}), needs {self.text}"


def _lengths(p: ConvolutionProblem) -> Ints:
    """Images, rows and columns of the largest phase."""
    n, h, w = p.lengths
    return n, cdiv(h, p.windows[0].stride), cdiv(w, p.windows[1].stride)


def _taps(w: Window) -> list[int]:
    """Of each phase along an axis, those that meet any: how many elements of a kernel."""
    period = w.stride // gcd(w.stride, w.dilation)
    return [cdiv(w.kernel - i, period) for i in range(min(period, w.kernel))]


def rule(p: ConvolutionProblem) -> Config:
    """The tile with which all phases take the least time."""
    out_channels, channels = p.y.shape[1], p.weight.shape[1]
    lengths, sms = _lengths(p), processors(p.device)
    taps = [h * w for h, w in product(*map(_taps, p.windows))]

    def microseconds(tile: tuple[int, int, float]) -> float:
        places, o, rate = tile
        count = covering(box_of(places, lengths), lengths) * cdiv(out_channels, o)
        tap = places * o * channels / rate
        whole = count * (prod(w.stride for w in p.windows) * (0.5 + places * o / 2**15) + sum(taps) * tap)
        return whole / sms + tap * max(taps) / 2

    places, o, _ = min((t for t in TILES if t[0] <= 128 and t[1] in (64, 128, 256)), key=microseconds)
    k = min((64, 32, 16), key=lambda k: cdiv(channels, k) * (k + 16))
    return {"PLACES": places, "BLOCK_O": o, "BLOCK_K": k, "STAGES": min(12, RING // ((places + o) * k * 2))}


@plan
def phases(p: ConvolutionProblem) -> Launch:
    """The launch, of y, x and weight; y are the images that x are the convolution of."""
    config = dict(rule(p))
    out_channels, channels = p.y.shape[1], p.weight.shape[1]
    places, block_o, block_k = config.pop("PLACES"), config["BLOCK_O"], config["BLOCK_K"]
    lengths = _lengths(p)
    box = box_of(places, lengths)
    maps: tuple[Any, ...] = (
        WholeTensor(),
        map_of(p.x, (*box, block_k), p.dtype),
        map_of(p.weight, (block_k, 1, 1, block_o), p.dtype, True),
    )
    down, across = ((*w, gcd(w.stride, w.dilation)) for w in p.windows)
    works = covering(box, lengths) * cdiv(out_channels, block_o) * prod(w.stride for w in p.windows)
    return Launch(
        conv2d_phases_kernel, (min(processors(p.device), works),), *lengths, *p.lengths[1:], out_channels, channels,
        H=down, W=across, maps=maps, UNIT=gcd(out_channels, VECTOR), BOX=box,
        GROUP=8, num_warps=4, **config,
    )  # fmt: skip


def gradient(grad_out: torch.Tensor, weight: torch.Tensor, shape: Ints, over: tuple[Window, Window]) -> torch.Tensor:
    """Images of this shape in the order of grad_out, computed as channels-last ones."""
    y = torch.empty(shape, dtype=weight.dtype, device=weight.device, memory_format=torch.channels_last)
    if y.numel():
        again = prod(weight.shape[2:]) > 1
        left, right = copies((grad_out, wanted(grad_out, again=again)), (weight, wanted(weight)))
        seen = images(left), images(y), images(right.transpose(0, 1))
        phases(ConvolutionProblem(y.get_device(), y.dtype, *seen, over))(y, left, right)
    return y if format_of(grad_out) == torch.channels_last else channels_first(y)
