"""What the simulated callers say: real recordings and synthesised sentences under many conditions, by seed.

A *condition* is one text or recording at one gain with one background. None is repeated; the leading silence differs
too, in samples, so that speech meets the detectors' frames at every phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.resample import resample
from duologue.codecs.wav import read_wav
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.levels import SpeechBounds, speech_bounds, user_speech
from duologue.realtime.bench.noise import NoiseKind, noise_loop

Source = Literal["recording", "synthesised"]
Kind = Literal["answer", "barge_in"]

WORDS = {
    "cards-001.wav": "ten of clubs",
    "cards-003.wav": "seven of clubs",
    "cards-004.wav": "five five",
    "goforward.wav": "go forward ten meters",
    "jfk-ask-not.wav": "and so my fellow americans ask not what your country can do for you ask what you can do for"
    " your country",
    "librivox-austen-0870.wav": "and mister john dashwood had then leisure to consider how much there might be"
    " prudently in his power to do for them",
    "librivox-austen-0880.wav": "he was not an ill disposed young man",
    "librivox-austen-0890.wav": "unless to be rather cold hearted and rather selfish is to be ill disposed",
    "librivox-austen-0920.wav": "had he married a more amiable woman he might have been made still more respectable"
    " than he was",
    "librivox-austen-0930.wav": "he might even have been made amiable himself",
    "numbers.wav": "thirty three four six ninety two",
    "something.wav": "go somewhere and do something",
}
"""True words of known recordings. A folder of others brings a ``transcripts.tsv`` of ``file<TAB>words`` lines."""

SENTENCES = (
    "What is the capital of France?",
    "Can you tell me how rain is made?",
    "Please explain why the sky is blue.",
    "I would like to learn how to bake bread.",
    "Which animals sleep through the winter?",
    "How do I get a stain out of a white shirt?",
    "Tell me something about the moon.",
    "Do you know a good book for a long journey?",
    "My sister is coming to visit next week.",
    "What should I cook for dinner tonight?",
    "How far away is the sun?",
    "Could you help me write a short letter?",
    "The garden looks lovely in the spring.",
    "Why do cats like to sit in boxes?",
    "What is the best way to learn a language?",
    "I forgot where I put my keys.",
    "Who painted the ceiling of the chapel?",
    "Is it better to walk or to take the bus?",
    "How long does it take to boil an egg?",
    "Tell me about the history of the bicycle.",
    "What makes a good friend?",
    "Why is the sea salty?",
    "I think we should leave before it gets dark.",
    "Can fish hear sounds under water?",
    "What do you like about music?",
    "How can I sleep better at night?",
    "Please give me an idea for a birthday present.",
    "Where do birds go when it is cold?",
    "What happens when water turns into ice?",
    "I am looking for a quiet place to read.",
)
LONG_REQUESTS = (
    "Please tell me a long story about a sailor and the sea.",
    "Explain in detail how a train works.",
    "Tell me everything you know about the ocean.",
    "Please describe a walk through a forest in the autumn.",
)
INTERRUPTIONS = ("Stop, please wait a moment.", "Sorry, let me ask something else.", "Thank you, that is enough.")

GAINS_DB = (0.0, -6.0, -12.0)
BACKGROUNDS: tuple[tuple[NoiseKind, float], ...] = (
    ("none", 0.0),
    ("white", 30.0),
    ("white", 20.0),
    ("pink", 25.0),
    ("pink", 15.0),
    ("hum", 20.0),
)
LEAD_S = (0.4, 1.2)
BARGE_IN_AFTER_S = (0.6, 1.6)


class Utterance(msgspec.Struct, frozen=True):
    """One thing to be said, fully determined: rendering it twice gives the same samples."""

    id: str
    kind: Kind
    source: Source
    name: str
    """File of the recording, or text of the sentence."""
    words: str
    gain_db: float
    noise: NoiseKind
    snr_db: float
    lead_samples: int
    """Silence (but for the background) before the recording begins, at 24 kHz."""
    noise_seed: int
    interruption: str | None = None
    """For ``barge_in``: what is said over the answer."""
    barge_in_after_s: float | None = None
    """How long the answer has been playing by then."""


class Rendered(msgspec.Struct, frozen=True):
    """Sound of an utterance: float32 at 24 kHz, with the true places of its speech in samples."""

    speech: NDArray[np.float32]
    background: NDArray[np.float32]
    """Loop that goes on under and after the speech."""
    start: int
    end: int


class Library:
    """Source material: recordings of a folder, and the packaged voice for sentences. Caches what it reads."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._cache: dict[tuple[Source, str], tuple[NDArray[np.float32], SpeechBounds]] = {}
        self._voice: object | None = None
        self.words = transcripts(folder) if folder else {}
        self.left_out: dict[str, str] = {}
        """Recordings that cannot be one turn, with the reason."""

    def recordings(self, longest_pause_s: float) -> list[str]:
        """Names of the recordings with known words and no inner pause that would end the turn."""
        usable = []
        for name in sorted(self.words):
            audio, _ = self.sound("recording", name)
            bounds = speech_bounds(audio, SAMPLE_RATE)
            pause = bounds.longest_pause / SAMPLE_RATE if bounds is not None else 0.0
            if pause <= longest_pause_s:
                usable.append(name)
            else:
                self.left_out[name] = f"pauses for {pause:.2f} s inside"
        return usable

    def sound(self, source: Source, name: str) -> tuple[NDArray[np.float32], SpeechBounds]:
        """Samples ``[n]`` at 24 kHz and where the speech in them lies. Raises ``ValueError`` for silence."""
        key = (source, name)
        if key not in self._cache:
            if source == "recording":
                assert self._folder is not None
                audio, rate = read_wav(self._folder / name)
                audio = resample(audio, rate, SAMPLE_RATE)
            else:
                audio = self._speak(name)
            bounds = user_speech(audio, SAMPLE_RATE)
            if bounds is None:
                raise ValueError(f"{name}: nothing audible in it")
            self._cache[key] = (audio, bounds)
        return self._cache[key]

    def render(self, utterance: Utterance, rate: int = SAMPLE_RATE) -> Rendered:
        """Lead, gain and background applied."""
        audio, bounds = self.sound(utterance.source, utterance.name)
        gain = 10 ** (utterance.gain_db / 20)
        speech = np.concatenate([np.zeros(utterance.lead_samples, np.float32), audio * np.float32(gain)])
        loop = noise_loop(utterance.noise, rate, np.random.default_rng(utterance.noise_seed))
        power = float(np.mean(np.square(audio[bounds.start : bounds.end], dtype=np.float64)))
        level = gain * np.sqrt(power) * 10 ** (-utterance.snr_db / 20)
        lead = utterance.lead_samples
        return Rendered(speech, loop * np.float32(level), bounds.start + lead, bounds.end + lead)

    def render_interruption(self, text: str) -> Rendered:
        """An interruption, without lead: it begins with its first audible sample."""
        audio, bounds = self.sound("synthesised", text)
        length = bounds.end - bounds.start
        silence = noise_loop("none", SAMPLE_RATE, np.random.default_rng(0))
        return Rendered(audio[bounds.start :], silence, 0, length)

    def _speak(self, text: str) -> NDArray[np.float32]:
        if self._voice is None:
            from hibari import Hibari

            self._voice = Hibari()
        return self._voice(text, seed=0)  # type: ignore[operator]


