"""One session, or a few, for an hour: whether the server grows.

The caller talks as long as it is told to, in real time: two rounds with a voice, one without. So one answer in three is
heard to its end and the others are interrupted and truncated, which is what leaves things behind if anything does. The
oldest items are deleted; now and then one is retrieved with its sound.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psutil
import yaml

from duologue.realtime.bench.clock import MonotonicClock, PacedSender
from duologue.realtime.bench.gateway_run import GatewayOptions, with_cores
from duologue.realtime.bench.gateway_signal import CHUNK_BYTES, CHUNK_S, SAMPLE_RATE, loop
from duologue.realtime.bench.server_process import own_server
from duologue.realtime.client import RealtimeClient, Received
from duologue.realtime.event_log import EventLog
from duologue.sessions.client_events import ItemDelete, ItemRetrieve, ItemTruncate

PIPELINE: Final = "duologue.realtime.bench.gateway_stages:PIPELINE"
ANSWER_S: Final = 3.0
KEPT_ITEMS: Final = 30
"""Items that the caller leaves in the conversation."""
RETRIEVE_EVERY: Final = 7
SAMPLE_S: Final = 5.0
WARM_UP: Final = 0.25
"""Share of the run that is left out: caches fill, and the conversation reaches its length."""
PLATEAU_KIB: Final = 2048
"""Growth after the warm-up that passes as none: an allocator's slack."""


class Sample(msgspec.Struct, frozen=True):
    """The server's process at one moment."""

    t_s: float
    rss_kib: int
    cpu_s: float
    threads: int
    files: int


class LongReport(msgspec.Struct, frozen=True):
    """What happened, and what the server held on to."""

    minutes: float
    sessions: int
    turns: int
    answers: dict[str, int]
    """Responses by their final status."""
    truncated: int
    deleted: int
    retrieved: int
    errors: list[str]
    cpu_percent: float
    """Processor time of the server's process, 100 is one core."""
    rss_kib_after_warm_up: int
    """Median of the tenth of the run after the warm-up."""
    rss_kib_at_end: int
    """Median of the last tenth."""
    kib_per_minute: float
    """Slope of the line through all samples after the warm-up (least squares)."""
    threads: tuple[int, int]
    """After the warm-up, at the end."""
    files: tuple[int, int]
    plateau: bool
    """Whether memory, threads and open files stayed where they were."""
    samples: list[Sample]


def write_deploy(folder: Path, options: GatewayOptions, answer_s: float, max_duration_s: float = 3600.0) -> Path:
    """The deploy file of the scripted engine: the speaker in a process of its own, on the clients' cores."""
    slots = max(options.max_sessions, options.sessions) + 8
    stages: list[dict[str, Any]] = [
        {"stage_id": 1, "engine_args": {"seconds": answer_s}},
        {
            "stage_id": 2,
            "executor": "process",
            "max_num_seqs": slots,
            "engine_args": {"cores": list(options.client_cores)},
        },
    ]
    content = {
        "pipeline": PIPELINE,
        "duplex_session": {"max_sessions": slots, "speculate": False},
        "limits": {"max_duration_s": max_duration_s},
        "stages": stages,
    }
    path = folder / "deploy.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


class Forgetful(EventLog):
    """A log that keeps nothing: an hour of sound is 170 MB."""

    def sent(self, event: dict[str, Any], at: float, due: float | None = None) -> None:
        """Nothing."""

    def received(self, event: dict[str, Any], at: float, audio: bytes = b"") -> None:
        """Nothing."""


class Talk:
    """The loop for so long, as a source of paced sound; every third round is silent."""

    def __init__(self, seconds: float) -> None:
        self._chunks = loop()
        self._left = round(seconds / CHUNK_S)
        self._next = 0

    def take(self, samples: int) -> bytes | None:
        """See :class:`~duologue.realtime.bench.clock.AudioSource`; always 20 ms."""
        if self._left <= 0:
            return None
        self._left -= 1
        round_, place = divmod(self._next, len(self._chunks))
        self._next += 1
        return bytes(CHUNK_BYTES) if round_ % 3 == 2 else self._chunks[place]


class Counts:
    """What all callers saw."""

    def __init__(self) -> None:
        self.turns = self.truncated = self.deleted = self.retrieved = 0
        self.answers: dict[str, int] = {}
        self.errors: list[str] = []


