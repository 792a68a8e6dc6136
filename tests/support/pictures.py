"""Small pictures, and heads of pictures that would be large."""

from __future__ import annotations

import base64
import io
import struct
import zlib


def png(width: int, height: int, pixels: bytes | None = None) -> bytes:
    """A valid grey PNG. ``pixels`` stands in for its image data, so that a size can be claimed and not delivered."""
    rows = zlib.compress((b"\x00" + b"\x80" * width) * height) if pixels is None else pixels
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def jpeg(width: int, height: int, *, frame: int = 0xC0, before: bytes = b"") -> bytes:
    """The head of a baseline JPEG (``frame``: another kind); ``before`` stands before its frame header."""
    jfif = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    start = bytes([0xFF, frame]) + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    return b"\xff\xd8" + jfif + before + start + b"\xff\xd9"


def coloured(colour: tuple[int, int, int], kind: str = "PNG") -> bytes:
    """An encoded picture of one colour with a black corner."""
    from PIL import Image

    image = Image.new("RGB", (20, 16), colour)
    image.paste((0, 0, 0), (0, 0, 6, 6))
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
