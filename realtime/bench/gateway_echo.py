"""The floor that ``duologue bench gateway`` compares with: JSON and base64 both ways over a bare WebSocket.

``python -m duologue.realtime.bench.gateway_echo`` decodes every append, and sends its sound back in a delta: the same
libraries as the gateway (uvicorn, ``websockets`` without I/O, msgspec, pybase64) and nothing else.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pybase64
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from duologue.realtime.bench.server_process import READY
from duologue.realtime.serve import listen

PATH = "/echo"


class Append(msgspec.Struct, tag_field="type", tag="input_audio_buffer.append"):
    """What comes in."""

    audio: str


class Delta(msgspec.Struct, tag_field="type", tag="response.output_audio.delta"):
    """What goes out."""

    event_id: str
    delta: str


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The ASGI application."""
    decoder, encoder, number = msgspec.json.Decoder(Append), msgspec.json.Encoder(), 0
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        pcm = pybase64.b64decode(decoder.decode(message["text"]).audio, validate=True)
        number += 1
        delta = Delta(f"event_{number:012x}", pybase64.b64encode(pcm).decode())
        await send({"type": "websocket.send", "text": encoder.encode(delta).decode()})


def main() -> None:
    """Serve on a free port until interrupted."""
    with listen("127.0.0.1", 0) as listener:
        print(f"{READY}ws://127.0.0.1:{listener.getsockname()[1]}{PATH}", flush=True)
        config = uvicorn.Config(
            echo,
            loop="uvloop",
            http="httptools",
            ws=WebSocketsSansIOProtocol,
            ws_per_message_deflate=False,
            lifespan="off",
            log_level="warning",
            access_log=False,
        )
        uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
