"""An image as a PNG, without a further library."""

from __future__ import annotations

import struct
import zlib

import torch

from graphtrain.errors import UsageError
from graphtrain.report.logger import Image

_COLOR_TYPES = {1: 0, 3: 2}  # of grey and of colours


def png_of(image: Image) -> bytes:
    """The bytes of a file.

    >>> png_of(Image(torch.zeros(2, 3)))[:4]
    b'\\x89PNG'

    Raises:
        UsageError: its pixels have no such shape or type.
    """
    pixels = image.pixels
    if isinstance(pixels, torch.Tensor) and pixels.ndim == 2:
        pixels = pixels[None]
    if (
        not isinstance(pixels, torch.Tensor)
        or pixels.ndim != 3
        or len(pixels) not in _COLOR_TYPES
        or not pixels.numel()
    ):
        received = f"shape {tuple(pixels.shape)}" if isinstance(pixels, torch.Tensor) else f"a {type(pixels).__name__}"
        raise UsageError(
            f"Image: expected a tensor of shape (height, width), or with 1 or 3 channels first, got {received}",
            "colours come first: pixels.permute(2, 0, 1)",
        )
    if pixels.is_floating_point():
        pixels = (pixels.detach().float().nan_to_num(0.0).clamp(0, 1) * 255).round()
    channels, height, width = pixels.shape
    rows = pixels.detach().cpu().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).reshape(height, width * channels)
    # Each row begins with the number of its filter: none.
    content = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], 1).numpy().tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(content)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
