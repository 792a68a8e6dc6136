"""The client against real WebSockets: what it sends, how it reads, how it fails."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from duologue.realtime.bench.loopback import LoopbackServer
from duologue.realtime.client import (
    ClientError,
    ConnectionLost,
    RealtimeClient,
    ServerRefused,
    ServerUnreachable,
    encode_client_event,
    with_model,
)
from duologue.realtime.event_log import EventLog, load_audio, load_entries, without_media
from duologue.sessions.client_events import ItemCreate, ResponseCancel, SessionUpdate
from duologue.sessions.items import InputText, MessageItem

CREATED = '{"type":"session.created","event_id":"e1","session":{"id":"sess_1"}}'
Script = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script, **options: Any) -> AsyncIterator[str]:
    async with serve(script, "127.0.0.1", 0, **options) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/v1/realtime"


def says(*frames: str) -> Script:
    async def script(connection: ServerConnection) -> None:
        for frame in frames:
            await connection.send(frame)

    return script


async def collected(url: str, **options: Any) -> tuple[list[Any], EventLog]:
    log = EventLog()
    async with await RealtimeClient.connect(url, log=log, **options) as client:
        return [received async for received in client], log


# -- connecting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "model", "expected"),
    [
        ("ws://h/v1/realtime", None, "ws://h/v1/realtime"),
        ("ws://h/v1/realtime", "a b", "ws://h/v1/realtime?model=a+b"),
        ("ws://h/v1/realtime?model=x&dialect=beta", "y", "ws://h/v1/realtime?dialect=beta&model=y"),
    ],
)
def test_the_model_is_put_into_the_query(url: str, model: str | None, expected: str):
    assert with_model(url, model) == expected


async def test_key_and_model_reach_the_server():
    seen: list[Any] = []

    async def script(connection: ServerConnection) -> None:
        seen.append((connection.request.path, connection.request.headers.get("Authorization")))

    async with scripted(script) as url:
        await collected(url, model="m", api_key="k")
        await collected(url)
    assert seen == [("/v1/realtime?model=m", "Bearer k"), ("/v1/realtime", None)]


async def test_no_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServerUnreachable, match=f"no server answers at ws://127.0.0.1:{port}"):
        await RealtimeClient.connect(f"ws://127.0.0.1:{port}/v1/realtime")


async def test_an_address_that_is_none():
    with pytest.raises(ServerUnreachable):
        await RealtimeClient.connect("http://127.0.0.1/v1/realtime")


async def test_a_refused_key_is_told():
    def refuse(connection: ServerConnection, request: Any) -> Any:
        return connection.respond(HTTPStatus.UNAUTHORIZED, "no")

    async with scripted(says(), process_request=refuse) as url:
        with pytest.raises(ServerRefused, match=r"HTTP 401 \(is the API key right"):
            await RealtimeClient.connect(url)


async def test_configure_gives_the_effective_session():
    async with LoopbackServer() as server, await RealtimeClient.connect(server.url) as client:
        patch = {"audio": {"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}}}
        session = await client.configure(patch)
        assert session.interrupt_response is False
        assert session.audio["input"]["turn_detection"]["silence_duration_ms"] == 500


async def test_a_refused_session_is_told_in_the_servers_words():
    error = '{"type":"error","event_id":"e2","error":{"type":"invalid_request_error","message":"Unknown voice."}}'

    async def script(connection: ServerConnection) -> None:
        await connection.send(CREATED)
        await connection.recv()
        await connection.send(error)

    async with scripted(script) as url, await RealtimeClient.connect(url) as client:
        with pytest.raises(ServerRefused, match="Unknown voice"):
            await client.configure({})


async def test_a_server_that_closes_before_the_session_is_set_up():
    async with scripted(says(CREATED)) as url, await RealtimeClient.connect(url) as client:
        with pytest.raises(ConnectionLost):
            await client.configure({})


# -- sending -----------------------------------------------------------------------------------------------------------


def test_nulls_at_the_top_are_left_out_and_inner_ones_are_kept():
    assert json.loads(encode_client_event(ResponseCancel())) == {"type": "response.cancel"}
    update = SessionUpdate(session={"audio": {"input": {"turn_detection": None}}})
    assert json.loads(encode_client_event(update))["session"] == {"audio": {"input": {"turn_detection": None}}}
    item = MessageItem(role="user", content=(InputText(text="é"),))
    assert json.loads(encode_client_event(ItemCreate(item=item)))["item"]["content"] == [
        {"type": "input_text", "text": "é"}
    ]


async def test_audio_goes_out_as_base64_text_frames_and_starts_the_input_clock():
    frames: list[Any] = []

    async def script(connection: ServerConnection) -> None:
        frames.append(await connection.recv())

    ticks = iter([10.0, 10.5])
    async with scripted(script) as url:
        client = await RealtimeClient.connect(url, clock=lambda: next(ticks))
        async with client:
            await client.append(b"\x01\x00\x02\x00", due=9.98)
            assert [received async for received in client] == []
    assert json.loads(frames[0]) == {
        "type": "input_audio_buffer.append",
        "audio": base64.b64encode(b"\x01\0\x02\0").decode(),
    }
    (entry,) = client.log.entries()
    assert (entry.dir, entry.t_s, entry.due_s) == ("c2s", 0.0, -0.02)
    assert entry.event == {"type": "input_audio_buffer.append", "bytes": 4}


# -- receiving ---------------------------------------------------------------------------------------------------------


async def test_events_are_stamped_and_audio_is_decoded_and_kept_out_of_the_log(tmp_path: Path):
    pcm = bytes(range(8))
    delta = json.dumps(
        {"type": "response.output_audio.delta", "response_id": "r", "delta": base64.b64encode(pcm).decode()}
    )
    async with scripted(says(CREATED, delta, '{"type":"x.unknown","anything":[1]}')) as url:
        received, log = await collected(url)
    assert [r.message.type for r in received] == ["session.created", "response.output_audio.delta", "x.unknown"]
    assert (received[1].audio, received[1].audio_bytes) == (pcm, 8)
    assert received[0].at <= received[1].at <= received[2].at
    log.save(tmp_path)
    entries = load_entries(tmp_path)
    assert entries[1].event == {"type": "response.output_audio.delta", "response_id": "r", "bytes": 8}
    assert entries[2].event == {"type": "x.unknown", "anything": [1]}
    assert len(load_audio(tmp_path)) == 4


@pytest.mark.parametrize("frame", ["{", "[]", '{"no":"type"}', '{"type":"response.output_audio.delta","delta":"!"}'])
async def test_a_malformed_event_is_an_error(frame: str):
    async with scripted(says(frame)) as url:
        with pytest.raises(ClientError, match="malformed event"):
            await collected(url)


async def test_a_broken_connection_says_how_it_ended():
    async def script(connection: ServerConnection) -> None:
        await connection.close(1011, "engine failed")

    async with scripted(script) as url:
        with pytest.raises(ConnectionLost, match=r"code 1011, engine failed"):
            await collected(url)


async def test_sending_on_a_closed_connection_is_a_client_error():
    async with scripted(says()) as url, await RealtimeClient.connect(url) as client:
        assert [received async for received in client] == []
        with pytest.raises(ConnectionLost):
            await client.append(b"\0\0")


async def test_who_has_hung_up_says_nothing_more_and_that_is_no_error():
    hung_up = asyncio.Event()
    late: list[str | bytes] = []

    async def script(connection: ServerConnection) -> None:
        await connection.send(CREATED)
        # What is sent while the close is on its way still arrives.
        await hung_up.wait()
        await connection.send('{"type":"response.created","response":{"id":"R"}}')
        late.extend([frame async for frame in connection])

    async with scripted(script) as url, await RealtimeClient.connect(url) as client:
        events = aiter(client)
        await anext(events)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        await client.send(ResponseCancel())
        await client.append(bytes(960))
        hung_up.set()
        await closing
        await client.append(bytes(960))
    assert late == []
    assert [(entry.dir, entry.event["type"]) for entry in client.log.entries()] == [
        ("s2c", "session.created"),
        ("note", "connection.hung_up"),
    ]


def test_media_is_replaced_at_any_depth():
    event = {
        "item": {"content": [{"type": "input_audio", "audio": base64.b64encode(b"12345").decode()}]},
        "audio": {"a": 1},
    }
    assert without_media(event) == {"item": {"content": [{"type": "input_audio", "bytes": 5}]}, "audio": {"a": 1}}
