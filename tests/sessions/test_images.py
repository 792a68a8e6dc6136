"""Pictures that a client shows: what is accepted, what the model gets, what is kept."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from pictures import data_url, jpeg, png
from session_driver import Driver

from duologue.engine.requests import Finished, ImagePart, Usage
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.effects import EngineOutput
from duologue.sessions.items import Content, InputImage, InputText, MessageItem

SMALL = png(3, 2)


def show(driver: Driver, *content: Content, item_id: str = "seen", role: Any = "user") -> list[events.ServerEvent]:
    item = MessageItem(id=item_id, role=role, content=content)
    return driver.do(client.ItemCreate(item=item, event_id="create"))


def image(data: bytes = SMALL, media_type: str = "image/png", **fields: Any) -> InputImage:
    return InputImage(image_url=data_url(data, media_type), **fields)


def test_words_and_pictures_reach_the_model_in_their_order() -> None:
    driver = Driver(takes_images=True)
    picture = jpeg(64, 48)
    show(driver, InputText(text="Look:"), image(picture, "image/jpeg", detail="low"), InputText(text="what is it?"))
    driver.do(client.ResponseCreate())
    message = driver.asked().messages[-1]
    shown = ImagePart(data=picture, media_type="image/jpeg", detail="low")
    assert message.content == ("Look:", shown, "what is it?")


def test_a_picture_alone_is_a_message() -> None:
    driver = Driver(takes_images=True)
    show(driver, image())
    driver.do(client.ResponseCreate())
    assert driver.asked().messages[-1].content == (ImagePart(data=SMALL, media_type="image/png", detail="auto"),)


def test_the_picture_is_echoed_and_retrieved() -> None:
    driver = Driver(takes_images=True)
    part = image(detail="high")
    added, done = show(driver, part)
    (retrieved,) = driver.do(client.ItemRetrieve(item_id="seen"))
    for event in (added, done, retrieved):
        assert event.item.content == (part,)  # type: ignore[attr-defined]


def test_pictures_in_the_input_of_a_response_are_seen_there_and_nowhere_else() -> None:
    driver = Driver(takes_images=True)
    content = [{"type": "input_image", "image_url": data_url(SMALL)}]
    message = {"type": "message", "role": "user", "content": content}
    driver.do(client.ResponseCreate(response={"conversation": "none", "input": [message]}))
    assert len(driver.asked().messages[-1].images) == 1
    assert len(driver.machine.conversation) == 0


HUGE = png(20_000, 20_000, pixels=b"")


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("https://example.com/cat.png", "nothing is fetched"),
        ("data:image/gif;base64,R0lGODlh", "nothing is fetched"),
        ("data:image/png," + "00", "nothing is fetched"),
        ("", "nothing is fetched"),
        ("data:image/png;base64,****", "base64"),
        ("data:image/png;base64,", "neither a PNG nor a JPEG"),
        ("data:image/png;base64,ä", "base64"),
        (data_url(b"GIF89a" + bytes(40)), "neither a PNG nor a JPEG"),
        (data_url(SMALL[:20]), "without its header"),
        (data_url(SMALL, "image/jpeg"), "is said to be image/jpeg"),
        (data_url(HUGE), "20000 x 20000 pixels"),
        (data_url(SMALL + bytes(2000)), "larger than 1000 bytes"),
    ],
)
def test_what_is_no_acceptable_picture_is_refused_by_field_and_rule(url: str, rule: str) -> None:
    driver = Driver(takes_images=True, limits=Limits(max_image_bytes=1000))
    (error,) = show(driver, InputText(text="Look"), InputImage(image_url=url))
    assert isinstance(error, events.ErrorEvent)
    assert error.error.param == "item.content[1].image_url"
    assert (error.error.code, error.error.event_id) == ("invalid_value", "create")
    assert rule in error.error.message
    assert len(driver.machine.conversation) == 0


def test_a_picture_without_an_image_is_missing_something() -> None:
    driver = Driver(takes_images=True)
    (error,) = show(driver, InputImage())
    assert isinstance(error, events.ErrorEvent)
    assert (error.error.code, error.error.param) == ("missing_required_parameter", "item.content[0].image_url")


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_only_the_user_shows_pictures(role: str) -> None:
    driver = Driver(takes_images=True)
    (error,) = show(driver, image(), role=role)
    assert isinstance(error, events.ErrorEvent)
    assert error.error.param == "item.content[0].type"


def test_the_pictures_of_a_message_have_a_limit_together() -> None:
    driver = Driver(takes_images=True, limits=Limits(max_image_bytes=2 * len(SMALL)))
    (error,) = show(driver, image(), image(), image())
    assert isinstance(error, events.ErrorEvent)
    assert error.error.param == "item.content"
    assert len(show(driver, image(), image())) == 2


@pytest.mark.parametrize("limits", [Limits(kept_images=2), Limits(kept_image_bytes=2 * len(SMALL))])
def test_kept_pictures_are_bounded_the_oldest_goes_first(limits: Limits) -> None:
    driver = Driver(takes_images=True, limits=limits)
    for item_id in ("a", "b", "c"):
        show(driver, InputText(text=item_id), image(), item_id=item_id)
    kept = []
    for item_id in ("a", "b", "c"):
        (retrieved,) = driver.do(client.ItemRetrieve(item_id=item_id))
        kept.append(isinstance(retrieved.item.content[1].image_url, str))  # type: ignore[attr-defined]
    assert kept == [False, True, True]
    driver.do(client.ResponseCreate())
    assert [len(message.images) for message in driver.asked().messages[1:]] == [0, 1, 1]


def test_pictures_take_room_in_the_context() -> None:
    driver = Driver(takes_images=True, limits=Limits(context_tokens=500))
    for item_id in ("a", "b"):
        show(driver, InputText(text=item_id), image(), item_id=item_id)
    driver.do(client.ResponseCreate())
    assert [message.text for message in driver.asked().messages[1:]] == ["b"]


def test_pictures_are_counted_as_the_model_counts_them() -> None:
    driver = Driver(takes_images=True)
    show(driver, InputText(text="Look"), image())
    driver.do(client.ResponseCreate())
    request_id = driver.write("A square.")
    usage = Usage(input_tokens=100, image_input_tokens=85, cached_tokens=40, output_tokens=3)
    driver.do(EngineOutput(request_id, Finished(reason="completed", usage=usage)))
    said = driver.last(events.ResponseDone).response.usage
    assert said is not None
    details = said.input_token_details
    assert (details.text_tokens, details.image_tokens, details.cached_tokens) == (15, 85, 40)
    cached = details.cached_tokens_details
    assert (cached.text_tokens, cached.audio_tokens, cached.image_tokens) == (15, 0, 25)


def test_what_is_kept_is_what_was_sent() -> None:
    driver = Driver(takes_images=True)
    show(driver, image(SMALL))
    (retrieved,) = driver.do(client.ItemRetrieve(item_id="seen"))
    url = retrieved.item.content[0].image_url  # type: ignore[attr-defined]
    assert base64.b64decode(url.partition(",")[2]) == SMALL
