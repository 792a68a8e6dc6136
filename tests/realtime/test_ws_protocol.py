"""The WebSocket protocol's own decisions, with a transport and a clock that do what the test says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from scripted_socket import UPGRADE, ScriptedLoop, ScriptedTransport
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from duologue.realtime.ws_protocol import RealtimeWebSocketProtocol


def masked(opcode: Opcode, payload: bytes) -> bytes:
    return Frame(opcode, payload).serialize(mask=True)


class Connection:
    """An accepted WebSocket whose application waits until it is released."""

    def __init__(self) -> None:
        self.loop = ScriptedLoop()
        self.transport = ScriptedTransport()
        self.released = asyncio.Event()
        self.accepted = asyncio.Event()
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            ws_ping_interval=20,
            ws_ping_timeout=40,
            ws_max_size=1000,
            ws_per_message_deflate=False,
        )
        self.protocol = RealtimeWebSocketProtocol(config, ServerState(), {}, _loop=self.loop)  # type: ignore[arg-type]

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        self.accepted.set()
        await self.released.wait()

    async def open(self) -> Connection:
        self.protocol.connection_made(self.transport)
        self.protocol.data_received(UPGRADE)
        await self.accepted.wait()
        self.transport.written = b""
        return self

    def ping_payload(self) -> bytes:
        assert self.protocol.pending_ping_payload is not None
        return self.protocol.pending_ping_payload

    async def end(self) -> None:
        self.released.set()
        await asyncio.gather(*self.protocol.tasks)


@pytest.fixture
async def connection() -> Any:
    opened = await Connection().open()
    yield opened
    await opened.end()


async def test_fc_131_a_peer_that_shows_no_life_is_cut_off_in_time(connection: Connection) -> None:
    connection.transport.unsent = 70_000
    connection.loop.advance(20 + 40 - 0.1)
    assert connection.transport.state == "open"
    connection.loop.advance(0.2)
    assert connection.transport.state == "aborted"


async def test_fc_131_a_peer_that_reads_slowly_is_not_cut_off(connection: Connection) -> None:
    connection.transport.unsent = 70_000
    connection.loop.advance(20)
    for _ in range(10):  # its pong waits behind the backlog for minutes
        connection.transport.unsent -= 5_000
        connection.loop.advance(39)
        assert connection.transport.state == "open"
    connection.protocol.data_received(masked(Opcode.PONG, connection.ping_payload()))
    connection.loop.advance(39)
    assert connection.transport.state == "open"


async def test_fc_131_a_peer_that_sends_but_does_not_read_is_alive(connection: Connection) -> None:
    connection.loop.advance(20)
    for _ in range(10):
        connection.protocol.data_received(masked(Opcode.PING, b""))
        connection.loop.advance(39)
        assert connection.transport.state == "open"


async def test_fc_131_a_peer_is_not_blamed_while_we_do_not_read(connection: Connection) -> None:
    connection.protocol.data_received(masked(Opcode.TEXT, b"{}"))  # nobody takes it: reading is paused
    assert connection.protocol.read_paused
    connection.loop.advance(200)
    assert connection.transport.state == "open"


async def test_fc_137_an_oversize_frame_is_answered_and_then_read_to_its_end(connection: Connection) -> None:
    frame = masked(Opcode.TEXT, bytes(5000))
    connection.protocol.data_received(frame[:2000])
    assert connection.transport.written[2:4] == (1009).to_bytes(2, "big")
    assert connection.transport.state == "half closed"  # closing now would reset the connection under the 1009
    written = connection.transport.written
    connection.protocol.data_received(frame[2000:])
    assert connection.transport.written == written
    connection.loop.advance(connection.protocol.close_timeout)
    assert connection.transport.state == "closing"


async def test_a_peer_that_does_not_take_in_the_rest_is_cut_off_after_the_session(connection: Connection) -> None:
    await connection.end()
    assert connection.transport.state == "closing"
    connection.loop.advance(connection.protocol.close_timeout)
    assert connection.transport.state == "aborted"


async def test_a_server_that_leaves_lets_a_closing_connection_go(connection: Connection) -> None:
    connection.protocol.conn.send_close(1000)
    connection.protocol.shutdown()  # the original raises, and takes the server with it
    assert connection.transport.state == "closing"
