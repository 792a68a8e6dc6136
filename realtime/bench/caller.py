"""A simulated caller: one connection on which utterances are spoken in real time and answers are played.

The microphone is never off the air. The caller waits for each answer to be complete (``response.done``), listens to it
for a while, and goes on. It only drives and logs; figures are computed from the log by
:mod:`duologue.realtime.bench.voice_score`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from duologue.realtime.bench.caller_audio import CallerAudio
from duologue.realtime.bench.clock import SAMPLE_RATE, Clock, PacedSender
from duologue.realtime.bench.conversation import Conversation, SeenResponse, Turn
from duologue.realtime.bench.playback import ClientPlayback, Cut, Policy
from duologue.realtime.bench.utterances import Library, Rendered, Utterance
from duologue.realtime.bench.waiting import Changes
from duologue.realtime.client import ClientError, RealtimeClient
from duologue.sessions.client_events import ItemTruncate

NO_TURN_S = 3.0
"""A turn that has not ended so long after its silence window will not end any more."""


class CallerSettings(msgspec.Struct, frozen=True):
    """How callers behave; part of the conditions of a run."""

    silence_ms: int = 500
    reply_ms: int | None = 3000
    """How much of an answer is listened to before the caller stops it; ``None``: all of it."""
    max_output_tokens: int | None = 96
    timeout_s: float = 30.0
    """Longest wait for an answer to be complete."""
    client_policy: Policy = "obey"
    chunk_ms: int = 20
    instructions: str | None = None
    transcription_model: str = "default"

    def session(self) -> dict[str, Any]:
        """The body of the ``session.update`` that opens a call."""
        pcm = {"type": "audio/pcm", "rate": SAMPLE_RATE}
        session: dict[str, Any] = {
            "output_modalities": ["audio"],
            "audio": {
                "input": {
                    "format": pcm,
                    "transcription": {"model": self.transcription_model},
                    "turn_detection": {"type": "server_vad", "silence_duration_ms": self.silence_ms},
                },
                "output": {"format": pcm},
            },
        }
        if self.max_output_tokens is not None:
            session["max_output_tokens"] = self.max_output_tokens
        if self.instructions is not None:
            session["instructions"] = self.instructions
        return session


class Caller:
    """One call. ``run`` says the given utterances one after the other and hangs up."""

    def __init__(
        self,
        client: RealtimeClient,
        library: Library,
        clock: Clock,
        settings: CallerSettings,
        on_said: Callable[[Utterance], None] = lambda utterance: None,
    ) -> None:
        self._client = client
        self._library = library
        self._clock = clock
        self._settings = settings
        self._on_said = on_said
        self._audio = CallerAudio()
        self._sender = PacedSender(
            client.append, clock, chunk_ms=settings.chunk_ms, on_start=client.log.start_input_clock
        )
        self._conversation = Conversation()
        self._playback = ClientPlayback(settings.client_policy)
        self._changes = Changes(clock)

    async def run(self, utterances: Sequence[Utterance]) -> None:
        """Make the call. A broken connection ends it and is noted in the log; nothing is raised for it."""
        try:
            session = await self._client.configure(self._settings.session())
            self._playback.interrupt_response = session.interrupt_response
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(), name="caller-reader")
                tasks.create_task(self._sender.run(self._audio), name="caller-microphone")
                for utterance in utterances:
                    rendered = await asyncio.to_thread(self._library.render, utterance)
                    await self._converse(utterance, rendered)
                    self._on_said(utterance)
                self._audio.close()
                await self._client.close()
        except* ClientError as group:
            text = str(group.exceptions[0])
            self._client.log.note({"type": "connection.lost", "message": text}, self._clock.now())

    async def _read(self) -> None:
        async for received in self._client:
            self._conversation.handle(received)
            await self._truncate(self._playback.handle(received))
            self._changes.notify()

    async def _truncate(self, cuts: Sequence[Cut]) -> None:
        for cut in cuts:
            await self._client.send(ItemTruncate(item_id=cut.item_id, content_index=0, audio_end_ms=cut.heard_ms))

    # -- one utterance -------------------------------------------------------------------------------------------------

    async def _converse(self, utterance: Utterance, rendered: Rendered) -> None:
        since, stop = self._say("utterance", utterance.id, rendered)
        if utterance.interruption is not None and utterance.barge_in_after_s is not None:
            interruption = await asyncio.to_thread(self._library.render_interruption, utterance.interruption)
            await self._until_heard(since, stop, utterance.barge_in_after_s)
            since, stop = self._say("interruption", utterance.id, interruption)
        await self._listen(await self._answer(since, stop))

    def _say(self, kind: str, utterance_id: str, rendered: Rendered) -> tuple[float, float]:
        """Start speaking; now, and when the last audible sample will have been spoken."""
        start = self._audio.say(rendered)
        now = self._clock.now()
        note = {
            "type": kind,
            "id": utterance_id,
            "onset_sample": start + rendered.start,
            "stop_sample": start + rendered.end,
        }
        self._client.log.note(note, now)
        return now, (self._sender.t0 or now) + (start + rendered.end) / SAMPLE_RATE

    async def _answer(self, since: float, stop: float) -> SeenResponse | None:
        """Wait until what was said from ``since`` to ``stop`` has been answered; the answer, if there is one."""
        patience = stop + self._settings.silence_ms / 1000 + NO_TURN_S
        ended = await self._changes.until(lambda: self._final_turn(since, stop) is not None, patience)
        done = self._is_answered if ended else self._is_idle
        deadline = self._clock.now() + self._settings.timeout_s
        if not await self._changes.until(lambda: done(since, stop), deadline):
            self._client.log.note({"type": "timeout"}, self._clock.now())
        turn = self._final_turn(since, stop)
        responses = self._conversation.responses_to(turn.item_id) if turn else []
        return responses[-1] if responses else None

    def _final_turn(self, since: float, stop: float) -> Turn | None:
        for turn in self._conversation.turns.values():
            if turn.started_s >= since and turn.stopped_s is not None and turn.stopped_s >= stop:
                return turn
        return None

    def _is_idle(self, since: float, stop: float) -> bool:
        return not self._conversation.speech_open and not self._conversation.response_open

    def _is_answered(self, since: float, stop: float) -> bool:
        turn = self._final_turn(since, stop)
        if turn is None or not self._is_idle(since, stop):
            return False
        transcribed = turn.transcribed_s is not None or turn.transcription_failed
        return transcribed and bool(self._conversation.responses_to(turn.item_id))

    # -- listening -----------------------------------------------------------------------------------------------------

    async def _until_heard(self, since: float, stop: float, seconds: float) -> None:
        """Wait until the answer has been sounding for ``seconds``, whether or not it is still being generated."""

        def started_s() -> float | None:
            turn = self._final_turn(since, stop)
            responses = self._conversation.responses_to(turn.item_id) if turn else []
            times = [self._playback.player.time_of(response.response_id, 0) for response in responses]
            return next((time for time in times if time is not None), None)

        deadline = stop + self._settings.silence_ms / 1000 + self._settings.timeout_s
        if await self._changes.until(lambda: started_s() is not None, deadline):
            await self._clock.sleep_until((started_s() or 0.0) + seconds)

    async def _hear(self, response: SeenResponse | None, seconds: float) -> None:
        """Let ``seconds`` of a complete answer sound, or all of it if it is shorter."""
        if response is None:
            return
        player = self._playback.player
        samples = min(round(seconds * player.rate), player.heard_samples(response.response_id))
        end = player.time_of(response.response_id, samples - 1) if samples else None
        if end is not None:
            await self._clock.sleep_until(end)

    async def _listen(self, response: SeenResponse | None) -> None:
        """Play the answer for ``reply_ms``, then stop it as a listener would who has heard enough."""
        if self._settings.reply_ms is None:
            await self._hear(response, response.samples / SAMPLE_RATE if response else 0.0)
            return
        await self._hear(response, self._settings.reply_ms / 1000)
        now = self._clock.now()
        cuts = self._playback.player.flush(now)
        if cuts:
            self._client.log.note({"type": "playback.stop"}, now)
            await self._truncate(cuts)
