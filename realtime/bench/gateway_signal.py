"""What the callers of ``duologue bench gateway`` say, and what the server must make of it.

Everybody sends the same endless loop: a voice that is only arithmetic (harmonics of a wandering pitch under changing
formants, which the voice-activity model takes for speech), then silence. So it is known beforehand in which 20 ms chunk
lies the sample that lets the server decide that a turn has begun or ended.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import float_to_pcm16
from duologue.engine.models import require
from duologue.engine.silero import SileroModel
from duologue.realtime.bench.offline_voice_activity import OfflineVoiceActivity
from duologue.sessions.timebase import TICKS_PER_MS, TICKS_PER_SECOND, VAD_FRAME_TICKS, to_ms
from duologue.sessions.turns.policy import Started, Stopped, TurnSignal
from duologue.sessions.turns.silence import SilencePolicy, SilenceSettings

SAMPLE_RATE: Final = 24_000
CHUNK_S: Final = 0.02
CHUNK_BYTES: Final = 960
VOICE_S: Final = 1.6
SILENCE_S: Final = 2.4
LOOP_S: Final = VOICE_S + SILENCE_S

_FORMANTS: Final = ((730, 1090, 2440), (270, 2290, 3010), (570, 840, 2410), (530, 1840, 2480), (300, 870, 2240))
"""First three formants in hertz of five vowels (Peterson & Barney 1952, men's means)."""
_BANDWIDTHS: Final = (60.0, 90.0, 120.0)
_LEVELS: Final = (1.0, 0.6, 0.3)
_SYLLABLE_S: Final = 0.2


class Decision(msgspec.Struct, frozen=True):
    """A turn's beginning or end, as the server will announce it."""

    kind: Literal["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"]
    at_ms: int
    """Its ``audio_start_ms`` or ``audio_end_ms``."""
    chunk: int
    """Index of the chunk without which it cannot be decided."""


def voice(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """A voice without words: float32 ``[samples]`` at 24 kHz, peak 0.3."""
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    pitch = 120 * (1 + 0.08 * np.sin(2 * np.pi * 2.3 * time) + 0.03 * np.sin(2 * np.pi * 5.1 * time))
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE
    vowel = np.array(_FORMANTS)[(time / _SYLLABLE_S).astype(int) % len(_FORMANTS)]
    sound = np.zeros(len(time))
    for harmonic in range(1, 40):
        distance = (harmonic * pitch[:, None] - vowel) / np.array(_BANDWIDTHS)
        level = (np.array(_LEVELS) / (1 + distance**2)).sum(axis=1)
        sound += level * np.sin(harmonic * phase) / np.sqrt(harmonic)
    sound *= 0.15 + 0.85 * np.abs(np.sin(np.pi * time / _SYLLABLE_S))
    sound += 0.01 * np.random.default_rng(seed).standard_normal(len(time))
    return (0.3 * sound / np.abs(sound).max()).astype(np.float32)


def loop() -> list[bytes]:
    """The chunks of one round of the loop, PCM16 at 24 kHz, 20 ms each."""
    silence = np.zeros(round(SILENCE_S * SAMPLE_RATE), np.float32)
    pcm = float_to_pcm16(np.concatenate([silence[: len(silence) // 2], voice(VOICE_S), silence[len(silence) // 2 :]]))
    return [pcm[start : start + CHUNK_BYTES] for start in range(0, len(pcm), CHUNK_BYTES)]


def decisions(seconds: float) -> list[Decision]:
    """What ``server_vad`` with its default settings decides in the first ``seconds`` of the loop, in order."""
    found: list[Decision] = []

    def follow(signals: list[TurnSignal]) -> None:
        for signal in signals:
            match signal:
                case Started(start=at):
                    found.append(Decision("input_audio_buffer.speech_started", to_ms(at), chunk))
                case Stopped(end=at):
                    found.append(Decision("input_audio_buffer.speech_stopped", to_ms(at), chunk))

    policy = SilencePolicy(SilenceSettings())
    detector, sent = OfflineVoiceActivity(SileroModel(require("silero-vad")), SAMPLE_RATE), loop()
    position = 0
    for chunk in range(round(seconds / CHUNK_S)):
        # Its silence is digital: nothing is heard there, wherever the policy looks.
        if policy.due <= _chunk_end(chunk):
            follow(policy.silent())
        for frame in detector.feed(sent[chunk % len(sent)]):
            start, position = position, position + VAD_FRAME_TICKS
            follow(policy.frame(start, position, frame.probability, frame.quiet_ms * TICKS_PER_MS))
            if policy.due <= _chunk_end(chunk):
                follow(policy.silent())
    return found


def _chunk_end(chunk: int) -> int:
    """First tick after that chunk."""
    return round((chunk + 1) * CHUNK_S * TICKS_PER_SECOND)
