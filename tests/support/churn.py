"""Many sessions, some of them killed in the middle of an answer, and what a server holds before and after."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import websockets
from prometheus_client.parser import text_string_to_metric_families
from served import Served

DEPLOY = """
duplex_session: {max_sessions: 64}
connectors: {shm: {name: SharedMemoryConnector, extra: {threshold_bytes: 1024}}}
stages:
  - {stage_id: 2, executor: process, output_connectors: {to_stage_3: shm}}  # the talker
"""
"""Speech crosses a process border, in shared memory."""

AT_ONCE = 8
TEXT, SPEECH = "text", "audio"


@dataclass(frozen=True)
class Held:
    """What the server's processes hold together."""

    rss_mib: float
    tasks: int
    threads: int
    files: int
    segments: int
    sessions: int
    requests: int

    @property
    def countable(self) -> tuple[int, ...]:
        """Everything but memory: what must come back exactly."""
        return self.tasks, self.threads, self.files, self.segments, self.sessions, self.requests


def held(served: Served) -> Held:
    """Look at the server's processes, and ask it for its tasks, sessions and requests."""
    text = httpx2.get(f"{served.url}/metrics").text
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    parent = psutil.Process(served.process.pid)
    processes = [parent, *parent.children(recursive=True)]
    return Held(
        rss_mib=sum(process.memory_info().rss for process in processes) / 2**20,
        tasks=int(families["duologue_event_loop_tasks"][0].value),
        threads=sum(process.num_threads() for process in processes),
        files=sum(process.num_fds() for process in processes),
        segments=len(segments_of(parent.pid)),
        sessions=int(families["duologue_sessions_open"][0].value),
        requests=int(sum(sample.value for sample in families["duologue_stage_in_flight"])),
    )


def segments_of(gateway: int) -> list[str]:
    """Names of the shared-memory segments of the run of that gateway process."""
    return [path.name for path in Path("/dev/shm").glob(f"duologue-*.{gateway}.*")]


async def churn(served: Served, sessions: int, killed: int) -> None:
    """Open and close so many sessions, ``AT_ONCE`` at a time; ``killed`` of them, spread evenly, lose their socket in
    the middle of an answer. A quarter of either kind is answered in speech, the others in text."""
    doomed = {n * sessions // killed for n in range(killed)} if killed else set()
    numbers = iter(range(sessions))

    async def caller() -> None:
        for n in numbers:
            await (_killed if n in doomed else _whole)(served, SPEECH if n // 5 % 4 == 3 else TEXT)

    async with asyncio.TaskGroup() as callers:
        for _ in range(AT_ONCE):
            callers.create_task(caller())


async def _whole(served: Served, modality: str) -> None:
    """One short answer, read to its end."""
    async with websockets.connect(served.ws, max_size=None, compression=None) as connection:
        await _ask(connection, modality, "Say yes.", 6)
        done = await _until(connection, "response.done")
        assert done["response"]["status"] in ("completed", "incomplete"), done


async def _killed(served: Served, modality: str) -> None:
    """A long answer, of which the socket takes the first piece and no more."""
    async with websockets.connect(served.ws, max_size=None, compression=None) as connection:
        await _ask(connection, modality, "Tell me a very long story about the sea.", 400)
        await _until(connection, f"response.output_{modality}.delta")
        connection.transport.abort()


async def _ask(connection: websockets.ClientConnection, modality: str, text: str, tokens: int) -> None:
    content = [{"type": "input_text", "text": text}]
    for event in (
        {"type": "session.update", "session": {"type": "realtime", "output_modalities": [modality]}},
        {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}},
        {"type": "response.create", "response": {"max_output_tokens": tokens}},
    ):
        await connection.send(json.dumps(event))


async def _until(connection: websockets.ClientConnection, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while (event := json.loads(await connection.recv()))["type"] != kind:
            assert event["type"] != "error", event
        return event


def settled(served: Served, before: Held, patience_s: float = 15.0) -> Held:
    """What is held once everything countable is back, or what is still held when patience is over."""
    deadline = time.monotonic() + patience_s
    while (now := held(served)).countable != before.countable and time.monotonic() < deadline:
        time.sleep(0.1)  # nothing tells from outside that a process has let go
    return now
