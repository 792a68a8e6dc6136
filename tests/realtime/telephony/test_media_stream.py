"""Telephone calls from the provider's message to the session's events, over the real server with a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx2
import pytest
import websockets
from phone_provider import ULAW_SILENCE, Provider, dialled
from scripted_server import DONE, KEY, ScriptedServer, answer, scripted_server
from session_driver import speech
from waiting import Log

from duologue.codecs import g711
from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import resample
from duologue.engine.deploy.config import TelephonyDeploy
from duologue.engine.requests import AudioDelta, Delta, EngineRequest, TextDelta, Transcribe, TranscriptDelta
from duologue.realtime.gateway import EdgeSettings

HEADERS = {"Authorization": f"Bearer {KEY}"}


def on_the_phone(pcm24k: bytes) -> bytes:
    return g711.encode_ulaw(float_to_pcm16(resample(pcm16_to_float(pcm24k), 24_000, 8_000)))


LOUD, QUIET = on_the_phone(speech(600)), ULAW_SILENCE * 8 * 1000


def tells_stories(request: EngineRequest) -> list[Delta]:
    if isinstance(request.payload, Transcribe):
        return [TranscriptDelta(text="Tell me a story."), DONE]
    return [TextDelta(text="Once upon a time"), *(AudioDelta(pcm=speech(1000)) for _ in range(10))]


class Notices:
    """The operator's service: writes down what it is told, and says ``status``."""

    def __init__(self) -> None:
        self.log: Log[dict[str, Any]] = Log()
        self.status = 200
        self.loop = asyncio.get_running_loop()


@pytest.fixture
async def notices() -> Any:
    return Notices()


@pytest.fixture
def callback_url(notices: Notices) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            notices.loop.call_soon_threadsafe(notices.log.add, body)
            self.send_response(notices.status)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Not on the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/calls"
    server.shutdown()
    thread.join()
    server.server_close()


@asynccontextmanager
async def in_call(
    notices: Notices, callback_url: str, script: Any = answer, **parameters: str
) -> AsyncIterator[tuple[ScriptedServer, Provider, str, Log[dict[str, Any]]]]:
    """A call that has begun, its id, and what a sideband hears of it."""
    edge = EdgeSettings(telephony=TelephonyDeploy(callback_url=callback_url))
    async with scripted_server(script, edge=edge) as server, dialled(server.address) as provider:
        await provider.start(key=KEY, **parameters)
        begun = await notices.log.next(lambda notice: notice["type"] == "call.started")
        assert (begun["stream_sid"], begun["call_sid"]) == ("MZ1", "CA1")
        url = f"{server.ws}?call_id={begun['call_id']}"
        async with websockets.connect(url, additional_headers=HEADERS) as sideband:
            events: Log[dict[str, Any]] = Log()

            async def listen() -> None:
                async for text in sideband:
                    events.add(json.loads(text))

            listening = asyncio.create_task(listen())
            try:
                yield server, provider, begun["call_id"], events
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)


def named(kind: str) -> Any:
    return lambda event: event["type"] == kind


async def test_a_caller_is_heard_and_answered_and_the_keys_pressed_are_told(
    notices: Notices, callback_url: str
) -> None:
    async with in_call(notices, callback_url, instructions="Rhyme.", voice="heart") as (_, provider, _, events):
        created = await events.next(named("session.created"))
        assert created["session"]["instructions"] == "Rhyme."
        await provider.press("7")
        pressed = await events.next(named("input_audio_buffer.dtmf_event_received"))
        assert (pressed["event"], "event_id" in pressed, type(pressed["received_at"])) == ("7", False, int)
        await provider.speak(LOUD + QUIET)
        await events.next(named("input_audio_buffer.speech_started"))
        await events.next(named("output_audio_buffer.started"))
        await events.next(named("output_audio_buffer.stopped"))
        assert len(provider.heard) == pytest.approx(1600, abs=8)
        await provider.stop()
        ended = await notices.log.next(named("call.ended"))
        assert ended["ended_by"] == "caller"


