"""The WebSocket as a transport: handshake, frames and their limits, closing, peers that misbehave."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from typing import Any

import pytest
import websockets

from duologue.realtime import wire
from duologue.realtime.websocket import WebSocketTransport
from duologue.sessions import client_events as ce
from duologue.sessions import server_events as se
from duologue.sessions.manager import CapacityError


def error_event(text: str) -> se.ErrorEvent:
    return se.ErrorEvent(event_id="e", error=se.ErrorBody(type="invalid_request_error", message=text))


async def echo(transport: WebSocketTransport, model: str | None) -> None:
    """Answer each event with one that says what it was."""
    while (event := await transport.receive()) is not None:
        match event:
            case ce.InvalidEvent(error=error):
                await transport.send([error_event(f"{error.code}: {error.message}")])
            case ce.InputAudioAppend(audio=audio):
                await transport.send([error_event(f"{len(audio)} bytes")])
            case _:
                await transport.send([error_event(type(event).__name__)])


async def idle(transport: WebSocketTransport, model: str | None) -> None:
    while await transport.receive() is not None:
        pass


async def answer(connection: Any) -> str:
    return json.loads(await connection.recv())["error"]["message"]


# -- handshake ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("query", "model"), [("", None), ("?model=gpt-realtime", "tiny"), ("?model=tiny", "tiny")])
async def test_the_model_of_the_url_is_resolved_and_may_be_missing(serve: Any, query: str, model: str | None) -> None:
    async with serve(echo) as edge:
        async with edge.connect(query) as connection:
            await connection.send('{"type":"response.cancel"}')
            assert await answer(connection) == "ResponseCancel"
        assert edge.sessions.served == [model]


@pytest.mark.parametrize(
    ("query", "model", "kind"),
    [
        ("?intent=transcription", None, "transcription"),
        ("?intent=transcription&model=whisper", "whisper", "transcription"),
        ("?intent=realtime", None, None),
    ],
)
async def test_the_intent_says_what_the_session_is_for(serve: Any, query: str, model: str | None, kind: str) -> None:
    async with serve(echo) as edge:
        async with edge.connect(query) as connection:
            await connection.send('{"type":"response.cancel"}')
            await answer(connection)
        assert (edge.sessions.served, edge.sessions.openings[0].type) == ([model], kind)


async def say_something(transport: WebSocketTransport, model: str | None) -> None:
    place = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
    await transport.send([se.OutputAudioDone(event_id="e", **place)])
    await echo(transport, model)


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", {"additional_headers": {"OpenAI-Beta": "realtime=v1"}}),
        ("", {"subprotocols": ["realtime", "openai-beta.realtime-v1"]}),
        ("?dialect=beta", {}),
    ],
)
async def test_fc_073_the_handshake_selects_the_beta_dialect(serve: Any, query: str, options: dict[str, Any]) -> None:
    async with serve(say_something) as edge, edge.connect(query, **options) as connection:
        assert json.loads(await connection.recv())["type"] == "response.audio.done"
        await connection.send('{"type":"session.update","session":{"voice":"alloy"}}')
        assert await answer(connection) == "SessionUpdate"


async def test_fc_073_ga_names_are_the_default(serve: Any) -> None:
    async with serve(say_something) as edge, edge.connect() as connection:
        assert json.loads(await connection.recv())["type"] == "response.output_audio.done"


@pytest.mark.parametrize(
    ("query", "options", "code", "words"),
    [
        ("?model=gpt-9", {}, "model_not_found", "tiny"),
        ("?intent=transcription&model=tiny", {}, "model_not_found", "whisper"),
        ("?intent=translation", {}, "duologue.unsupported_intent", "translation"),
        ("?call_id=rtc_1", {}, "call_id_not_found", "rtc_1"),
        ("?extensions=telepathy", {}, "duologue.unsupported_extension", "telepathy"),
        ("?resume=nothing&after=0", {}, "duologue.resume_unknown", "token"),
        ("?resume=nothing&after=x", {}, "invalid_value", "after"),
    ],
)
async def test_what_is_not_served_is_refused_by_an_event_and_a_close_reason(
    serve: Any, query: str, options: dict[str, Any], code: str, words: str
) -> None:
    async with serve(echo) as edge, edge.connect(query, **options) as connection:
        event = json.loads(await connection.recv())
        assert (event["type"], event["error"]["code"]) == ("error", code)
        assert words in event["error"]["message"]
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await connection.recv()
        assert closed.value.rcvd.code == 1008
        assert event["error"]["message"].startswith(closed.value.rcvd.reason)
        assert edge.sessions.served == []


async def test_before_ready_when_draining_and_when_full_the_upgrade_is_refused_with_503(serve: Any) -> None:
    async def refusal(edge: Any) -> dict[str, Any]:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await edge.connect()
        response = refused.value.response
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        return json.loads(response.body)["error"]

    async with serve(echo, opened=False) as edge:
        assert (await refusal(edge))["code"] == "duologue.not_ready"
        edge.gateway.open(edge.sessions)
        edge.sessions.room = False
        assert (await refusal(edge))["code"] == "duologue.capacity"
        edge.sessions.room = True
        edge.gateway.draining = True
        assert (await refusal(edge))["code"] == "duologue.going_away"
        edge.gateway.draining = False
        async with edge.connect():
            pass


async def test_a_session_that_finds_no_room_after_the_upgrade_is_closed_with_1013(serve: Any) -> None:
    async def full(transport: WebSocketTransport, model: str | None) -> None:
        raise CapacityError("all seats are taken")

    async with serve(full) as edge, edge.connect() as connection:
        assert json.loads(await connection.recv())["error"]["code"] == "duologue.capacity"
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await connection.recv()
        assert closed.value.rcvd.code == 1013


async def test_fc_142_compression_is_off_even_if_the_client_offers_it(serve: Any) -> None:
    async with serve(echo) as edge, edge.connect(compression="deflate") as connection:
        assert "sec-websocket-extensions" not in connection.response.headers


# -- frames ------------------------------------------------------------------------------------------------------------


async def test_bad_frames_become_errors_and_the_session_goes_on(serve: Any) -> None:
    async with serve(echo) as edge, edge.connect() as connection:
        for frame, words in (
            ("garbage", "not valid JSON"),
            ('{"type":"nonsense"}', "Unknown event type 'nonsense'"),
            (b'{"type":"response.cancel"}', "Binary frames"),
            ('{"type":"input_audio_buffer.append","audio":"%"}', "base64"),
        ):
            await connection.send(frame)
            assert words in await answer(connection)
        await connection.send('{"type":"response.cancel"}')
        assert await answer(connection) == "ResponseCancel"


async def test_fc_134_a_legal_append_of_15_mib_passes_and_a_frame_above_the_soft_limit_gets_an_error(
    serve: Any,
) -> None:
    audio = base64.b64encode(bytes(wire.MAX_APPEND_BYTES)).decode()
    async with serve(echo) as edge, edge.connect() as connection:
        await connection.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        assert await answer(connection) == f"{15 * 2**20} bytes"
        await connection.send(json.dumps({"type": "session.update", "session": {"instructions": "x" * (22 * 2**20)}}))
        assert str(wire.MAX_EVENT_CHARACTERS) in await answer(connection)
        await connection.send('{"type":"response.cancel"}')
        assert await answer(connection) == "ResponseCancel"


@pytest.mark.parametrize("fragments", [1, 40])
async def test_fc_137_a_frame_above_the_hard_limit_is_closed_with_1009_that_names_it(
    serve: Any, fragments: int
) -> None:
    piece = " " * (40 * 2**20 // fragments)
    async with serve(echo) as edge:
        connection = await edge.connect()
        sending = asyncio.ensure_future(connection.send(piece if fragments == 1 else [piece] * fragments))
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await connection.recv()
        await asyncio.wait({sending})
        assert closed.value.rcvd.code == 1009
        assert str(wire.MAX_FRAME_BYTES) in closed.value.rcvd.reason
        async with edge.connect() as again:
            await again.send('{"type":"response.cancel"}')
            assert await answer(again) == "ResponseCancel"


async def test_a_burst_of_events_arrives_in_order(serve: Any) -> None:
    async with serve(echo) as edge, edge.connect() as connection:
        for size in range(300):
            audio = base64.b64encode(bytes(size)).decode()
            await connection.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        assert [await answer(connection) for _ in range(300)] == [f"{size} bytes" for size in range(300)]


# -- closing -----------------------------------------------------------------------------------------------------------


async def test_the_session_closes_with_its_code_and_a_reason_cut_to_fit(serve: Any) -> None:
    async def expire(transport: WebSocketTransport, model: str | None) -> None:
        await transport.send([error_event("last words")])
        await transport.close(1001, "ü" * 100)
        await transport.close(1011, "twice is harmless")
        await transport.send([error_event("too late: dropped")])
        assert await transport.receive() is None

    async with serve(expire) as edge, edge.connect() as connection:
        assert await answer(connection) == "last words"
        with pytest.raises(websockets.ConnectionClosed):
            await connection.recv()
        assert (connection.close_code, connection.close_reason) == (1001, "ü" * 61)


async def test_a_session_that_ends_by_itself_closes_with_1000(serve: Any) -> None:
    async def brief(transport: WebSocketTransport, model: str | None) -> None:
        await transport.send([error_event("bye")])

    async with serve(brief) as edge, edge.connect() as connection:
        assert [json.loads(frame)["error"]["message"] async for frame in connection] == ["bye"]
        assert connection.close_code == 1000


async def test_a_session_that_fails_says_so_and_closes_with_1011(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(transport: WebSocketTransport, model: str | None) -> None:
        raise RuntimeError("a bug with a secret in its text")

    async with serve(broken) as edge, edge.connect() as connection:
        event = json.loads(await connection.recv())
        assert event["error"]["type"] == "server_error"
        assert "secret" not in event["error"]["message"]
        with pytest.raises(websockets.ConnectionClosed):
            await connection.recv()
        assert connection.close_code == 1011
    assert "session failed" in caplog.text


async def test_a_peer_that_vanishes_ends_receive_and_makes_send_harmless(serve: Any) -> None:
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def outlive(transport: WebSocketTransport, model: str | None) -> None:
        assert await transport.receive() is None
        assert await transport.receive() is None
        await transport.send([error_event("nobody hears this")])
        await transport.close(1000, "")
        ended.set_result(True)

    async with serve(outlive) as edge:
        async with edge.connect() as connection:
            connection.transport.abort()
        assert await asyncio.wait_for(ended, 5)


# -- slow readers ------------------------------------------------------------------------------------------------------


async def test_fc_131_what_a_silent_reader_leaves_unread_is_bounded_and_then_arrives_whole(serve: Any) -> None:
    chunk, count = "x" * 60_000, 1000
    accepted = 0
    stalled = asyncio.Event()

    async def pour(transport: WebSocketTransport, model: str | None) -> None:
        nonlocal accepted
        for _ in range(count):
            sending = asyncio.ensure_future(transport.send([error_event(chunk)]))
            done, _ = await asyncio.wait({sending}, timeout=0.5)
            if not done:
                stalled.set()
            await sending
            accepted += 1

    async with serve(pour) as edge:
        narrow = socket.create_connection(edge.address.split(":"))
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        async with edge.connect(sock=narrow, max_queue=1) as connection:
            await asyncio.wait_for(stalled.wait(), 20)
            assert accepted < count / 4  # 60 MB are on their way; at most 15 MB of them have left the session
            for _ in range(count):
                assert await answer(connection) == chunk


async def test_a_peer_that_never_reads_cannot_hold_a_closing_session(serve: Any) -> None:
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def pour_then_close(transport: WebSocketTransport, model: str | None) -> None:
        pouring = asyncio.ensure_future(transport.send([error_event("x" * 60_000)] * 1000))
        await transport.receive()
        pouring.cancel()
        await transport.close(1001, "going away")
        ended.set_result(True)

    async with serve(pour_then_close) as edge, edge.connect(max_queue=1, ping_interval=None) as connection:
        await connection.send('{"type":"response.cancel"}')
        assert await asyncio.wait_for(ended, 10)
        connection.transport.abort()
