"""A network that can be cut: a TCP relay between a client and a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class CutLink:
    """Passes bytes on until ``down`` is set; then every connection breaks, and a new one breaks at once."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._down = False
        self._open: set[asyncio.StreamWriter] = set()
        self.address = ""

    @property
    def down(self) -> bool:
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        self._down = down
        if down:
            for writer in self._open:
                writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._down:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        ends = {writer, far_writer}
        self._open |= ends
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass(reader, far_writer))
                group.create_task(_pass(far_reader, writer))
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@asynccontextmanager
async def cut_link(address: str) -> AsyncIterator[CutLink]:
    """A relay to ``HOST:PORT`` on a free port of this machine."""
    host, _, port = address.rpartition(":")
    link = CutLink(host, int(port))
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    link.address = "{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield link
    finally:
        link.down = True
        server.close()
        await server.wait_closed()
