"""What the head of a PNG or JPEG file says, without decoding it: kind and size in pixels.

Whoever decodes a picture from outside looks here first: a file of a few kilobytes may stand for gigabytes of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MediaType = Literal["image/png", "image/jpeg"]

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8"
_STANDALONE: Final = frozenset({0x01, *range(0xD0, 0xD8)})
"""JPEG markers without a length: TEM and RST0 to RST7."""
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of a frame header (SOF0 to SOF15, ITU-T T.81 table B.1)."""


class ImageHeaderError(ValueError):
    """Not a PNG or JPEG, or one whose head is broken; the message says which."""


@dataclass(frozen=True)
class ImageHeader:
    """``width`` and ``height`` in pixels, both at least 1."""

    media_type: MediaType
    width: int
    height: int

    @property
    def pixels(self) -> int:
        return self.width * self.height


def read_image_header(data: bytes) -> ImageHeader:
    """The header of ``data``, a whole file. Raises :class:`ImageHeaderError`."""
    if data.startswith(_PNG):
        header = _png(data)
    elif data.startswith(_JPEG):
        header = _jpeg(data)
    else:
        raise ImageHeaderError("neither a PNG nor a JPEG")
    if header.width < 1 or header.height < 1:
        raise ImageHeaderError("a picture without pixels")
    return header


def _png(data: bytes) -> ImageHeader:
    """Signature, then the chunk IHDR: length 13, type, width and height as 32 bits big-endian (RFC 2083, 4.1.1)."""
    if data[8:16] != b"\x00\x00\x00\x0dIHDR" or len(data) < 33:
        raise ImageHeaderError("a PNG without its header")
    return ImageHeader("image/png", int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"))


def _jpeg(data: bytes) -> ImageHeader:
    """Segments up to the frame header: length, precision, height, width as 16 bits big-endian (ITU-T T.81, B.2.2)."""
    position = 2
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            break
        marker = data[position + 1]
        if marker == 0xFF:  # fill
            position += 1
        elif marker in _STANDALONE:
            position += 2
        elif marker in _FRAMES:
            frame = data[position + 4 : position + 9]
            if len(frame) < 5:
                break
            return ImageHeader("image/jpeg", int.from_bytes(frame[3:5], "big"), int.from_bytes(frame[1:3], "big"))
        elif marker in (0xD8, 0xD9, 0xDA):  # a second start, the end, or the scan: no frame header came
            break
        else:
            length = int.from_bytes(data[position + 2 : position + 4], "big")
            if length < 2:
                break
            position += 2 + length
    raise ImageHeaderError("a JPEG without its frame header")
