"""Sharing a screen, in Chromium: another tab is shared, and what the model is shown is that tab."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from pathlib import Path

import pytest
from chromium import FAKE_DEVICES, chromium
from demo_page import DemoPage, demo_page
from PIL import Image, ImageStat
from playwright.async_api import Page, Route, expect
from scripted_server import KEY, ScriptedServer

from duologue.engine.requests import Converse

from .conftest import OpenPage

TITLE = "what is shared"
SHARE = (FAKE_DEVICES[0], f"--auto-select-tab-capture-source-by-title={TITLE}")
"""A microphone and a camera, and the browser's question about sharing answered with the tab of that title."""

REFUSE = (FAKE_DEVICES[0], "--use-fake-ui-for-media-stream=deny")
RED, BLUE, GREEN = (255, 0, 0), (0, 0, 255), (0, 128, 0)

SENT = "() => demo.session.link.pictures.sender.track?.readyState === 'live'"
NOT_SENT = "() => demo.session.link.pictures.sender.track === null"

LATE_SHARES = """() => {
  // Each share is granted when the test says so.
  window.shares = [];
  navigator.mediaDevices.getDisplayMedia = () => new Promise((grant) => {
    const stream = document.createElement('canvas').captureStream();
    window.shares.push({ stream, grant: () => grant(stream) });
  });
}"""

REFUSED_SHARE = """() => {
  const refusal = new DOMException('Permission denied', 'NotAllowedError');
  navigator.mediaDevices.getDisplayMedia = () => Promise.reject(refusal);
}"""

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def seeing(scripted: ScriptedServer) -> ScriptedServer:
    """A server whose model takes images."""
    pipeline = scripted.engine.pipeline
    scripted.engine.pipeline = replace(pipeline, capabilities=replace(pipeline.capabilities, image_in=True))
    return scripted


def page_of(server: ScriptedServer) -> str:
    return f"http://{server.address}/#key={KEY}"


def seen(server: ScriptedServer) -> list[tuple[int, ...]]:
    """The mean colours of the pictures that the language model was shown last, in the order of their coming."""
    payloads = [stream.request.payload for stream in server.engine.streams]
    last = next(payload for payload in reversed(payloads) if isinstance(payload, Converse))
    pictures = [picture for message in last.messages for picture in message.images]
    return [tuple(map(round, ImageStat.Stat(Image.open(io.BytesIO(one.data))).mean)) for one in pictures]


