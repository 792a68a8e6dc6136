"""The page's WebRTC calls, against a server in this process whose model follows a script."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from chromium import INSECURE_HOST
from playwright.async_api import expect
from scripted_server import KEY, ScriptedServer, scripted_server
from turn_server import SECRET, turn_server

from duologue.engine.deploy.config import IceServer, WebRtcDeploy
from duologue.realtime.certificates import self_signed
from duologue.realtime.gateway import EdgeSettings

from .conftest import OpenPage

RELAY_ONLY = """() => {
  const Own = window.RTCPeerConnection;
  window.RTCPeerConnection = class extends Own {
    constructor(configuration) { super({ ...configuration, iceTransportPolicy: 'relay' }); }
  };
}"""

PICTURES_SENT = """async () => [...(await demo.session.link.peer.getStats()).values()].some(
  ({ type, kind, framesSent }) => type === 'outbound-rtp' && kind === 'video' && framesSent > 3)"""

BRIGHTNESS = """() => {
  const context = new OffscreenCanvas(32, 32).getContext('2d');
  context.drawImage(document.getElementById('remote'), 0, 0, 32, 32);
  return context.getImageData(0, 0, 32, 32).data.filter((_, at) => at % 4 === 0).reduce((sum, value) => sum + value, 0);
}"""

SELECTED = """async () => {
  const stats = [...(await demo.session.link.peer.getStats()).values()];
  const { localCandidateId } = stats.find(({ type, nominated, state }) =>
    type === 'candidate-pair' && nominated && state === 'succeeded');
  return stats.filter(({ id }) => id === localCandidateId).map(({ candidateType }) => candidateType);
}"""

pytestmark = pytest.mark.asyncio(loop_scope="session")


def page_of(server: ScriptedServer) -> str:
    return f"http://{server.address}/#key={KEY}"


async def test_fc_158_the_answer_of_a_call_is_played_by_an_element_and_metered(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    async with open_page(page_of(scripted)) as demo:
        await demo.start("webrtc")
        await demo.mute(True)
        await demo.say("Good evening")
        assert await demo.said("bot") == "You said: Good evening"
        await demo.until_event("output_audio_buffer.started")
        # Chromium gives a remote stream's samples away only while an element plays it: the meter proves both.
        await demo.page.wait_for_function("() => demo.turns.lastOutput > 0")
        element = demo.page.locator("#voice")
        assert await element.evaluate("voice => !voice.paused && !voice.muted && voice.srcObject !== null")
        assert await demo.events("response.output_audio.delta") == []


@pytest.mark.parametrize("sees", [False, True])
async def test_fc_154_a_camera_that_comes_later_is_seen_or_refused_in_words(
    scripted: ScriptedServer, open_page: OpenPage, sees: bool
) -> None:
    pipeline = scripted.engine.pipeline
    scripted.engine.pipeline = replace(pipeline, capabilities=replace(pipeline.capabilities, image_in=sees))
    async with open_page(page_of(scripted)) as demo:
        await demo.start("webrtc")
        await demo.page.click("#camera")
        await demo.page.wait_for_function("() => document.getElementById('preview').videoWidth > 0")
        if sees:
            await demo.page.wait_for_function(PICTURES_SENT)
        else:
            await demo.until_problem("no-picture")
            assert not await demo.page.evaluate(PICTURES_SENT)
        assert await demo.page.evaluate("() => demo.session.link.peer.signalingState") == "stable"
        await demo.mute(True)
        await demo.say("Good evening")  # the call is whole
        assert await demo.said("bot") == "You said: Good evening"
        await demo.until_event("output_audio_buffer.stopped", 1)
        # and it stays so while the microphone is gone altogether
        await demo.page.evaluate("() => demo.session.link.useMicrophone(null)")
        await demo.say("Good night")
        assert await demo.said("bot", 1) == "You said: Good night"
        await demo.until_event("output_audio_buffer.stopped", 2)
        assert await demo.page.evaluate("() => demo.session.link.peer.connectionState") == "connected"


async def test_the_servers_video_takes_the_place_of_the_drawn_face(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    async with open_page(page_of(scripted)) as demo:
        await demo.page.check("input[value=websocket]")
        await expect(demo.page.locator("#face")).to_be_disabled()  # pictures come over a call only
        await demo.page.check("input[value=webrtc]")
        await demo.page.select_option("#face", "level_meter")
        await demo.start("webrtc")
        await demo.mute(True)
        await demo.page.wait_for_function("() => document.getElementById('remote').videoWidth > 0")
        await expect(demo.page.locator("#remote")).to_be_visible()
        silent = await demo.page.evaluate(BRIGHTNESS)
        await demo.say("Tell me a story")
        await demo.page.wait_for_function(f"silent => ({BRIGHTNESS})() > 1.2 * silent", arg=silent)  # the bar is up
        await demo.page.click("#interrupt")
        await demo.page.wait_for_function(f"silent => ({BRIGHTNESS})() < 1.1 * silent", arg=silent)
        await demo.page.click("#start")
        await demo.until_state("Not connected")
        await expect(demo.page.locator("#remote")).to_be_hidden()


async def test_another_microphone_is_taken_in_the_middle_of_a_call(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    async with open_page(page_of(scripted)) as demo:
        await demo.start("webrtc")
        choices = demo.page.locator("#microphone option")
        await expect(choices.nth(2)).to_be_attached()
        label = await choices.nth(2).inner_text()
        await demo.page.select_option("#microphone", index=2)
        await demo.page.wait_for_function(
            """label => {
              const [track] = demo.session.microphone.getAudioTracks();
              return track.label === label && demo.session.link.voice.sender.track === track;
            }""",
            arg=label,
        )
        await demo.until_event("input_audio_buffer.speech_stopped")  # it is heard, in the same call
        await demo.mute(True)
        assert await demo.said("bot") == "You said: Hello there."
        assert len(await demo.events("session.created")) == 1


async def test_fc_161_after_a_change_of_network_the_page_joins_the_same_call(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    async with open_page(page_of(scripted)) as demo:
        await demo.start("webrtc")
        await demo.mute(True)
        await demo.say("one")
        assert await demo.said("bot") == "You said: one"
        await demo.until_event("output_audio_buffer.stopped")
        call = "() => demo.session.link.call.id"
        before = await demo.page.evaluate(call)
        await demo.page.evaluate("() => { window.before = demo.session.link.peer; }")
        await demo.page.evaluate("() => window.dispatchEvent(new Event('online'))")
        await demo.page.wait_for_function(
            "() => demo.session.link.peer !== window.before && demo.session.state === 'live'", timeout=60_000
        )
        assert await demo.page.evaluate(call) == before
        await demo.say("two")
        assert await demo.said("bot", 1) == "You said: two"
        await demo.until_event("output_audio_buffer.started", 2)
        assert [text for role, text in scripted.asked() if role == "user"] == ["one", "two"]


async def test_the_page_gathers_with_the_servers_of_the_deployment(open_page: OpenPage, tmp_path: Path) -> None:
    """Everything of the page goes through a real TURN server, with an account that ends by itself."""
    with turn_server(tmp_path, secret=True) as (port, log):
        turn = IceServer(urls=[f"turn:127.0.0.1:{port}?transport=udp"], secret=SECRET)
        edge = EdgeSettings(webrtc=WebRtcDeploy(addresses=["127.0.0.1"], ice_servers=[turn]))
        async with scripted_server(edge=edge) as server, open_page(page_of(server)) as demo:
            await demo.page.evaluate(RELAY_ONLY)
            await demo.start("webrtc")
            (entry,) = await demo.page.evaluate("() => demo.session.link.peer.getConfiguration().iceServers")
            assert entry["urls"] == turn.urls
            assert entry["username"].endswith(":client")
            await demo.mute(True)
            await demo.say("Good evening")
            assert await demo.said("bot") == "You said: Good evening"
            pair = await demo.page.evaluate(SELECTED)
            assert pair == ["relay"]
        assert "ALLOCATE processed, success" in log.read_text()


@pytest.mark.parametrize("transport", ["webrtc", "websocket"])
async def test_from_another_device_the_page_comes_by_https_and_hears(
    transport: str, open_page: OpenPage, tmp_path: Path
) -> None:
    async with scripted_server(certificate=self_signed(tmp_path, [INSECURE_HOST])) as server:
        port = server.address.rpartition(":")[2]
        url = f"https://{INSECURE_HOST}:{port}/#key={KEY}"
        async with open_page(url, ignore_https_errors=True) as demo:  # as somebody does who accepts the certificate
            assert await demo.page.evaluate("() => window.isSecureContext")
            await expect(demo.page.locator("#problem")).to_be_hidden()
            await demo.start(transport)
            await demo.until_event("input_audio_buffer.speech_stopped")
            await demo.mute(True)
            assert await demo.said("you") == "Hello there."
            assert await demo.said("bot") == "You said: Hello there."


async def test_a_server_without_webrtc_is_spoken_to_over_a_websocket(
    scripted: ScriptedServer, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duologue.realtime.webrtc.desk", None)  # as where aiortc is not installed
    async with open_page(page_of(scripted), complaints=True) as demo:
        await demo.page.click("#start")
        await demo.until_state("Connected")
        await expect(demo.page.locator("#transcript .note")).to_contain_text("no WebRTC")
        await expect(demo.page.locator("input[value=websocket]")).to_be_checked()
        await demo.mute(True)
        await demo.say("Good evening")
        assert await demo.said("bot") == "You said: Good evening"
