"""A room around one session: its loudspeaker plays what the session says, its microphone hears that and the user.

Real voice activity (Silero) and real audio processing; the clock is that of the samples, so ten minutes of room take as
long as the detector needs for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from session_driver import RATE, Driver

from duologue.codecs.noise_suppression import load_noise_suppression
from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.engine.requests import AudioDelta, Converse, Transcribe
from duologue.engine.silero import SileroModel
from duologue.realtime.bench.offline_voice_activity import OfflineVoiceActivity
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.effects import EngineOutput, FeedVoiceActivity, VoiceActivity

Samples = NDArray[np.float32]
CHUNK = RATE // 50


class EchoRoom(Driver):
    """Times are seconds of the room's clock; ``gain``: level of the echo; ``delays_s``: of each answer's echo."""

    def __init__(
        self,
        model: SileroModel,
        delays_s: Iterator[float],
        *,
        patch: dict[str, Any] | None = None,
        gain: float = 0.1,
        jitter_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._model = model
        self._detector: OfflineVoiceActivity | None = None
        self._delays, self._gain, self._jitter_s = delays_s, gain, jitter_s
        self._rng = np.random.default_rng(seed)
        self._loudspeaker: Samples = np.zeros(0, np.float32)
        """What it will play, from the room's time 0 on."""
        self._seen = 0
        self._queue_end = 0
        self._response: str | None = None
        self._delay = 0
        self._spoken = 0
        super().__init__(patch, make_suppressor=load_noise_suppression(), transcription=False)
        self.update({"audio": {"input": {"turn_detection": {"create_response": False}}}})
        self._began = self.now

    @property
    def time(self) -> float:
        return self._spoken / RATE

    def _detect(self, effect: FeedVoiceActivity) -> None:
        if self._detector is None or effect.stream != self._stream:
            self._stream = effect.stream
            self._detector = OfflineVoiceActivity(self._model, effect.sample_rate)
        for frame in self._detector.feed(effect.pcm):
            self.do(VoiceActivity(effect.stream, frame.probability, frame.quiet_ms, frame.heard_from))

    def live(self, seconds: float, user: Samples | None = None) -> None:
        """Let time pass; ``user``: what the user says meanwhile."""
        speech = np.zeros(round(seconds * RATE), np.float32)
        if user is not None:
            speech[: len(user)] = user[: len(speech)]
        for first in range(0, len(speech) - CHUNK + 1, CHUNK):
            self._play_what_was_sent()
            heard = self._heard(self._spoken, CHUNK) * np.float32(self._gain)
            noise = self._rng.standard_normal(CHUNK).astype(np.float32) * np.float32(10 ** (-65 / 20))
            self._spoken += CHUNK
            due = self._began + self._spoken / RATE + self._rng.uniform(0.0, self._jitter_s)
            self.wait(max(0.0, due - self.now))
            mixed = heard + speech[first : first + CHUNK] + noise
            self.do(client.InputAudioAppend(audio=float_to_pcm16(mixed)))

    def ask(self) -> str:
        """Ask for an answer in writing; returns its engine request."""
        self.do(client.ResponseCreate())
        while self.pending(Transcribe):  # what the user has said by then is part of what it answers
            self.transcribe("Well.")
        return self.pending(Converse)[-1]

    def say_aloud(self, request_id: str, voice: Samples) -> None:
        self.write("words ", request_id)
        self.do(EngineOutput(request_id, AudioDelta(pcm=float_to_pcm16(voice))))

    def _play_what_was_sent(self) -> None:
        """A serialised player: each piece when it arrives, or after the one before; nothing of what is interrupted."""
        new, self._seen = self.sent[self._seen :], len(self.sent)
        for event in new:
            if isinstance(event, events.OutputAudioDelta):
                if event.response_id != self._response:
                    self._response, self._delay = event.response_id, round(next(self._delays) * RATE)
                start = max(self._queue_end, self._spoken + self._delay)
                pcm = pcm16_to_float(event.delta)
                self._queue_end = start + len(pcm)
                missing = self._queue_end - len(self._loudspeaker)
                self._loudspeaker = np.concatenate([self._loudspeaker, np.zeros(max(0, missing), np.float32)])
                self._loudspeaker[start : self._queue_end] = pcm
            elif isinstance(event, events.SpeechStarted):
                self._loudspeaker = self._loudspeaker[: self._spoken + RATE // 20]
                self._queue_end = min(self._queue_end, self._spoken)

    def _heard(self, first: int, samples: int) -> Samples:
        heard = self._loudspeaker[first : first + samples]
        return np.concatenate([heard, np.zeros(samples - len(heard), np.float32)])
