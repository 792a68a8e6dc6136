"""The size of a picture, from the head of its file."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import jpeg, png

from duologue.codecs.image_header import ImageHeader, ImageHeaderError, read_image_header


def test_a_png_says_its_size() -> None:
    assert read_image_header(png(3, 2)) == ImageHeader("image/png", 3, 2)


def test_a_jpeg_says_its_size_after_any_other_segments() -> None:
    assert read_image_header(jpeg(640, 480)) == ImageHeader("image/jpeg", 640, 480)
    assert read_image_header(jpeg(640, 480, frame=0xC2)).width == 640
    exif = b"\xff\xe1" + struct.pack(">H", 2 + 1000) + bytes(1000)
    assert read_image_header(jpeg(7, 9, before=exif + b"\xff\xff")) == ImageHeader("image/jpeg", 7, 9)


def test_a_few_bytes_may_stand_for_gigabytes() -> None:
    assert read_image_header(png(2**31 - 1, 2**31 - 1, pixels=b"")).pixels == (2**31 - 1) ** 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a" + bytes(40),
        b"RIFF\x00\x00\x00\x00WEBPVP8 " + bytes(40),
        png(3, 2)[:20],
        png(0, 2),
        jpeg(0, 2),
        jpeg(3, 2)[:5],
        b"\xff\xd8\xff\xd9" + bytes(20),
        b"\xff\xd8\xff\xda" + jpeg(3, 2)[2:],
        b"\xff\xd8\xff\xe0\x00\x00" + jpeg(3, 2)[2:],
    ],
)
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(ImageHeaderError):
        read_image_header(data)


@given(st.binary(max_size=64), st.sampled_from([png(3, 2), jpeg(3, 2), b""]), st.integers(0, 40))
def test_any_bytes_are_a_header_or_an_error(noise: bytes, base: bytes, cut: int) -> None:
    try:
        header = read_image_header(base[:cut] + noise)
    except ImageHeaderError:
        return
    assert header.pixels > 0


def test_a_decoder_agrees() -> None:
    """The tests' own pictures are pictures for a library that decodes them."""
    import av  # comes with faster-whisper

    with av.open(io.BytesIO(png(64, 48))) as container:
        (frame,) = container.decode(video=0)
    assert (frame.width, frame.height) == (64, 48)
