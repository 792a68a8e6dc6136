"""uvicorn's sans-I/O WebSocket protocol, made safe for peers that read slowly or send too much.

Six things differ from the original:

- A ping that is not answered in time ends the connection only if nothing else moved either: a peer that is still
  sending, or still taking in what we wrote, is alive; its pong merely queues behind the backlog.
- A frame over the size limit is answered with 1009 and then read to its end. Closing with unread bytes would reset the
  connection, and the client would never see the code, nor learn not to send the frame again.
- When the application is done, a peer that does not take in the rest is cut off after ``close_timeout``.
- A connection that ends without a close frame is reported with code 1006; the original says 1005, which is also what a
  peer means that closes without a code.
- A server that leaves while a connection is closing lets it go; the original fails, and the server with it.
- An upgrade that the application answers with an HTTP status is complete; the original logs it as an error.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio.transports import BaseTransport

from uvicorn._types import ASGISendEvent
from websockets.protocol import OPEN

from duologue.realtime.ws_frames import DirectProtocol

UNSENT_LOW_WATER = 128 * 1024
"""Bytes that the kernel may hold unsent per connection. Behind them a ping, or the news of an interruption, waits."""


ABNORMAL = 1006
"""The code for a connection that ended without a close frame (RFC 6455, section 7.4.1)."""


class RealtimeWebSocketProtocol(DirectProtocol):
    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._progress_seen: tuple[int, int] = (0, 0)
        self._abort_timer: asyncio.TimerHandle | None = None
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_LOW_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if self.conn.close_rcvd is None:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": ABNORMAL})
        super().connection_lost(exc)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    # -- slow readers ----------------------------------------------------------------------------------------------

    def send_keepalive_ping(self) -> None:
        super().send_keepalive_ping()
        self._progress_seen = self._progress()

    def keepalive_timeout(self) -> None:
        progress = self._progress()
        if self.read_paused or progress != self._progress_seen:
            self._progress_seen = progress
            assert self.ping_timeout is not None
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self.transport.abort()  # what is buffered would keep a mere close() waiting for ever

    def _progress(self) -> tuple[int, int]:
        """Changes whenever bytes came in, or left the write buffer (the kernel took them, so the peer makes room)."""
        return self.received, self.transport.get_write_buffer_size()

    # -- oversize frames -------------------------------------------------------------------------------------------

    def handle_parser_exception(self) -> None:
        if self.close_sent:
            return
        assert self.conn.close_sent is not None
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)

    def shutdown(self) -> None:
        """The server is leaving. A connection that has begun to close by itself only has to be let go."""
        if self.handshake_complete and self.conn.state is not OPEN:
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()

    # -- peers that do not let go ----------------------------------------------------------------------------------

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self._abort_timer = self.loop.call_later(self.close_timeout, self.transport.abort)
