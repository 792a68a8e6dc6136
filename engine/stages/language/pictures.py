"""Opening the pictures of a conversation."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from duologue.engine.requests import ImagePart

if TYPE_CHECKING:
    from PIL.Image import Image


def opened(part: ImagePart) -> Image:
    """The picture as RGB. Raises ``ValueError`` for one that cannot be read."""
    from PIL import Image

    try:
        return Image.open(io.BytesIO(part.data)).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"A picture of type {part.media_type} cannot be read: {error}") from error
