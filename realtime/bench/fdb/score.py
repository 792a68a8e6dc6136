"""Scores of a set of replays, computed from the files in its folder alone (``benchmarks`` sections 2.2 to 2.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.wav import WavError, read_wav
from duologue.engine.voice_activity import SAMPLE_RATE as SPEECH_RATE
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.fdb.artifacts import (
    RESULT_FILE,
    Heard,
    Result,
    WordsFile,
    log_folder,
    read_input,
    write_json,
)
from duologue.realtime.bench.fdb.dataset import (
    REFERENCE_FILE,
    Annotation,
    AnnotationError,
    Task,
    in_order,
    load_annotation,
    read_json,
)
from duologue.realtime.bench.fdb.formulas import (
    MODEL_GAP_S,
    USER_GAP_S,
    Span,
    TimedWord,
    backchannel_jsd,
    backchannels,
    false_starts,
    first_word_latency,
    merge,
    per_hour,
    response_intervals,
    stop_intervals,
    takeover,
    touching,
)
from duologue.realtime.bench.fdb.judge import JudgeError, Overheard, Verdicts
from duologue.realtime.bench.fdb.prosody import Around, PairedT, Spoken, around, paired_t
from duologue.realtime.bench.fdb.runner import ReplaySettings
from duologue.realtime.bench.fdb.speech import Probabilities, SpeechRule, speech_segments

SCHEMA: Final = "duologue.fdb/1"
SCORES_FILE: Final = "fdb_scores.json"
INTERVALS_FILE: Final = "latency_intervals.json"
OVERLAPPING: Final = ("interruption", "overlap", "echo")
"""Tasks in which the user speaks while the server may."""


class ScoreError(ValueError):
    """The set cannot be scored; ``code`` is for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Seconds(msgspec.Struct, frozen=True):
    """A time over several samples or intervals."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> Seconds:
        measured = np.array(list(values), np.float64)
        if not len(measured):
            return cls(0)
        p50, p95 = (round(float(value), 6) for value in np.percentile(measured, (50, 95)))
        return cls(len(measured), round(float(measured.mean()), 6), p50, p95)


class Intervals(msgspec.Struct, frozen=True):
    """Over all intervals, and (ours, not upstream's) over those that touch the annotated event."""

    all: Seconds
    event: Seconds


class RatingScore(msgspec.Struct, frozen=True):
    n: int
    mean: float | None


class FalseStarts(msgspec.Struct, frozen=True):
    """What the server took for the user's speech where nobody spoke."""

    count: int
    per_hour: float | None
    outside_s: float
    """Seconds of input outside the user's turns."""


class SampleScore(msgspec.Struct, frozen=True):
    """One sample; ``None`` where the task has no such figure."""

    id: str
    tor: int | None = None
    latency_s: float | None = None
    stop: list[Span] | None = None
    response: list[Span] | None = None
    event: Span | None = None
    frequency: float | None = None
    jsd: float | None = None
    rating: float | None = None
    behaviour: str | None = None
    around: Around | None = None
    false_starts: list[Span] | None = None
    outside_s: float | None = None
    unparsed: int = 0
    """Ratings of the judge that could not be read."""


class SetScores(msgspec.Struct, frozen=True):
    """``fdb_scores.json``."""

    task: Task
    name: str
    attempted: int
    n: int
    failed: int
    excluded: int
    quirks: bool
    words: str | None
    tor: float | None
    latency_s: Seconds
    rating: RatingScore | None
    frequency: float | None
    jsd: float | None
    stop_latency_s: Intervals
    response_latency_s: Intervals
    behaviour: dict[str, float] | None
    before_after: dict[str, PairedT] | None
    """By measure of :class:`Spoken`: the answer before (a) and after (b) the overlap."""
    clean_after: dict[str, PairedT] | None
    """The answer without the overlap (a) and after it (b)."""
    false_starts: FalseStarts | None
    judge: str | None
    reasons: dict[str, str]
    """Why a sample failed or was left out."""
    samples: list[SampleScore]
    schema: str = SCHEMA


class Sounds:
    """Speech in recordings."""

    def __init__(self, probabilities: Probabilities) -> None:
        self._probabilities = probabilities

    def frames(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """Speech probability of each frame of 32 ms; ``audio`` at 16 kHz."""
        return self._probabilities(audio)

    def segments(self, path: Path, *, rate_ignored: bool = False) -> list[Span]:
        """Speech segments of a recording; ``rate_ignored``: its samples are read as if they were at 16 kHz."""
        audio = read_wav(path)[0] if rate_ignored else read_input(path, SPEECH_RATE)
        return speech_segments(self.frames(audio).tolist(), len(audio), SpeechRule())


class Scorer:
    """Scores one set."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        sounds: Sounds,
        verdicts: Verdicts,
        *,
        quirks: bool = False,
        settings: ReplaySettings | None = None,
        reference: Path | None = None,
    ) -> None:
        self._folder = folder
        self._task = task
        self._sounds = sounds
        self._verdicts = verdicts
        self._quirks = quirks
        self._settings = settings or ReplaySettings()
        self._reference = _load_reference(reference or folder / REFERENCE_FILE)
        self._reasons: dict[str, str] = {}
        self._judges: set[str] = set()
        self._sources: set[str] = set()
        self._failed = 0

    def score(self, ids: Sequence[str] | None = None, excluded: dict[str, str] | None = None) -> SetScores:
        """All figures of the samples ``ids`` (default: every folder). Raises :class:`ScoreError`, ``OSError``."""
        self._reasons.update(excluded or {})
        names = list(ids) if ids is not None else self._folders()
        samples: list[SampleScore] = []
        scored = self._turn_taking_by_position(names) if self._by_position else ((name, None) for name in names)
        for name, annotation in scored:
            score = self._sample(name, annotation, samples[-1] if samples else None)
            if score is not None:
                samples.append(score)
        if self._task == "pause" and self._quirks:
            samples += self._other_outputs(names)
        return self._summary(len(names) + len(excluded or {}), samples)

    # -- which samples -------------------------------------------------------------------------------------------------

    def _folders(self) -> list[str]:
        names = sorted((path.name for path in self._folder.iterdir() if path.is_dir()), key=in_order)
        if self._task == "backchannel" and self._quirks:
            names = [name for name in names if name.isdigit()]
        if not names:
            raise ScoreError("no_samples", f"{self._folder}: no samples in it")
        return names

    @property
    def _by_position(self) -> bool:
        return self._task == "turn_taking" and self._quirks

    def _turn_taking_by_position(self, names: Sequence[str]) -> list[tuple[str, Annotation]]:
        """Upstream lists outputs and annotations apart and pairs them by position: a gap shifts all that follow."""
        outputs = [name for name in names if (self._folder / name / "output.json").is_file()]
        annotated = [name for name in names if (self._folder / name / "turn_taking.json").is_file()]
        return [
            (name, load_annotation(self._folder / source, self._task))
            for name, source in zip(outputs, annotated, strict=False)
        ]

    def _other_outputs(self, names: Sequence[str]) -> list[SampleScore]:
        """Upstream's pause score takes every file whose name ends in ``output.json`` for a sample."""
        return [
            SampleScore(f"{name}/{path.name}", tor=takeover(read_json(path, WordsFile).words))
            for name in names
            for path in sorted((self._folder / name).glob("*output.json"))
            if path.name != "output.json"
        ]

    # -- one sample ----------------------------------------------------------------------------------------------------

    def _sample(self, name: str, annotation: Annotation | None, before: SampleScore | None) -> SampleScore | None:
        folder = self._folder / name
        try:
            if (folder / RESULT_FILE).is_file():
                result = read_json(folder / RESULT_FILE, Result)
                if not result.ok:
                    self._failed += 1
                    self._reasons[name] = "; ".join(result.failures)
                    return None
            annotation = annotation or load_annotation(folder, self._task)
            if not (folder / "output.json").is_file():
                return self._without_words(name, before)
            output = read_json(folder / "output.json", WordsFile)
            self._sources.add(output.source or "unknown")
            return self._figures(name, folder, annotation, output)
        except (AnnotationError, WavError, OSError) as error:
            self._reasons[name] = str(error)
            return None

    def _without_words(self, name: str, before: SampleScore | None) -> SampleScore | None:
        if self._task != "backchannel" or not self._quirks:
            self._reasons[name] = "output.json is missing"
            return None
        if before is None:
            raise ScoreError("no_words", f"{name}: the first sample has no output.json")
        return SampleScore(name, tor=before.tor, frequency=0.0, jsd=1.0)

    def _figures(self, name: str, folder: Path, annotation: Annotation, output: WordsFile) -> SampleScore:
        words = output.words
        if self._task == "interruption" and annotation.event:
            words = [word for word in words if word.start is not None and word.start >= annotation.event[1]]
        known: dict[str, Any] = {"event": annotation.event, "tor": takeover(words)}
        since = annotation.turn_end if self._task == "turn_taking" else (annotation.event or (0.0, 0.0))[1]
        if self._task in ("turn_taking", "interruption") and known["tor"] and since is not None:
            known["latency_s"] = first_word_latency(words, since)
        if self._task == "backchannel":
            known |= self._backchannel(name, folder, words)
        if self._task in OVERLAPPING:
            known |= self._overlap(folder)
        if self._task == "interruption" and known["tor"]:
            known |= self._rating(name, folder, annotation, words)
        if self._task == "overlap":
            known["tor"] = None
            known |= self._behaviour(name, folder, annotation, output)
            known["around"] = self._around(folder, annotation, output)
        if annotation.turns is not None and log_folder(folder, "").is_dir():
            known |= self._false_starts(folder, annotation.turns)
        return SampleScore(name, **known)

    def _backchannel(self, name: str, folder: Path, words: Sequence[TimedWord]) -> dict[str, Any]:
        path = folder / "output.wav"
        segments = self._sounds.segments(path, rate_ignored=self._quirks)
        if self._quirks:
            segments = [(round(start, 1), round(end, 1)) for start, end in segments]
        audio, rate = read_wav(path)
        duration = len(audio) / rate
        tor, kept = backchannels(segments, words)
        reference = self._reference.get(name)
        jsd = None if reference is None else backchannel_jsd(kept, duration, reference, quirks=self._quirks)
        if reference is None:
            self._reasons.setdefault(name, f"no reference distribution for it in {REFERENCE_FILE}, so no JSD")
        return {"tor": tor, "frequency": len(kept) / duration if duration else None, "jsd": jsd}

    def _overlap(self, folder: Path) -> dict[str, Any]:
        user = merge(self._sounds.segments(folder / "input.wav"), USER_GAP_S)
        model = merge(self._sounds.segments(folder / "output.wav"), MODEL_GAP_S)
        stop, response = stop_intervals(user, model), response_intervals(user, model)
        write_json(folder / INTERVALS_FILE, {"latency_stop_list": stop, "latency_resp_list": response})
        return {"stop": stop, "response": response}

    def _rating(self, name: str, folder: Path, annotation: Annotation, words: Sequence[TimedWord]) -> dict[str, Any]:
        answer = " ".join(word.text for word in words)
        try:
            verdict = self._verdicts.rating(folder, annotation.context, annotation.event_text, answer)
        except JudgeError as error:
            self._reasons[name] = str(error)
            return {}
        if verdict is None or verdict.rating is None:
            return {}
        self._judges.add(verdict.judge)
        return {"rating": verdict.rating.score, "unparsed": verdict.rating.unparsed}

    def _behaviour(self, name: str, folder: Path, annotation: Annotation, output: WordsFile) -> dict[str, Any]:
        def text(file: str) -> str:
            return read_json(folder / file, WordsFile).text if (folder / file).is_file() else ""

        heard = Overheard(
            event=annotation.event_text,
            noisy_input=text("input.json"),
            noisy_output=output.text,
            clean_input=text("clean_input.json"),
            clean_output=text("clean_output.json"),
        )
        try:
            verdict = self._verdicts.behaviour(folder, heard)
        except JudgeError as error:
            self._reasons[name] = str(error)
            return {}
        if verdict is None:
            return {}
        self._judges.add(verdict.judge)
        return {"behaviour": verdict.behaviour}

    def _around(self, folder: Path, annotation: Annotation, output: WordsFile) -> Around | None:
        if annotation.event is None or not (folder / "clean_output.json").is_file():
            return None
        clean = read_json(folder / "clean_output.json", WordsFile)
        return around(
            output.words,
            read_input(folder / "output.wav"),
            clean.words,
            read_input(folder / "clean_output.wav"),
            SAMPLE_RATE,
            annotation.event[1],
        )

    def _false_starts(self, folder: Path, turns: Sequence[Span]) -> dict[str, Any]:
        heard = Heard(folder, "", self._settings)
        duration = len(read_input(folder / "input.wav")) / SAMPLE_RATE
        wrong = [span for span in false_starts(heard.server_speech(duration), turns) if span[0] < duration]
        outside = duration - sum(end - start for start, end in turns)
        return {"false_starts": wrong, "outside_s": round(outside, 6)}

    # -- the whole set -------------------------------------------------------------------------------------------------

    def _summary(self, attempted: int, samples: list[SampleScore]) -> SetScores:
        tors = [sample.tor for sample in samples if sample.tor is not None]
        ratings = [sample.rating for sample in samples if sample.rating is not None]
        latencies = [sample.latency_s for sample in samples if sample.latency_s is not None]
        if self._quirks:
            ratings *= 2  # appended twice
            tors += [1 for sample in samples for _ in range(sample.unparsed)]  # entered again with each retry
            if self._task in ("turn_taking", "interruption") and not latencies:
                raise ScoreError("no_turn_taken", f"{self._folder.name}: no sample with a turn taken")
        wrong = [sample for sample in samples if sample.false_starts is not None]
        return SetScores(
            task=self._task,
            name=self._folder.name,
            attempted=attempted,
            n=len(samples),
            failed=self._failed,
            excluded=max(0, attempted - self._failed - len({sample.id.split("/")[0] for sample in samples})),
            quirks=self._quirks,
            words="+".join(sorted(self._sources)) or None,
            tor=_mean(tors),
            latency_s=Seconds.of(latencies),
            rating=RatingScore(len(ratings), _mean(ratings)) if ratings else None,
            frequency=_mean([sample.frequency for sample in samples if sample.frequency is not None]),
            jsd=_mean([sample.jsd for sample in samples if sample.jsd is not None]),
            stop_latency_s=_intervals(samples, "stop"),
            response_latency_s=_intervals(samples, "response"),
            behaviour=_ratios([sample.behaviour for sample in samples if sample.behaviour]),
            before_after=_paired(samples, "before"),
            clean_after=_paired(samples, "clean"),
            false_starts=_all_false_starts(wrong) if wrong else None,
            judge="+".join(sorted(self._judges)) or None,
            reasons=self._reasons,
            samples=samples,
        )


def _load_reference(path: Path) -> dict[str, list[float]]:
    return read_json(path, dict[str, list[float]]) if path.is_file() else {}


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 6) if values else None


def _intervals(samples: Sequence[SampleScore], kind: str) -> Intervals:
    found = [(sample, span) for sample in samples for span in getattr(sample, kind) or ()]
    at_event = [span for sample, span in found if sample.event and touching([span], sample.event)]
    return Intervals(Seconds.of(e - s for _, (s, e) in found), Seconds.of(e - s for s, e in at_event))


def _ratios(labels: Sequence[str]) -> dict[str, float] | None:
    counts = Counter(labels)
    return {label: round(count / len(labels), 2) for label, count in sorted(counts.items())} if labels else None


def _paired(samples: Sequence[SampleScore], side: Literal["before", "clean"]) -> dict[str, PairedT] | None:
    measured = [sample.around for sample in samples if sample.around is not None]
    if not measured:
        return None
    return {
        field: paired_t((getattr(getattr(pair, side), field), getattr(pair.after, field)) for pair in measured)
        for field in Spoken.__struct_fields__
    }


def _all_false_starts(samples: Sequence[SampleScore]) -> FalseStarts:
    count = sum(len(sample.false_starts or ()) for sample in samples)
    outside = sum(sample.outside_s or 0.0 for sample in samples)
    rate = per_hour(count, [], outside)
    return FalseStarts(count, None if rate is None else round(rate, 3), round(outside, 3))
