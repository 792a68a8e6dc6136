"""The demo page in Chromium against the real server: a real recording speaks, and what the page plays is recognised."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import numpy as np
import pytest
from cut_link import cut_link
from numpy.typing import NDArray
from playwright.async_api import expect
from served import Served

from .conftest import OpenPage

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="session")]

TRANSPORTS = ("websocket", "webrtc")
SENTENCE = {"he", "was", "not", "an", "ill", "disposed", "young", "man"}
STORY = "Tell me a very long story about the sea, the moon and a fisherman."


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_it_hears_a_sentence_and_is_heard_answering(
    transport: str, served: Served, open_page: OpenPage, recognise: Callable[[NDArray[np.float32]], str]
) -> None:
    async with open_page(served.url) as demo:
        await demo.start(transport)
        await demo.record()
        await demo.until_event("input_audio_buffer.speech_stopped")
        await demo.mute(True)  # the recording begins again, and an answer may take its time
        heard = words(await demo.said("you"))
        assert len(SENTENCE & set(heard)) >= 4, heard  # a busy machine loses packets
        answer = words(await demo.said("bot"))
        await demo.until_mood("speaking")
        await demo.until_mood("listening")
        sound = await demo.recorded()
        assert np.abs(sound).max() > 0.05
        recognised = words(recognise(sound[-29 * 16_000 :]))
        common = set(answer) & set(recognised)
        assert len(common) >= 0.6 * len(set(answer)), (answer, recognised)

        # The turn's latency is split into parts that add up to what was heard.
        row = demo.page.locator("#panel-latency tbody tr").last
        *parts, total = [int(cell) for cell in (await row.locator("td").all_inner_texts())]
        assert abs(sum(parts) - total) <= 5
        assert 200 < total < 20_000
        label = await demo.page.get_attribute("#timeline", "aria-label")
        assert label is not None
        assert "The answer was heard after" in label


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_speech_interrupts_the_answer(transport: str, served: Served, open_page: OpenPage) -> None:
    async with open_page(served.url) as demo:
        await demo.start(transport)
        await demo.mute(True)
        await demo.say(STORY)
        await demo.until_mood("speaking")
        await demo.mute(False)
        cut = await demo.until_event("conversation.item.truncated")
        await expect(demo.page.locator("#transcript .bot .tag").first).to_contain_text("interrupted after")
        done = await demo.until_event("response.done")
        if done["response"]["status"] == "cancelled":
            assert done["response"]["status_details"]["reason"] == "turn_detected"
        sent = await demo.events("conversation.item.truncate")
        assert len(sent) == (1 if transport == "websocket" else 0)
        assert cut["audio_end_ms"] > 300
        # Only the part that was heard is left, and no words that were not.
        await demo.page.evaluate(
            "item_id => demo.session.send({ type: 'conversation.item.retrieve', item_id })",
            cut["item_id"],
        )
        item = (await demo.until_event("conversation.item.retrieved"))["item"]
        assert not item["content"][0].get("transcript")
        label = await demo.page.get_attribute("#timeline", "aria-label")
        assert label is not None


async def test_fc_133_the_page_comes_back_by_itself_after_a_dropped_network(
    served: Served, open_page: OpenPage
) -> None:
    address = served.url.removeprefix("http://")
    async with cut_link(address) as link, open_page(f"http://{link.address}", complaints=True) as demo:
        await demo.start("websocket")
        await demo.mute(True)
        await demo.say("What is the capital of France?")
        first = await demo.said("bot")
        link.down = True
        await demo.until_state("Reconnecting")
        await expect(demo.page.locator("#problem")).to_be_visible()
        await asyncio.sleep(5)
        link.down = False
        await demo.until_state("Connected")
        await expect(demo.page.locator("#problem")).to_be_hidden()
        # It is the same session, with its history.
        assert len(await demo.events("session.created")) == 1
        assert len(await demo.events("x.resume.resumed")) == 1
        await demo.say("Thank you.")
        assert await demo.said("bot", 1)
        assert await demo.said("bot", 0) == first


async def test_a_server_that_started_anew_gets_a_new_conversation(served: Served, open_page: OpenPage) -> None:
    async with open_page(served.url) as demo:
        await demo.start("websocket")
        await demo.page.evaluate(
            """() => {
              demo.session.link.token = 'of a session that is over';
              demo.session.link.socket.close(4000);
            }"""
        )
        await expect(demo.page.locator("#transcript .note")).to_contain_text("new conversation")
        await demo.until_state("Connected")
        await demo.say("Hello.")
        assert await demo.said("bot")
