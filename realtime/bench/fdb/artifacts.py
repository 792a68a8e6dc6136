"""From a replay's log to what was heard: ``output.wav`` on the input's clock, ``output.json``, ``result.json``.

A pure function of the log and the recording, so that it can be made again at any time. Words of the server have no
times on the wire: a response's text is spread over its audible sound in proportion to the letters, and the words that
ended before the sound did were heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.levels import AUDIBLE_DBFS
from duologue.codecs.pcm import PCM16, pcm16_to_float
from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav, write_wav
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.conversation import Conversation, SeenResponse
from duologue.realtime.bench.fdb.dataset import STEMS
from duologue.realtime.bench.fdb.formulas import Span, TimedWord
from duologue.realtime.bench.fdb.ledger import check
from duologue.realtime.bench.fdb.runner import ReplaySettings
from duologue.realtime.bench.heard import ReceivedSound
from duologue.realtime.bench.levels import FRAME_S, frame_levels
from duologue.realtime.bench.playback import ClientPlayback, Player
from duologue.realtime.bench.summary import Metric, metric
from duologue.realtime.bench.voice_score import Replay
from duologue.realtime.event_log import load_audio, load_entries

RESULT_FILE = "result.json"
LAG = "chunk handed to the transport - its due time, at least 0"
LATE_P99_MS = 200.0
LATE_MAX_MS = 1000.0
"""What is sent later than this was not a conversation in real time; see section 1.7."""
WordSource = Literal["server", "asr"]


class WordChunk(msgspec.Struct, frozen=True):
    """A word as the published tools write it."""

    text: str
    timestamp: tuple[float | None, float | None]


class WordsFile(msgspec.Struct, frozen=True):
    """``output.json`` and its like."""

    text: str
    chunks: list[WordChunk]
    source: WordSource | None = None
    timing: Literal["proportional", "recognised"] | None = None

    @property
    def words(self) -> list[TimedWord]:
        return [TimedWord(chunk.text, *chunk.timestamp) for chunk in self.chunks]

    @classmethod
    def of(cls, words: Iterable[TimedWord], source: WordSource) -> WordsFile:
        chunks = [WordChunk(word.text, (word.start, word.end)) for word in words]
        timing: Literal["proportional", "recognised"] = "recognised" if source == "asr" else "proportional"
        return cls(" ".join(chunk.text for chunk in chunks), chunks, source, timing)


class Result(msgspec.Struct, frozen=True):
    """How one replay went. ``ok`` is false if it must not be scored."""

    ok: bool
    failures: list[str]
    warnings: list[str]
    duration_s: float
    """Of the input, and so of the output."""
    responses: int
    responses_interrupted: int
    late_audio_ms: float
    clipped_ms: float
    """Sound that would have been heard after the end of the input."""
    pacing_lag: Metric


def log_folder(folder: Path, stem: str) -> Path:
    """Where the raw log of the input ``<stem>input.wav`` lies."""
    return folder / f"{stem}log"


class Heard:
    """A replay's log played once more through the same player."""

    def __init__(self, folder: Path, stem: str, settings: ReplaySettings) -> None:
        log = log_folder(folder, stem)
        self.entries = load_entries(log)
        player = Player(buffer_s=settings.player_buffer_ms / 1000)
        self.replay = Replay(self.entries, settings.client_policy, player)
        self.sound = ReceivedSound.from_log(self.entries, _pcm(load_audio(log)))

    @property
    def conversation(self) -> Conversation:
        return self.replay.conversation

    @property
    def playback(self) -> ClientPlayback:
        return self.replay.playback

    def output(self, samples: int) -> bytes:
        """PCM16 of what was heard in the first ``samples`` samples of the input clock."""
        return self.sound.render(self.playback.player.segments, SAMPLE_RATE, 0.0, 0, samples)

    def clipped_s(self, duration_s: float) -> float:
        return sum(
            max(0.0, segment.end_s - max(segment.start_s, duration_s)) for segment in self.playback.player.segments
        )

    def server_speech(self, duration_s: float) -> list[Span]:
        """When the server took the user to be speaking, by its own times; an open turn lasts to the end."""
        spans = []
        for turn in self.conversation.turns.values():
            if turn.audio_start_ms is not None:
                end = turn.audio_end_ms / 1000 if turn.audio_end_ms is not None else duration_s
                spans.append((turn.audio_start_ms / 1000, max(end, turn.audio_start_ms / 1000)))
        return spans


def make(folder: Path, settings: ReplaySettings, words: WordSource) -> Result:
    """Write the outputs of a sample from its logs. A sample without any, or with a broken input, has failed."""
    try:
        results = [_make(folder, stem, settings, words) for stem in STEMS if log_folder(folder, stem).is_dir()]
    except (OSError, ValueError) as error:
        results = [_nothing(str(error))]
    first = results[0] if results else _nothing("it was not replayed")
    result = msgspec.structs.replace(
        first,
        ok=all(result.ok for result in results) and first.ok,
        failures=[text for result in results for text in result.failures] or first.failures,
        warnings=[text for result in results for text in result.warnings],
    )
    write_json(folder / RESULT_FILE, result)
    return result