def is_like(colour: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(abs(one - another) < 60 for one, another in zip(colour, other, strict=True))


class Talk:
    """Typed questions, one after the other, and their answers."""

    def __init__(self, demo: DemoPage, server: ScriptedServer) -> None:
        self._demo = demo
        self._server = server
        self._asked = 0

    async def ask(self) -> None:
        words = f"Question {self._asked}"
        await self._demo.say(words)
        assert await self._demo.said("bot", self._asked) == f"You said: {words}"
        self._asked += 1

    async def until_seen(self, colour: tuple[int, ...]) -> None:
        """Ask until the newest picture that the model is shown has that colour: one is sampled in a second."""
        for _ in range(10):
            await self.ask()
            pictures = seen(self._server)
            if pictures and is_like(pictures[-1], colour):
                return
            await self._demo.page.wait_for_timeout(300)  # not at once again, since a frame is on its way
        raise AssertionError(f"the model was shown {pictures}, not {colour}")


async def share(demo: DemoPage, colour: str) -> Page:
    """Press the button, and another tab of that colour is shared."""
    tab = await demo.page.context.new_page()
    await tab.set_content(f"<title>{TITLE}</title><body bgcolor={colour}>")
    await demo.page.bring_to_front()
    await demo.page.click("#camera")
    return tab


async def test_the_model_sees_the_tab_that_is_shared_until_the_share_ends(
    seeing: ScriptedServer, microphone: Path
) -> None:
    async with (
        chromium(microphone, SHARE) as browser,
        demo_page(browser, page_of(seeing), permissions=["microphone"]) as demo,
    ):
        talk = Talk(demo, seeing)
        await demo.start("webrtc")
        await demo.mute(True)
        await talk.ask()
        assert seen(seeing) == []
        await demo.page.select_option("#picture", label="Screen")
        tab = await share(demo, "red")
        await talk.until_seen(RED)
        await tab.evaluate("() => { document.body.bgColor = 'blue'; }")
        await talk.until_seen(BLUE)
        preview = demo.page.locator("#preview")
        await expect(preview).to_be_visible()
        await expect(preview).to_have_css("transform", "none")  # words on it can be read
        await demo.page.wait_for_function(SENT)

        await tab.close()  # ends the share as the browser's own "Stop sharing" does
        await expect(preview).to_be_hidden()
        await expect(demo.page.locator("#camera")).to_have_attribute("aria-pressed", "false")
        await demo.page.wait_for_function(NOT_SENT)
        await expect(demo.page.locator("#problem")).to_be_hidden()
        await talk.ask()  # the call goes on

        await share(demo, "green")  # and so may another share in it
        await talk.until_seen(GREEN)


async def test_a_refused_share_is_explained_and_the_conversation_goes_on(seeing: ScriptedServer) -> None:
    async with chromium(devices=REFUSE) as refusing, demo_page(refusing, page_of(seeing)) as demo:
        await demo.page.click("#start")
        await demo.until_problem("microphone-refused")
        await demo.page.click("#problem-action")
        await demo.until_state("Connected")
        await demo.page.select_option("#picture", label="Screen")
        await demo.page.click("#camera")
        await demo.until_problem("no-screen")
        await expect(demo.page.locator("#problem")).to_contain_text("The screen is not shared")
        await expect(demo.page.locator("#camera")).to_have_attribute("aria-pressed", "false")
        await expect(demo.page.locator("#preview")).to_be_hidden()
        await demo.until_state("Connected")
        await Talk(demo, seeing).ask()


@pytest.mark.parametrize("sees", [True, False])
async def test_a_share_that_begins_while_the_call_comes_about_is_sent_or_refused_in_words(
    scripted: ScriptedServer, seeing: ScriptedServer, open_page: OpenPage, sees: bool
) -> None:
    if not sees:
        pipeline = scripted.engine.pipeline
        scripted.engine.pipeline = replace(pipeline, capabilities=replace(pipeline.capabilities, image_in=False))
    offered, shared = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        offered.set()
        await shared.wait()
        await route.continue_()

    async with open_page(page_of(seeing)) as demo:
        await demo.page.route("**/v1/realtime/calls*", hold)
        await demo.page.select_option("#picture", label="Screen")
        await demo.page.click("#start")
        await offered.wait()
        await demo.page.click("#camera")
        await expect(demo.page.locator("#preview")).to_be_visible()
        await expect(demo.page.locator("#problem")).to_be_hidden()  # nothing is known of the server yet
        shared.set()
        await demo.until_state("Connected")
        if sees:
            await demo.page.wait_for_function(SENT)
        else:
            await demo.until_problem("no-picture")


async def test_a_refused_share_leaves_the_camera_on(seeing: ScriptedServer, open_page: OpenPage) -> None:
    async with open_page(page_of(seeing)) as demo:
        await demo.start("webrtc")
        await demo.page.click("#camera")
        await demo.page.wait_for_function("() => document.getElementById('preview').videoWidth > 0")
        await demo.page.evaluate(REFUSED_SHARE)
        await demo.page.select_option("#picture", label="Screen")
        await demo.until_problem("no-screen")
        await expect(demo.page.locator("#picture")).to_have_value("")  # the camera that is on
        await expect(demo.page.locator("#camera")).to_have_attribute("aria-pressed", "true")
        await demo.page.wait_for_function(SENT)
        await expect(demo.page.locator("#preview")).not_to_have_css("transform", "none")  # as in a mirror


async def test_a_share_that_was_given_up_before_it_was_granted_is_stopped(
    seeing: ScriptedServer, open_page: OpenPage
) -> None:
    async with open_page(page_of(seeing)) as demo:
        await demo.start("webrtc")
        await demo.page.evaluate(LATE_SHARES)
        await demo.page.select_option("#picture", label="Screen")
        await demo.page.click("#camera")
        await demo.page.click("#camera")  # again, since nothing was to be seen
        states = "() => window.shares.map(({ stream }) => stream.getVideoTracks()[0].readyState)"
        await demo.page.evaluate("() => window.shares[1].grant()")
        await expect(demo.page.locator("#preview")).to_be_visible()
        await demo.page.evaluate("() => window.shares[0].grant()")
        await demo.page.wait_for_function("() => window.shares[0].stream.getVideoTracks()[0].readyState === 'ended'")
        assert await demo.page.evaluate(states) == ["ended", "live"]
        await demo.page.click("#camera")
        assert await demo.page.evaluate(states) == ["ended", "ended"]
        await demo.page.wait_for_function(NOT_SENT)
