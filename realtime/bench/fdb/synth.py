"""``duologue bench synth full-duplex``: sets in the layout of Full-Duplex-Bench, all times known to the sample.

Made from the packaged voice and, where there is a folder of them, from real recordings. Every sample has ``parts.json``
(what lies where, in samples at 24 kHz) and ``turns.json`` (when the user speaks) beside the task's own annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.wav import write_wav
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.fdb.artifacts import write_json
from duologue.realtime.bench.fdb.dataset import (
    PARTS_FILE,
    REFERENCE_FILE,
    SETS_FILE,
    TURNS_FILE,
    NamedSet,
    Part,
    SpokenTurn,
    Task,
    Turns,
)
from duologue.realtime.bench.fdb.formulas import WINDOW_MS
from duologue.realtime.bench.levels import frame_levels
from duologue.realtime.bench.noise import noise_loop
from duologue.realtime.bench.room_sounds import ROOM_SOUNDS, room_sound
from duologue.realtime.bench.utterances import INTERRUPTIONS, LONG_REQUESTS, SENTENCES, Library, Source

SetName = Literal[
    "pause",
    "turn_taking",
    "backchannel",
    "interruption",
    "user_interruption",
    "user_backchannel",
    "talking_to_other",
    "background_speech",
    "echo",
    "noise",
]
SETS: Final[dict[SetName, Task]] = {
    "pause": "pause",
    "turn_taking": "turn_taking",
    "backchannel": "backchannel",
    "interruption": "interruption",
    "user_interruption": "overlap",
    "user_backchannel": "overlap",
    "talking_to_other": "overlap",
    "background_speech": "overlap",
    "echo": "echo",
    "noise": "noise",
}
"""The sets that are made, and the task of each."""

ACKNOWLEDGEMENTS: Final = ("Right.", "I see.", "Okay.", "Uh huh.", "Yes.", "Oh, really.")
ASIDES: Final = (
    "Anna, could you close the window please?",
    "No, the keys are on the kitchen table.",
    "Just a second, I am on the phone.",
    "Tell him that I will call back later.",
)
SPEECH_DBFS: Final = -26.0
ROOM_DBFS: Final = -72.0
NOISE_DBFS: Final = -30.0
BACKGROUND_DB: Final = -15.0
ASIDE_DB: Final = -6.0
ECHO_DB: Final = -20.0
ECHO_MS: Final = (80, 200)
PAUSE_S: Final = (0.4, 1.6)
LEAD_S: Final = (0.5, 1.0)
NATURAL_PAUSE_S: Final = 0.4
FADE: Final = SAMPLE_RATE // 200
"""Samples over which a cut is faded, so that it does not click."""
REFERENCE_S: Final = 0.6
"""How long after the end of a clause an acknowledgement is in place."""

Sound = NDArray[np.float32]


class SynthOptions(msgspec.Struct, frozen=True):
    """What to make; see ``duologue bench synth full-duplex --help``."""

    out: Path
    sets: tuple[SetName, ...] = tuple(SETS)
    count: int = 8
    """Samples in each set."""
    speech: Path | None = None
    seed: int = 0
    monologue_s: float = 30.0
    gap_s: float = 4.0
    """From the end of a question to what is said over its answer."""
    tail_s: float = 6.0
    """What follows the last speech, where an answer is waited for."""
    noise_s: float = 30.0


class Speech(msgspec.Struct, frozen=True):
    """Something to be said: sound from its first to its last audible sample, at ``SPEECH_DBFS``."""

    source: Source
    name: str
    words: str
    sound: Sound
    pauses: list[tuple[int, int]] = []
    """Silences inside of at least 0.4 s, in samples."""


class Track:
    """A recording being put together."""

    def __init__(self, lead: int) -> None:
        self.parts: list[Part] = []
        self.end = lead
        """Where the last part that was added ends."""
        self._sounds: list[tuple[int, Sound]] = []

    def add(
        self, speech: Speech, *, after: int = 0, gain_db: float = 0.0, kind: Literal["turn", "event"] = "turn"
    ) -> Part:
        """Say something ``after`` samples after the last part."""
        start = self.end + after
        part = Part(kind, speech.source, speech.name, speech.words, start, start + len(speech.sound), gain_db)
        self._sounds.append((start, speech.sound * np.float32(10 ** (gain_db / 20))))
        self.parts.append(part)
        self.end = part.end_sample
        return part

    def render(self, length: int, rng: np.random.Generator, *, without: Part | None = None) -> Sound:
        """The recording in a quiet room, float32 ``[length]``; ``without`` one part."""
        tone = noise_loop("pink", SAMPLE_RATE, rng)
        out = np.resize(tone, length) * np.float32(10 ** (ROOM_DBFS / 20))
        for part, (start, sound) in zip(self.parts, self._sounds, strict=True):
            if part is not without:
                out[start : start + len(sound)] += sound
        return out


class Voices:
    """Where speech comes from: sentences and recordings in turn, each list in an order of its own."""

    def __init__(self, library: Library, rng: np.random.Generator) -> None:
        self._library = library
        self._rng = rng
        self._orders: dict[tuple[str, ...], list[str]] = {}
        self.recordings = tuple(sorted(library.words))

    def sentence(self, texts: Sequence[str]) -> Speech:
        """The next of ``texts`` by the packaged voice."""
        return self._speech("synthesised", self._next(tuple(texts)))

    def any(self, index: int, texts: Sequence[str]) -> Speech:
        """A sentence for even ``index``, a recording for odd ones if there are any."""
        if index % 2 and self.recordings:
            return self._speech("recording", self._next(self.recordings))
        return self.sentence(texts)

    def recording_with_pauses(self) -> Speech | None:
        """The next recording whose speaker pauses in it."""
        paused = [name for name in self.recordings if self._speech("recording", name).pauses]
        return self._speech("recording", self._next(tuple(paused))) if paused else None

    def _next(self, names: tuple[str, ...]) -> str:
        """Each of ``names`` once per round, in an order that differs from round to round."""
        left = self._orders.setdefault(names, [])
        if not left:
            left.extend(names[i] for i in self._rng.permutation(len(names)))
        return left.pop()

    def _speech(self, source: Source, name: str) -> Speech:
        audio, bounds = self._library.sound(source, name)
        sound = faded(audio[bounds.start : bounds.end])
        power = float(np.mean(np.square(sound, dtype=np.float64)))
        sound = sound * np.float32(10 ** (SPEECH_DBFS / 20) / np.sqrt(power))
        gaps = [(a[1] - bounds.start, b[0] - bounds.start) for a, b in zip(bounds.runs, bounds.runs[1:], strict=False)]
        pauses = [(a, b) for a, b in gaps if b - a >= NATURAL_PAUSE_S * SAMPLE_RATE]
        words = self._library.words[name] if source == "recording" else name
        return Speech(source, name, words, np.clip(sound, -0.99, 0.99), pauses)


def faded(sound: Sound) -> Sound:
    """``sound`` without clicks at its ends."""
    out = sound.copy()
    ramp = np.linspace(0, 1, min(FADE, len(out) // 2), dtype=np.float32)
    if len(ramp):
        out[: len(ramp)] *= ramp
        out[-len(ramp) :] *= ramp[::-1]
    return out


def with_pause(speech: Speech, samples: int) -> Speech:
    """``speech`` with a silence of ``samples`` at its quietest place between a third and two thirds of it."""
    levels = frame_levels(speech.sound, SAMPLE_RATE)
    low, high = len(levels) // 3, max(len(levels) // 3 + 1, 2 * len(levels) // 3)
    frame = SAMPLE_RATE // 100
    cut = (low + int(np.argmin(levels[low:high]))) * frame + frame // 2
    sound = np.concatenate([faded(speech.sound[:cut]), np.zeros(samples, np.float32), faded(speech.sound[cut:])])
    return msgspec.structs.replace(speech, sound=sound, pauses=[(cut, cut + samples)])


# -- sets --------------------------------------------------------------------------------------------------------------


class Writer:
    """Writes the samples of one set."""

    def __init__(self, folder: Path, options: SynthOptions, library: Library, rng: np.random.Generator) -> None:
        self.folder = folder
        self.options = options
        self.rng = rng
        self.voices = Voices(library, rng)
        self.references: dict[str, list[float]] = {}

    def lead(self) -> Track:
        return Track(self.samples(*LEAD_S))

    def samples(self, low_s: float, high_s: float) -> int:
        """A random stretch of time in samples."""
        return int(self.rng.integers(round(low_s * SAMPLE_RATE), round(high_s * SAMPLE_RATE) + 1))

    def seconds(self, value: float) -> int:
        return round(value * SAMPLE_RATE)

    def write(self, id_: str, track: Track, audio: Sound, files: dict[str, Any], pauses: Sequence[Any] = ()) -> Path:
        """``input.wav``, ``parts.json``, ``turns.json`` and the given annotations."""
        folder = self.folder / id_
        folder.mkdir(parents=True, exist_ok=True)
        self.wav(folder / "input.wav", audio)
        write_json(folder / PARTS_FILE, track.parts)
        # An acknowledgement and speech that is meant for somebody else are no turns.
        spoken = [part for part in track.parts if part.kind == "turn"]
        turns = [
            SpokenTurn(*part.span, [pause for pause in pauses if part.span[0] <= pause[0] < part.span[1]])
            for part in spoken
        ]
        write_json(folder / TURNS_FILE, Turns(turns, len(audio) / SAMPLE_RATE))
        for name, value in files.items():
            write_json(folder / name, value)
        return folder

    def wav(self, path: Path, audio: Sound) -> None:
        write_wav(path, float_to_pcm16(audio), SAMPLE_RATE)


def _pause(writer: Writer, index: int, id_: str) -> None:
    speech = writer.voices.any(index, SENTENCES)
    natural = writer.voices.recording_with_pauses() if index % 4 == 3 else None
    speech = natural or with_pause(speech, writer.samples(*PAUSE_S))
    track = writer.lead()
    part = track.add(speech)
    pauses = [((part.start_sample + a) / SAMPLE_RATE, (part.start_sample + b) / SAMPLE_RATE) for a, b in speech.pauses]
    # It ends before any silence window is over: whatever is said in it is said into the pause.
    audio = track.render(track.end + writer.seconds(0.1), writer.rng)
    files = {
        "pause.json": [{"text": "[PAUSE]", "timestamp": pause} for pause in pauses],
        "transcription.json": [{"text": speech.words, "timestamp": part.span}],
    }
    writer.write(id_, track, audio, files, pauses)


def _turn_taking(writer: Writer, index: int, id_: str) -> None:
    track = writer.lead()
    part = track.add(writer.voices.any(index, SENTENCES))
    audio = track.render(track.end + writer.seconds(writer.options.tail_s), writer.rng)
    end = part.span[1]
    files = {
        "turn_taking.json": [{"timestamp": [end, len(audio) / SAMPLE_RATE]}],
        "transcription.json": [{"text": part.words, "timestamp": part.span}],
    }
    writer.write(id_, track, audio, files)


def _backchannel(writer: Writer, index: int, id_: str) -> None:
    track = writer.lead()
    while track.end < writer.seconds(writer.options.monologue_s):
        first = not track.parts
        track.add(writer.voices.any(index, SENTENCES), after=0 if first else writer.samples(0.35, 0.6))
    audio = track.render(track.end + writer.seconds(0.3), writer.rng)
    windows = np.zeros(round(len(audio) / SAMPLE_RATE * 1000) // WINDOW_MS + 1)
    for part in track.parts:
        end_ms = round(part.span[1] * 1000)
        windows[end_ms // WINDOW_MS : (end_ms + round(REFERENCE_S * 1000)) // WINDOW_MS + 1] = 1.0
    writer.references[id_] = windows.tolist()
    writer.write(id_, track, audio, {"transcription.json": _transcription(track)})


def _interruption(writer: Writer, index: int, id_: str) -> None:
    track = writer.lead()
    question = writer.voices.sentence(LONG_REQUESTS)
    second = writer.voices.any(index, SENTENCES)
    track.add(question)
    part = track.add(second, after=writer.seconds(writer.options.gap_s))
    audio = track.render(track.end + writer.seconds(writer.options.tail_s), writer.rng)
    row = {"context": question.words, "interrupt": second.words, "timestamp": part.span}
    folder = writer.write(id_, track, audio, {"interrupt.json": [row], "transcription.json": _transcription(track)})
    writer.wav(folder / "context.wav", question.sound)
    writer.wav(folder / "interrupt.wav", second.sound)


def _overlap(
    event: Callable[[Writer, int], Speech], gain_db: float = 0.0, *, is_turn: bool = False
) -> Callable[[Writer, int, str], None]:
    """A question, and an ``event`` over its answer; the same without it as ``clean_input.wav``."""

    def write(writer: Writer, index: int, id_: str) -> None:
        track = writer.lead()
        question = track.add(writer.voices.sentence(LONG_REQUESTS))
        after = writer.seconds(writer.options.gap_s) + writer.samples(-0.5, 0.5)
        part = track.add(event(writer, index), after=after, gain_db=gain_db, kind="turn" if is_turn else "event")
        length = track.end + writer.seconds(writer.options.tail_s)
        seed = int(writer.rng.integers(2**31))  # the same room twice
        audio = track.render(length, np.random.default_rng(seed))
        clean = track.render(length, np.random.default_rng(seed), without=part)
        metadata = {"context_text": question.words, "current_turn_text": part.words, "timestamps": part.span}
        folder = writer.write(id_, track, audio, {"metadata.json": metadata})
        writer.wav(folder / "clean_input.wav", clean)

    return write


def _echo(writer: Writer, index: int, id_: str) -> None:
    """A question whose answer comes back through the microphone; in every other sample somebody speaks into it."""
    track = writer.lead()
    track.add(writer.voices.sentence(LONG_REQUESTS))
    part = None
    if index % 2:
        part = track.add(writer.voices.sentence(INTERRUPTIONS), after=writer.seconds(writer.options.gap_s))
    length = track.end + writer.seconds(writer.options.tail_s if part else writer.options.gap_s + writer.options.tail_s)
    delay = int(writer.rng.integers(ECHO_MS[0], ECHO_MS[1] + 1))
    echo = {"gain_db": ECHO_DB, "delay_ms": delay, "timestamps": part.span if part else None}
    writer.write(id_, track, track.render(length, writer.rng), {"echo.json": echo})


def _noise(writer: Writer, index: int, id_: str) -> None:
    kind = ROOM_SOUNDS[index % len(ROOM_SOUNDS)]
    sound = room_sound(kind, writer.options.noise_s, SAMPLE_RATE, NOISE_DBFS, int(writer.rng.integers(2**31)))
    track = Track(0)
    track.parts.append(Part("noise", "generated", kind, "", 0, len(sound), NOISE_DBFS))
    writer.write(id_, track, np.clip(sound, -0.99, 0.99), {})


def _transcription(track: Track) -> list[dict[str, Any]]:
    return [{"text": part.words, "timestamp": part.span} for part in track.parts]


_MAKERS: Final[dict[SetName, Callable[[Writer, int, str], None]]] = {
    "pause": _pause,
    "turn_taking": _turn_taking,
    "backchannel": _backchannel,
    "interruption": _interruption,
    "user_interruption": _overlap(lambda writer, index: writer.voices.any(index, SENTENCES), is_turn=True),
    "user_backchannel": _overlap(lambda writer, index: writer.voices.sentence(ACKNOWLEDGEMENTS)),
    "talking_to_other": _overlap(lambda writer, index: writer.voices.any(index, ASIDES), ASIDE_DB),
    "background_speech": _overlap(lambda writer, index: writer.voices.any(index + 1, SENTENCES), BACKGROUND_DB),
    "echo": _echo,
    "noise": _noise,
}


def synthesise(options: SynthOptions, on_done: Callable[[str], None] = lambda name: None) -> list[NamedSet]:
    """Write the sets into ``out``. The same options give the same bytes. Raises ``ValueError``, ``OSError``."""
    library = Library(options.speech)
    named = []
    for number, name in enumerate(SETS):
        if name not in options.sets:
            continue
        # A set is the same whichever others are made with it.
        writer = Writer(options.out / name, options, library, np.random.default_rng([options.seed, number]))
        for index in range(options.count):
            _MAKERS[name](writer, index, str(index + 1))
            on_done(name)
        if writer.references:
            write_json(writer.folder / REFERENCE_FILE, writer.references)
        named.append(NamedSet(name, SETS[name]))
    write_json(options.out / SETS_FILE, named)
    return named