class LongCaller:
    """One session, from its first chunk to its last."""

    def __init__(self, client: RealtimeClient, counts: Counts) -> None:
        self._client = client
        self._counts = counts
        self._items: deque[str] = deque()
        self._speaking: tuple[str, float] | None = None
        """The item that is being played and when its sound began to arrive."""
        self._received_s = 0.0
        self._number = 0

    async def run(self, seconds: float) -> None:
        """Talk, and react to what comes."""
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(self._listen(), name="listen")
            await PacedSender(self._client.append, MonotonicClock()).run(Talk(seconds))
            await self._client.close()
            await listening

    async def _listen(self) -> None:
        async for received in self._client:
            await self._take(received)

    async def _take(self, received: Received) -> None:
        message, counts = received.message, self._counts
        match message.type:
            case "response.output_audio.delta":
                if self._speaking is None or self._speaking[0] != message.item_id:
                    self._speaking, self._received_s = (str(message.item_id), received.at), 0.0
                self._received_s += received.audio_bytes / 2 / SAMPLE_RATE
            case "input_audio_buffer.speech_started":
                counts.turns += 1
                await self._stop_playing(received.at)
            case "input_audio_buffer.committed" | "response.output_audio.done":
                await self._keep_few(str(message.item_id))
            case "response.done" if message.response is not None:
                status = str(message.response.status)
                counts.answers[status] = counts.answers.get(status, 0) + 1
                if status == "completed":
                    self._speaking = None
            case "error" if message.error is not None:
                counts.errors.append(str(message.error.message))

    async def _stop_playing(self, now: float) -> None:
        """The user speaks: say how much of the answer was heard."""
        if self._speaking is None:
            return
        (item_id, began), self._speaking = self._speaking, None
        heard_ms = int(min(now - began, self._received_s) * 1000)
        self._counts.truncated += 1
        await self._client.send(ItemTruncate(item_id=item_id, content_index=0, audio_end_ms=heard_ms))

    async def _keep_few(self, item_id: str) -> None:
        self._items.append(item_id)
        self._number += 1
        if self._number % RETRIEVE_EVERY == 0:
            self._counts.retrieved += 1
            await self._client.send(ItemRetrieve(item_id=self._items[0]))
        while len(self._items) > KEPT_ITEMS:
            self._counts.deleted += 1
            await self._client.send(ItemDelete(item_id=self._items.popleft()))


async def run_long(
    minutes: float, sessions: int, options: GatewayOptions, on_sample: Callable[[float, Sample], None]
) -> LongReport:
    """Start a server, talk to it for so many minutes, watch it. Raises ``ServerUnreachable``, ``ClientError``.

    ``on_sample`` is told how far the run is (0 to 1) and the latest sample.
    """
    options, counts, seconds = with_cores(options), Counts(), minutes * 60
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="duologue-bench-") as name:
        folder = Path(name)
        deploy = write_deploy(folder, options, ANSWER_S, max_duration_s=seconds + 600)
        async with own_server(deploy, folder / "server.log", cores=options.server_cores) as server:
            watch = asyncio.create_task(_watch(server.pid, seconds, samples, on_sample), name="watch")
            try:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(sessions):
                        client = await RealtimeClient.connect(server.url, log=Forgetful())
                        tasks.create_task(LongCaller(client, counts).run(seconds), name="caller")
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
    return summary(minutes, sessions, counts, samples)


async def _watch(pid: int, seconds: float, samples: list[Sample], on_sample: Callable[[float, Sample], None]) -> None:
    process, began = psutil.Process(pid), time.monotonic()
    every = min(SAMPLE_S, seconds / 40)
    while True:
        now = time.monotonic() - began
        times = process.cpu_times()
        rss, cpu = process.memory_info().rss // 1024, round(times.user + times.system, 2)
        samples.append(Sample(round(now, 2), rss, cpu, process.num_threads(), process.num_fds()))
        on_sample(min(1.0, now / seconds), samples[-1])
        await asyncio.sleep(every)


def summary(minutes: float, sessions: int, counts: Counts, samples: list[Sample]) -> LongReport:
    """The report of a run. Pure."""
    after = samples[int(len(samples) * WARM_UP) :]
    tenth = max(1, len(samples) // 10)
    early, late = after[:tenth], after[-tenth:]
    before, end = (int(np.median([sample.rss_kib for sample in part])) for part in (early, late))
    times, sizes = np.array([s.t_s for s in after]) / 60, np.array([s.rss_kib for s in after])
    slope = float(np.polyfit(times, sizes, 1)[0]) if len(after) > 1 else 0.0
    threads = (max(s.threads for s in early), max(s.threads for s in late))
    files = (max(s.files for s in early), max(s.files for s in late))
    took = samples[-1].t_s - samples[0].t_s
    return LongReport(
        minutes=minutes,
        sessions=sessions,
        turns=counts.turns,
        answers=counts.answers,
        truncated=counts.truncated,
        deleted=counts.deleted,
        retrieved=counts.retrieved,
        errors=counts.errors[:20],
        cpu_percent=round(100 * (samples[-1].cpu_s - samples[0].cpu_s) / took, 2) if took else 0.0,
        rss_kib_after_warm_up=before,
        rss_kib_at_end=end,
        kib_per_minute=round(slope, 2),
        threads=threads,
        files=files,
        plateau=end - before <= PLATEAU_KIB and threads[1] <= threads[0] and files[1] <= files[0],
        samples=samples,
    )