async def test_a_caller_who_interrupts_is_listened_to_and_the_answer_is_cut_to_what_was_heard(
    notices: Notices, callback_url: str
) -> None:
    async with in_call(notices, callback_url, tells_stories) as (_, provider, _, events):
        await provider.speak(LOUD + QUIET)
        await provider.until_heard(350)
        await provider.speak(LOUD)
        truncated = await events.next(named("conversation.item.truncated"))
        cleared = await events.next(named("output_audio_buffer.cleared"))
        await asyncio.sleep(0.1)  # an order to clear that did not come would let the story go on
        heard_ms = len(provider.heard) / 8
        assert truncated["audio_end_ms"] == pytest.approx(heard_ms, abs=100)
        assert (provider.cleared, cleared["response_id"] != "") == (1, True)


async def test_a_call_is_hung_up_over_http(notices: Notices, callback_url: str) -> None:
    async with in_call(notices, callback_url) as (server, provider, call_id, _):
        async with httpx2.AsyncClient(headers=HEADERS) as client:
            reply = await client.post(f"{server.http}/realtime/calls/{call_id}/hangup")
        assert reply.status_code == 200
        await asyncio.wait_for(provider.socket.wait_closed(), 10)
        assert (await notices.log.next(named("call.ended")))["ended_by"] == "server"


@pytest.mark.parametrize(("status", "answered"), [(200, 200), (409, 502)])
async def test_a_call_is_passed_on_if_the_operator_agrees(
    notices: Notices, callback_url: str, status: int, answered: int
) -> None:
    async with in_call(notices, callback_url) as (server, _, call_id, _):
        notices.status = status
        async with httpx2.AsyncClient(headers=HEADERS) as client:
            route = f"{server.http}/realtime/calls/{call_id}/refer"
            reply = await client.post(route, json={"target_uri": "tel:+15550100"})
        asked = await notices.log.next(named("call.transfer"))
        assert (reply.status_code, asked["target_uri"]) == (answered, "tel:+15550100")


START = {"event": "start", "streamSid": "MZ1", "start": {"customParameters": {"key": KEY}}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"event": "media", "streamSid": "MZ1", "media": {"payload": "//8="}}, "begins with 'start'"),
        ({**START, "start": {}}, "'key'"),
        ({**START, "start": {"customParameters": {"key": "wrong"}}}, "'key'"),
        ({**START, "start": {**START["start"], "mediaFormat": {"encoding": "audio/opus"}}}, "audio/x-mulaw"),  # type: ignore[dict-item]
        ({**START, "start": {"customParameters": {"key": KEY, "model": "nothing"}}}, "nothing"),
    ],
)
async def test_what_cannot_be_served_is_closed_with_the_reason(message: dict[str, Any], said: str) -> None:
    async with scripted_server() as server, dialled(server.address) as provider:
        await provider.say(message)
        await asyncio.wait_for(provider.socket.wait_closed(), 10)
        assert provider.socket.close_code == 1008
        assert said in str(provider.socket.close_reason)


async def test_what_is_no_message_is_left_out_and_the_call_goes_on(notices: Notices, callback_url: str) -> None:
    async with in_call(notices, callback_url) as (_, provider, _, events):
        await provider.socket.send("{")
        await provider.socket.send(b"\x00\xff")
        await provider.say({"event": "media", "streamSid": "MZ1", "media": {"payload": "?", "timestamp": "-1"}})
        await provider.say({"event": "news"})
        await provider.press("X")
        await provider.press("#")
        assert (await events.next(named("input_audio_buffer.dtmf_event_received")))["event"] == "#"


async def test_a_hole_in_the_callers_sound_keeps_its_length(notices: Notices, callback_url: str) -> None:
    async with in_call(notices, callback_url) as (_, provider, _, events):
        await provider.speak(LOUD)
        provider.skip(900)
        await provider.speak(ULAW_SILENCE * 160 * 2)
        stopped = await events.next(named("input_audio_buffer.speech_stopped"))
        assert stopped["audio_end_ms"] == pytest.approx(600, abs=700)