def _nothing(failure: str) -> Result:
    return Result(False, [failure], [], 0.0, 0, 0, 0.0, 0.0, metric((), "ms", LAG))


def _make(folder: Path, stem: str, settings: ReplaySettings, words: WordSource) -> Result:
    heard = Heard(folder, stem, settings)
    samples = len(read_input(folder / f"{stem}input.wav"))
    duration = samples / SAMPLE_RATE
    write_wav(folder / f"{stem}output.wav", heard.output(samples), SAMPLE_RATE)
    if words == "server":
        write_json(folder / f"{stem}output.json", WordsFile.of(server_words(heard, duration), "server"))
        write_json(folder / f"{stem}input.json", WordsFile.of(user_words(heard, duration), "server"))
    verdict = check(heard.entries)
    lag = metric(heard.replay.lags_ms, "ms", LAG)
    if lag.max is not None and lag.p99 is not None and (lag.p99 > LATE_P99_MS or lag.max > LATE_MAX_MS):
        verdict.warnings.append(f"the recording was sent late (p99 {lag.p99:.0f} ms, largest {lag.max:.0f} ms)")
    responses = heard.conversation.responses.values()
    player = heard.playback.player
    return Result(
        ok=not verdict.failures,
        failures=verdict.failures,
        warnings=verdict.warnings,
        duration_s=round(duration, 6),
        responses=len(responses),
        responses_interrupted=sum(response.reason == "turn_detected" for response in responses),
        late_audio_ms=round(sum(player.late_samples.values()) / player.rate * 1000, 3),
        clipped_ms=round(heard.clipped_s(duration) * 1000, 3),
        pacing_lag=lag,
    )


def read_input(path: Path, rate: int = SAMPLE_RATE) -> NDArray[np.float32]:
    """A recording as mono float32 ``[n]`` at ``rate``. Raises ``WavError``, ``OSError``."""
    audio, source_rate = read_wav(path)
    return resample(audio, source_rate, rate)


def _pcm(audio: NDArray[np.float32]) -> bytes:
    """The very samples that a log's audio was read from."""
    pcm: bytes = np.rint(audio * 32768).astype(PCM16).tobytes()
    return pcm


# -- words -------------------------------------------------------------------------------------------------------------


def server_words(heard: Heard, duration_s: float) -> list[TimedWord]:
    """The words of all responses that were heard within the input, in order of time."""
    found = [
        word
        for response in heard.conversation.responses.values()
        for word in _response_words(heard, response)
        if word.end is not None and word.end <= duration_s
    ]
    return sorted(found, key=lambda word: word.start or 0.0)


def _response_words(heard: Heard, response: SeenResponse) -> list[TimedWord]:
    player = heard.playback.player
    audio = pcm16_to_float(heard.sound.of_response(response.response_id))
    places = spread(response.text.split(), audible_samples(audio))
    words = []
    for text, (first, last) in zip(response.text.split(), places, strict=True):
        start = player.time_of(response.response_id, first)
        end = player.time_of(response.response_id, last - 1)
        if start is not None and end is not None:
            words.append(TimedWord(text, round(start, 3), round(end + 1 / player.rate, 3)))
    return words


def user_words(heard: Heard, duration_s: float) -> list[TimedWord]:
    """The words of the user's turns as the server understood them, spread over each turn."""
    words = []
    for turn in heard.conversation.turns.values():
        if not turn.transcript or turn.audio_start_ms is None or turn.audio_end_ms is None:
            continue
        start, length = turn.audio_start_ms, max(1, turn.audio_end_ms - turn.audio_start_ms)
        texts = turn.transcript.split()
        for text, (first, last) in zip(texts, spread(texts, np.arange(length)), strict=True):
            words.append(TimedWord(text, (start + first) / 1000, min(duration_s, (start + last) / 1000)))
    return words


def audible_samples(audio: NDArray[np.float32]) -> NDArray[np.intp]:
    """Indices of the samples of audible 10 ms frames, of all samples if none is; ``audio`` at 24 kHz."""
    levels = frame_levels(audio, SAMPLE_RATE)
    frame = round(SAMPLE_RATE * FRAME_S)
    audible = np.repeat(levels >= AUDIBLE_DBFS, frame)
    return np.flatnonzero(audible) if audible.any() else np.arange(len(audio))


def spread(words: Sequence[str], samples: NDArray[np.intp]) -> list[tuple[int, int]]:
    """A half-open sample range for each word, in proportion to its length in letters, over ``samples`` in order."""
    if not words or not len(samples):
        return [(0, 0)] * len(words)
    ends = np.cumsum([len(word) + 1 for word in words])
    borders = [0, *(int(end * len(samples) // ends[-1]) for end in ends)]
    last = len(samples) - 1
    return [
        (int(samples[min(a, last)]), int(samples[max(min(b - 1, last), min(a, last))]) + 1)
        for a, b in pairwise(borders)
    ]


def write_json(path: Path, value: object) -> None:
    """Indented JSON with a final newline, written beside and renamed into place."""
    draft = path.with_name(path.name + ".part")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    draft.replace(path)
