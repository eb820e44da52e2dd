"""Where in an output the error is: error / bound over its last two axes, as a PNG of a cell per block of elements."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass

import torch

ROWS, COLUMNS = 64, 128  # cells at most
WITHIN = ((226, 232, 240), (59, 130, 246))  # colours of no error, and of one that uses all of its bound
BEYOND = ((250, 204, 21), (185, 28, 28))  # just beyond the bound, and LARGEST times beyond
ODD = (147, 51, 234)  # NaN or an infinity where there should be none, or none where there should be one
LARGEST = 1e6


@dataclass(frozen=True)
class ErrorMap:
    """png: of a picture as text for a data URI. shape: cells. each: elements per cell. over: which axes, in words."""

    png: str
    rows: int
    columns: int
    each: tuple[int, int]
    over: str


def draw(got: torch.Tensor, want: torch.Tensor, limit: torch.Tensor) -> ErrorMap | None:
    """The map of an output; None for one without elements. Of the axes before the last two the worst counts."""
    if not got.numel():
        return None
    share = _share(got.double(), want, limit)
    plane = share.reshape(-1, *_last_two(share)).amax(0)
    each = (-(-plane.shape[0] // ROWS), -(-plane.shape[1] // COLUMNS))
    cells = _blocks(plane, each)
    before = f", the worst of {share.numel() // plane.numel()}" if share.numel() > plane.numel() else ""
    names = f"axis {got.dim() - 2} (down), axis {got.dim() - 1} (across)" if got.dim() > 1 else "axis 0 (across)"
    return ErrorMap(_png(_coloured(cells)), cells.shape[0], cells.shape[1], each, names + before)


def _share(got: torch.Tensor, want: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """error / bound; infinite where one of the two is not finite and they differ."""
    same = (got == want) | (got.isnan() & want.isnan())
    found = (got - want).abs() / limit
    return torch.where(same, 0.0, found.nan_to_num(nan=torch.inf, posinf=torch.inf))


def _last_two(x: torch.Tensor) -> tuple[int, int]:
    return (x.shape[-2], x.shape[-1]) if x.dim() > 1 else (1, x.numel())


def _blocks(plane: torch.Tensor, each: tuple[int, int]) -> torch.Tensor:
    """The largest share of each block of elements."""
    down, across = (-n % e for n, e in zip(plane.shape, each, strict=True))
    padded = torch.nn.functional.pad(plane, (0, across, 0, down))
    rows, columns = padded.shape[0] // each[0], padded.shape[1] // each[1]
    return padded.reshape(rows, each[0], columns, each[1]).amax((1, 3))


def _coloured(cells: torch.Tensor) -> torch.Tensor:
    """[rows columns 3] bytes: light to blue up to the bound, yellow to red beyond it by orders of magnitude."""
    beyond = (cells.clamp(1, LARGEST).log10() / torch.log10(torch.tensor(LARGEST))).unsqueeze(-1)
    inside = _between(WITHIN, cells.clamp(0, 1).unsqueeze(-1))
    colours = torch.where(cells.unsqueeze(-1) <= 1, inside, _between(BEYOND, beyond))
    return torch.where(cells.isinf().unsqueeze(-1), torch.tensor(ODD).double(), colours).to(torch.uint8)


def _between(ends: tuple[tuple[int, int, int], tuple[int, int, int]], share: torch.Tensor) -> torch.Tensor:
    first, last = (torch.tensor(end, dtype=torch.float64) for end in ends)
    return first + (last - first) * share


def _png(pixels: torch.Tensor) -> str:
    """A PNG of 8-bit RGB in base64: signature, header, the rows (each behind a filter of 0), end."""
    rows, columns, _ = pixels.shape
    raw = b"".join(b"\0" + bytes(row.reshape(-1).tolist()) for row in pixels)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
