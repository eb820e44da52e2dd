"""Tiles of `_specialised`: places, which are a box of images, rows and columns, by channels of the result."""

from __future__ import annotations

from math import gcd, prod

from kernelmux.backends.triton._launch.launch import Config, Ints, cdiv, plan, processors
from kernelmux.backends.triton.conv2d._boxes import boxes, covering
from kernelmux.backends.triton.conv2d._maps import turned
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, planes

# Places and channels, and products per microsecond of one SM: H200, fp16, 32x256x56x56 by 256x256x3x3. Of tiles of 192 and
# 96 channels, and of 256 places, bf16: 16x96x57x57 by 192x96x5x5 takes 101 us with 128 x 192, 168 with 128 x 256, its
# gradient 111 with 256 x 96, 124 with 128 x 96, 138 with 128 x 128. The gradient of 26x320x224x25 by 640x320x3x3 675 with
# 128 x 320, 834 with 128 x 160, 1022 with 128 x 192, cuDNN 757; 4x640x64x64 by 320x640x3x3 86.8 with 128 x 320, 204 with
# 128 x 256; 16x160x56x56 by 160x160x3x3 48.4 with 128 x 160, 69.7 with 128 x 192;
# 64 of 3x3 on 32x64x56x56, fp16, 27.4 with 256 x 64, 28.3 with 128 x 64, 31.9 with 256 x 96.
TILES = (
    (128, 320, 3.15e6),
    (128, 256, 2.9e6),
    (128, 192, 2.75e6),
    (128, 160, 2.6e6),
    (128, 128, 2.75e6),
    (256, 128, 2.85e6),
    (256, 96, 2.3e6),
    (64, 256, 2.7e6),
    (64, 128, 2.15e6),
    (128, 96, 2.1e6),
    (256, 64, 1.8e6),
    (128, 64, 1.7e6),
    (64, 64, 1.55e6),
    (128, 32, 1.0e6),
)
RING = 192 * 1024  # bytes of shared memory
# What an SM writes to contiguous images per us: sectors of 32 bytes, and elements one by one.
SECTORS, ELEMENTS = 2500.0, 40000.0
PASS, MEMORY = 3.0, 4.2e6  # us of a launch that turns a result, and bytes per us


def _writing(p: ConvolutionProblem, box: Ints) -> float:
    """Microseconds for an element of planes. H200, us: 256 of 3x3 on 32x256x57x57 takes 246 with boxes 64 columns wide,
    as channels-last images and a pass 270, with boxes a column wide 420."""
    if p.y.strides[1] == 1:
        return 0.0
    unit = gcd(p.lengths[2], box[2], VECTOR)
    return (1.0 if unit == VECTOR else 1.5) / min(box[2], 2 * VECTOR) / SECTORS + 1 / unit / ELEMENTS


def _best(p: ConvolutionProblem) -> tuple[float, int, int, Ints]:
    """The least time in microseconds of whole rounds of all SMs, and its places, channels and box."""
    out_channels, sms = p.y.shape[1], processors(p.device)

    def timed(places: int, o: int, rate: float) -> tuple[float, int, int, Ints]:
        def each(box: Ints) -> float:
            return 1 + places * o * (p.terms / rate + _writing(p, box))

        found = [(1, 1, places)] if turned(p) else boxes(places)
        box = min(found, key=lambda box: covering(box, p.lengths) * each(box))
        return cdiv(covering(box, p.lengths) * cdiv(out_channels, o), sms) * each(box), places, o, box

    return min((timed(*tile) for tile in TILES), key=lambda found: found[0])


def rule(p: ConvolutionProblem) -> Config:
    """The tile with which whole rounds of all SMs take the least time. H200, fp16, 32x256x56x56 by 256x256x3x3: 157 us,
    178 with boxes that do not end where the rows do, cuDNN 161."""
    channels = p.weight.shape[1]
    _, places, o, box = _best(p)
    whole = p.windows[1].stride > 1  # behind the channels of a phase of columns lie those of the next one
    steps = (k for k in (64, 32, 16) if not whole or channels % k == 0)
    k = min(steps, key=lambda k: cdiv(channels, k) * (k + 16))
    return {**tile_config(places, o, k), "BOX": box}


def tile_config(places: int, o: int, k: int) -> Config:
    """A tile with as many stages as fit. Of o = 320, 192, 160 or 96 channels the last ones are a product of their own."""
    main = 1 << (o.bit_length() - 1)
    return {
        "PLACES": places, "BLOCK_O": main, "SIDE": o - main, "BLOCK_K": k,
        "STAGES": min(12, RING // ((places + o) * k * 2)),
    }  # fmt: skip


@plan
def in_planes(p: ConvolutionProblem) -> ConvolutionProblem | None:
    """That with y in planes, if this takes less time than a pass that turns channels-last images. H200, us: the gradient
    of 20x128x224x224, 3x3, dilation 2, 541 and 652; 64 of 3x3 on 1x128x56x97 14.6 and 17.3; as 256 of 3x3 on
    32x256x56x56, 213 and 211, it loses where boxes are narrow and tiles take long."""
    found = p._replace(y=planes(p.y.shape)).in_rows
    turning = PASS + 2 * prod(p.y.shape) * p.dtype.itemsize / MEMORY
    return found if _best(found)[0] <= _best(p.in_line)[0] + turning else None
