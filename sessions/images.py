"""Pictures that a client shows: data URLs, checked before anything decodes them, and kept for a while."""

from __future__ import annotations

import base64
import binascii

from msgspec import UNSET
from msgspec.structs import replace

from duologue.codecs.image_header import ImageHeaderError, read_image_header
from duologue.engine.requests import ImagePart
from duologue.sessions.config import Limits
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import InputImage

_PREFIXES = {
    "data:image/png;base64,": "image/png",
    "data:image/jpeg;base64,": "image/jpeg",
    "data:image/jpg;base64,": "image/jpeg",
}


def picture_of(part: InputImage, limits: Limits, where: str) -> ImagePart:
    """The picture behind a content part that stands in the field ``where``.

    Only its head is read. Raises ``ProtocolError`` that names field and rule.
    """
    param, url = f"{where}.image_url", part.image_url
    if url is UNSET:
        raise ProtocolError("missing_required_parameter", f"Missing required parameter: '{param}'.", param)
    prefix, _, encoded = url.partition(",")
    declared = _PREFIXES.get(prefix.lower() + ",")
    if declared is None:
        message = (
            "A picture is given as 'data:image/png;base64,...' or 'data:image/jpeg;base64,...'; nothing is fetched."
        )
        raise ProtocolError("invalid_value", message, param)
    if len(encoded) * 3 // 4 > limits.max_image_bytes + 2:
        raise ProtocolError("invalid_value", f"The picture is larger than {limits.max_image_bytes} bytes.", param)
    try:
        data = base64.b64decode(encoded, validate=True)
        header = read_image_header(data)
    except (binascii.Error, ValueError) as error:
        what = str(error) if isinstance(error, ImageHeaderError) else "its base64 cannot be decoded"
        raise ProtocolError("invalid_value", f"Not a picture: {what}.", param) from error
    if header.media_type != declared:
        message = f"The picture is said to be {declared} and is {header.media_type}."
        raise ProtocolError("invalid_value", message, param)
    if header.pixels > limits.max_image_pixels:
        message = (
            f"The picture has {header.width} x {header.height} pixels; at most {limits.max_image_pixels} are accepted."
        )
        raise ProtocolError("invalid_value", message, param)
    return ImagePart(data=data, media_type=header.media_type, detail="auto" if part.detail is UNSET else part.detail)


def shown(part: InputImage, picture: ImagePart | None) -> InputImage:
    """``part`` as the wire shows it; without its data once the picture is no longer kept."""
    if picture is None:
        return replace(part, image_url=UNSET)
    return replace(part, image_url=f"data:{picture.media_type};base64,{base64.b64encode(picture.data).decode()}")
