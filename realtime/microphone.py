"""Talking by microphone and loudspeaker, when ``sounddevice`` (and PortAudio under it) is there.

The sound card's callbacks run on threads of their own; they only move bytes. The loudspeaker counts what it has played,
so that an interrupted answer is truncated at the sample that was heard.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

from duologue.codecs.fade import fade_samples, faded_out
from duologue.realtime.bench.caller import CallerSettings
from duologue.realtime.bench.clock import SAMPLE_BYTES, SAMPLE_RATE
from duologue.realtime.client import AUDIO_DELTA, ClientError, RealtimeClient, Received
from duologue.sessions.client_events import ItemTruncate

BLOCK = SAMPLE_RATE // 50
MOST_WAITING_BLOCKS = 250
"""Microphone blocks that may wait for the network (5 s); beyond that the oldest are dropped."""


class SoundUnavailable(Exception):
    """No microphone or loudspeaker can be used; one line that says what to do."""


class Loudspeaker:
    """The queue behind the output callback. Safe to use from the event loop and the audio thread at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[tuple[str, memoryview]] = deque()
        self._played: dict[str, int] = {}
        self._stopped: set[str] = set()
        self._fading: memoryview = memoryview(b"")
        """What sounds, ever softer, of an answer that was stopped."""
        self._sounding = False
        """Whether the last block ended within an answer: only then is there something to fade."""

    def play(self, item_id: str, pcm: bytes) -> None:
        """Queue audio of an item; dropped if the item was stopped."""
        with self._lock:
            if item_id not in self._stopped:
                self._queue.append((item_id, memoryview(pcm)))

    def stop(self) -> list[tuple[str, int]]:
        """Drop everything unplayed: ``(item_id, heard milliseconds)`` of each item that lost audio.

        What sounds at the moment fades out within a few milliseconds; these do not count as heard.
        """
        size = fade_samples(SAMPLE_RATE) * SAMPLE_BYTES
        with self._lock:
            cut = list(dict.fromkeys(item_id for item_id, _ in self._queue))
            if self._sounding and self._queue:
                self._fading = memoryview(faded_out(bytes(self._queue[0][1][:size]), size // SAMPLE_BYTES))
            self._queue.clear()
            self._stopped.update(cut)
            return [(id_, self._played.get(id_, 0) // SAMPLE_BYTES * 1000 // SAMPLE_RATE) for id_ in cut]

    def fill(self, out: memoryview) -> None:
        """The audio thread's part: fill ``out`` (bytes) from the queue, then with silence."""
        with self._lock:
            at = min(len(self._fading), len(out))
            out[:at], self._fading = self._fading[:at], self._fading[at:]
            while self._queue and at < len(out):
                item_id, pcm = self._queue.popleft()
                piece = pcm[: len(out) - at]
                out[at : at + len(piece)] = piece
                at += len(piece)
                self._played[item_id] = self._played.get(item_id, 0) + len(piece)
                if len(piece) < len(pcm):
                    self._queue.appendleft((item_id, pcm[len(piece) :]))
            self._sounding = at == len(out) and not self._fading
        out[at:] = bytes(len(out) - at)


class Conversing:
    """What the client does on each event: play, stop and truncate, print words."""

    def __init__(self, client: RealtimeClient, speaker: Loudspeaker, say: Callable[[str], None]) -> None:
        self._client = client
        self._speaker = speaker
        self._say = say

    async def handle(self, received: Received) -> None:
        message = received.message
        match message.type:
            case t if t == AUDIO_DELTA:
                self._speaker.play(message.item_id or "", received.audio)
            case "input_audio_buffer.speech_started":
                await self._stop()
            case "response.done" if message.response and message.response.status == "cancelled":
                await self._stop()
            case "conversation.item.input_audio_transcription.completed":
                self._say(f"you:  {message.transcript}")
            case "response.output_audio_transcript.done":
                self._say(f"it:   {message.transcript}")
            case "error" if message.error:
                self._say(f"server error {message.error.code}: {message.error.message}")

    async def _stop(self) -> None:
        for item_id, heard_ms in self._speaker.stop():
            await self._client.send(ItemTruncate(item_id=item_id, content_index=0, audio_end_ms=heard_ms))


async def talk_by_microphone(
    url: str,
    settings: CallerSettings,
    *,
    model: str | None,
    api_key: str | None,
    say: Callable[[str], None],
    cancel_echo: bool = False,
) -> None:
    """Talk until cancelled or until the server hangs up. ``cancel_echo``: ask the server to, as ours can.

    Raises :class:`SoundUnavailable` or :class:`~duologue.realtime.client.ClientError`.
    """
    sound = _sounddevice()
    loop = asyncio.get_running_loop()
    blocks: asyncio.Queue[bytes] = asyncio.Queue(MOST_WAITING_BLOCKS)
    speaker = Loudspeaker()

    def put(block: bytes) -> None:
        if blocks.full():
            blocks.get_nowait()
        blocks.put_nowait(block)

    def recorded(data: Any, frames: int, time: Any, status: Any) -> None:
        loop.call_soon_threadsafe(put, bytes(data))

    def wanted(data: Any, frames: int, time: Any, status: Any) -> None:
        speaker.fill(memoryview(data).cast("B"))

    async def send(client: RealtimeClient) -> None:
        while True:
            await client.append(await blocks.get())

    form = {"samplerate": SAMPLE_RATE, "channels": 1, "dtype": "int16", "blocksize": BLOCK}
    client = await RealtimeClient.connect(url, model=model, api_key=api_key)
    async with client:
        session = settings.session()
        if cancel_echo:
            session["audio"]["input"]["echo_cancellation"] = {}
        await client.configure(session)
        conversing = Conversing(client, speaker, say)
        try:
            streams = (sound.RawInputStream(callback=recorded, **form), sound.RawOutputStream(callback=wanted, **form))
        except sound.PortAudioError as error:
            raise SoundUnavailable(f"the sound device cannot be used: {error}") from error
        with streams[0], streams[1]:
            advice = "" if cancel_echo else " Use headphones or --cancel-echo, or the answer will interrupt itself."
            say(f"Listening.{advice} Ctrl-C ends.")
            sending = asyncio.create_task(send(client), name="microphone")
            try:
                async for received in client:
                    await conversing.handle(received)
            finally:
                sending.cancel()
                results = await asyncio.gather(sending, return_exceptions=True)
                for result in results:
                    if isinstance(result, ClientError):
                        raise result


def _sounddevice() -> ModuleType:
    try:
        import sounddevice
    except (ImportError, OSError) as error:
        # OSError: the Python package is there, the PortAudio library is not.
        raise SoundUnavailable(
            "--mic needs the sounddevice package and PortAudio: pip install 'duologue[mic]'"
        ) from error
    return sounddevice
