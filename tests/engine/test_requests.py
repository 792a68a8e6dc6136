"""Messages of words and pictures."""

from __future__ import annotations

import msgspec
import pytest

from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.requests import ChatMessage, Converse, EngineRequest, ImagePart

PICTURE = ImagePart(data=bytes(range(256)), media_type="image/png", detail="low")


def test_words_and_pictures_keep_their_order() -> None:
    message = ChatMessage.of_parts("user", ["What is", PICTURE, "", "next to this?"])
    assert message.content == ("What is", PICTURE, "next to this?")
    assert message.text == "What is next to this?"
    assert message.images == (PICTURE,)


def test_a_message_of_words_alone_is_the_plain_one() -> None:
    assert ChatMessage.of_parts("user", ["Hello", "there."]) == ChatMessage(role="user", text="Hello there.")
    assert ChatMessage(role="user", text="Hello.").content == ("Hello.",)
    assert ChatMessage(role="assistant", text="").content == ()


def test_a_picture_crosses_to_another_process() -> None:
    message = ChatMessage.of_parts("user", [PICTURE, "What is this?"])
    request = EngineRequest(request_id="r", session_id="s", payload=Converse(messages=(message,)))
    types = PieceTypes()
    buffers, _ = types.encode(request)
    assert types.decode(b"".join(buffers)) == request


def test_a_kind_of_picture_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(msgspec.ValidationError, match="media_type"):
        msgspec.convert({"data": b"", "media_type": "image/gif"}, ImagePart)