def plan(count: int, barge_ins: int, library: Library, *, seed: int, longest_pause_s: float) -> list[Utterance]:
    """``count`` utterances to be answered, then ``barge_ins`` to be interrupted, in an order fixed by ``seed``.

    Recordings and sentences take turns. Every one of them is said clean at full level before conditions vary. Raises
    ``ValueError`` if there are fewer conditions than ``count``.
    """
    rng = np.random.default_rng(seed)
    recordings = library.recordings(longest_pause_s)
    streams = [_conditions("recording", recordings, rng), _conditions("synthesised", SENTENCES, rng)]
    chosen: list[tuple[Source, str, float, NoiseKind, float]] = []
    while len(chosen) < count and streams:
        for stream in list(streams):
            condition = next(stream, None)
            if condition is None:
                streams.remove(stream)
            elif len(chosen) < count:
                chosen.append(condition)
    if len(chosen) < count:
        raise ValueError(f"only {len(chosen)} different conditions exist, {count} were asked for")
    utterances = [_utterance(f"u{index:04d}", *condition, library, rng) for index, condition in enumerate(chosen)]
    for index in range(barge_ins):
        text = LONG_REQUESTS[index % len(LONG_REQUESTS)]
        base = _utterance(f"b{index:04d}", "synthesised", text, 0.0, "none", 0.0, library, rng)
        interruption = INTERRUPTIONS[index % len(INTERRUPTIONS)]
        after = round(float(rng.uniform(*BARGE_IN_AFTER_S)), 3)
        utterances.append(
            msgspec.structs.replace(base, kind="barge_in", interruption=interruption, barge_in_after_s=after)
        )
    return utterances


def _conditions(
    source: Source, names: Sequence[str], rng: np.random.Generator
) -> Iterator[tuple[Source, str, float, NoiseKind, float]]:
    """Each name once per round; the first round is clean at full level, each name has its own order after that."""
    settings = [(gain, kind, snr) for gain in GAINS_DB for kind, snr in BACKGROUNDS]
    orders = {name: [0, *(1 + rng.permutation(len(settings) - 1))] for name in names}
    for index in range(len(settings)):
        for name in names:
            yield (source, name, *settings[orders[name][index]])


def _utterance(
    id_: str,
    source: Source,
    name: str,
    gain_db: float,
    noise: NoiseKind,
    snr_db: float,
    library: Library,
    rng: np.random.Generator,
) -> Utterance:
    lead = int(rng.integers(round(LEAD_S[0] * SAMPLE_RATE), round(LEAD_S[1] * SAMPLE_RATE)))
    words = library.words[name] if source == "recording" else name
    return Utterance(id_, "answer", source, name, words, gain_db, noise, snr_db, lead, int(rng.integers(2**31)))


def transcripts(folder: Path) -> dict[str, str]:
    """True words of the recordings in ``folder`` that have any. Raises ``ValueError`` if none has."""
    table = folder / "transcripts.tsv"
    words = dict(WORDS)
    if table.exists():
        rows = (line.split("\t", 1) for line in table.read_text(encoding="utf-8").splitlines() if "\t" in line)
        words = {name.strip(): text.strip() for name, text in rows}
    present = {name: text for name, text in words.items() if (folder / name).exists()}
    if not present:
        raise ValueError(f"{folder}: no recording with known words (transcripts.tsv: file<TAB>words)")
    return present
