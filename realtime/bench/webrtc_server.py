"""The servers that ``duologue bench webrtc`` compares, each alone in its process.

``aiortc`` is the echo of aiortc's own examples: the incoming track is handed to the sender as it is. ``media`` is the
sound of a duologue call without a session: our jitter buffer and decoder, our queue, encoder and clock; what comes in
goes out. The third, with everything on, is that of ``duologue bench gateway``.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import Any, Final

import uvicorn
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from duologue.realtime.bench.server_process import READY
from duologue.realtime.serve import listen
from duologue.realtime.webrtc.media import IncomingAudio, OutgoingAudio
from duologue.realtime.webrtc.playout_queue import PlayoutQueue

PATH: Final = "/offer"
SERVER: Final = "from duologue.realtime.bench.webrtc_server import main; main({!r})"


class _Echo:
    """Plays back what it hears; nobody is told."""

    def __init__(self) -> None:
        self.queue = PlayoutQueue(self)
        self.outgoing: OutgoingAudio | None = None

    def hear(self, pcm: bytes, rate: int) -> None:
        if self.outgoing is not None:
            self.outgoing.push("response", "item", pcm)

    def on_started(self, response_id: str) -> None:
        """Not wanted."""

    def on_played(self, item_id: str, samples: int) -> None:
        """Not wanted."""

    def on_stopped(self, response_id: str) -> None:
        """Not wanted."""

    def on_cleared(self, response_id: str, item_id: str, samples_played: int) -> None:
        """Not wanted."""


class EchoServer:
    """An ASGI application: the body of a POST is an offer, that of the response the answer."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._calls: dict[int, AsyncExitStack] = {}
        self._numbers = itertools.count()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        answer = await self._answer(body.decode())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/sdp")]})
        await send({"type": "http.response.body", "body": answer.encode()})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for call in list(self._calls.values()):
            await call.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, offer: str) -> str:
        peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        number = next(self._numbers)
        call = self._calls[number] = AsyncExitStack()
        call.push_async_callback(peer.close)
        await peer.setRemoteDescription(RTCSessionDescription(offer, "offer"))
        (transceiver,) = peer.getTransceivers()
        if self._kind == "aiortc":
            peer.addTrack(transceiver.receiver.track)
        else:
            echo = _Echo()
            incoming = IncomingAudio(transceiver, echo.hear)
            echo.outgoing = OutgoingAudio(transceiver, echo.queue)
            call.callback(echo.outgoing.stop)
            listening = asyncio.create_task(incoming.run())
            call.callback(listening.cancel)

        @peer.on("connectionstatechange")
        async def changed() -> None:
            if peer.connectionState in ("failed", "closed") and number in self._calls:
                await self._calls.pop(number).aclose()

        await peer.setLocalDescription(await peer.createAnswer())
        return str(peer.localDescription.sdp)


def main(kind: str) -> None:
    """Serve on a free port until interrupted."""
    with listen("127.0.0.1", 0) as listener:
        print(f"{READY}http://127.0.0.1:{listener.getsockname()[1]}{PATH}", flush=True)
        config = uvicorn.Config(
            EchoServer(kind), loop="uvloop", http="httptools", lifespan="on", log_level="warning", access_log=False
        )
        uvicorn.Server(config).run([listener])
