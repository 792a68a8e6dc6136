"""The report of ``duologue bench voice``: computed from a run's files and from nothing else, then printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from duologue.engine.words import WordErrors, word_errors
from duologue.realtime.bench.caller import CallerSettings
from duologue.realtime.bench.goodput import Goodput, goodput, run_seconds
from duologue.realtime.bench.intelligibility import RecognisedReply
from duologue.realtime.bench.measures import AUDIO_DURATION, AUDIO_TTFP, AUDIO_UNDERRUN, PARTS, TOTAL
from duologue.realtime.bench.server_process import Phase, ServerSample
from duologue.realtime.bench.summary import Metric, metric
from duologue.realtime.bench.utterances import Utterance
from duologue.realtime.bench.voice_score import (
    CONTINUOUS_S,
    NOT_STOPPED_MS,
    CallScore,
    Delivery,
    UtteranceResult,
    score_call,
)
from duologue.realtime.event_log import load_audio, load_entries

SCHEMA = "duologue.bench.voice/1"
RUN, UTTERANCES, SERVER, REPLIES = "run.json", "utterances.jsonl", "server.jsonl", "replies.jsonl"
WITHIN_S = (0.5, 1.0, 2.0, 4.0)
RESULTS, REPORT, CALLS = "results.jsonl", "bench.json", "calls"


class PlannedCall(msgspec.Struct, frozen=True):
    """One connection of the run: which caller made it, and what was said on it."""

    name: str
    session: int
    utterance_ids: list[str]


class RunInfo(msgspec.Struct, frozen=True):
    """Conditions of a run, written before it starts (but for ``ready_s`` of our own server, known by then)."""

    url: str
    own_server: bool
    sessions: int
    utterances: int
    barge_ins: int
    seed: int
    speech: str | None
    left_out: dict[str, str]
    settings: CallerSettings
    calls: list[PlannedCall]
    ready_s: float | None
    machine: dict[str, Any]
    model: str | None = None
    baseline: bool = False
    recogniser: str | None = None
    """Recognises the answers again; another one would give other figures."""
    not_measured: dict[str, str] = {}
    """Parts of the report that stay null, with the reason."""
    goodput: dict[str, float] = {}
    """Limits by measure that an answer must keep to be a good one."""


class Words(msgspec.Struct, frozen=True):
    """Word errors of a group of utterances."""

    utterances: int
    words: int
    errors: int
    wer: float | None


class Answers(msgspec.Struct, frozen=True):
    """What became of the utterances that were to be answered; the five counts add up to ``attempted``."""

    attempted: int
    answered: int
    wrong_words: int
    early: int
    unanswered: int
    failed: int
    answered_share: float | None
    reasons: dict[str, int]
    false_starts: int = 0
    """Turns in which nobody had spoken yet, and that were not answered; the utterance after one counts as usual."""
    within: dict[str, float] = {}
    """Share of all that were attempted that were answered rightly, voice to voice, within so many seconds. Unlike a
    percentile it counts those that never were."""


class BargeIns(msgspec.Struct, frozen=True):
    """The interruptions. ``not_overlapping`` ones came when nothing was left to interrupt."""

    attempted: int
    measured: int
    not_overlapping: int
    failed: int
    not_stopped_in_2_s: int
    stop_latency: Metric
    server_stop: Metric
    detect: Metric
    late_audio: Metric


class Underruns(msgspec.Struct, frozen=True):
    """How a player fared that starts an answer with its first delta."""

    responses: int
    """With at least two deltas; the others cannot starve and are not counted."""
    total_s: float | None
    starved: int | None
    longest_s: float | None
    continuity: float | None
    """Share of responses with at most 0.1 s of underrun."""


class ServerUse(msgspec.Struct, frozen=True):
    """The server's processes; ``None`` where the server was not ours to watch."""

    ready_s: float | None
    idle_cpu_share: float | None
    """CPU seconds per second of one core before the run."""
    cpu_s_per_session_s: float | None
    rss_max_bytes: int | None
    stolen_share: float | None
    """Of this machine's cores during the run: what its host gave to others. ``None`` where it does not say."""


class Intelligibility(msgspec.Struct, frozen=True):
    """Answers recognised again against their transcripts; ``words_kept`` = 1 - word error rate."""

    replies: int
    words: int | None
    words_kept: float | None


class BenchReport(msgspec.Struct, frozen=True):
    """Everything ``duologue bench voice`` measured."""

    run: RunInfo
    answers: Answers
    metrics: dict[str, Metric]
    recognition: dict[str, Words]
    barge_in: BargeIns
    underrun: Underruns
    server: ServerUse
    intelligibility: Intelligibility
    server_errors: dict[str, int]
    session_s: float
    schema: str = SCHEMA
    goodput: Goodput | None = None
    """None: no limits were set."""


T = TypeVar("T")


def read_lines(path: Path, kind: type[T]) -> list[T]:
    """Rows of a JSON-lines file; none if it does not exist."""
    return msgspec.json.Decoder(kind).decode_lines(path.read_bytes()) if path.exists() else []


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    path.write_bytes(msgspec.json.Encoder().encode_lines(rows))


def compute(run: Path) -> tuple[BenchReport, list[CallScore]]:
    """All figures of a finished run, from its files.

    Raises ``OSError`` or ``msgspec.DecodeError`` if files are missing or broken.
    """
    info = msgspec.json.decode((run / RUN).read_bytes(), type=RunInfo)
    utterances = {utterance.id: utterance for utterance in read_lines(run / UTTERANCES, Utterance)}
    scores = [
        _score(run / CALLS / call.name, [utterances[id_] for id_ in call.utterance_ids], info.settings)
        for call in info.calls
    ]
    server = read_lines(run / SERVER, ServerSample)
    replies = read_lines(run / REPLIES, RecognisedReply)
    return _report(info, utterances, scores, server, replies), scores


def _score(folder: Path, planned: Sequence[Utterance], settings: CallerSettings) -> CallScore:
    if not folder.exists():  # the run was ended before this call
        return score_call(folder.name, planned, [], np.zeros(0, np.float32), settings.client_policy)
    return score_call(folder.name, planned, load_entries(folder), load_audio(folder), settings.client_policy)


def _report(
    info: RunInfo,
    utterances: dict[str, Utterance],
    scores: Sequence[CallScore],
    server: Sequence[ServerSample],
    replies: Sequence[RecognisedReply],
) -> BenchReport:
    deliveries = [delivery for score in scores for delivery in score.deliveries]
    asked = [r for score in scores for r in score.results if utterances[r.id].kind == "answer"]
    seconds = run_seconds({call.name: call.session for call in info.calls}, scores)
    session_s = sum(score.duration_s for score in scores)
    return BenchReport(
        run=info,
        answers=_answers(asked),
        metrics=_metrics(utterances, scores),
        recognition=_recognition(utterances, scores),
        barge_in=_barge_ins(utterances, scores),
        underrun=_underruns(deliveries),
        server=_server_use(info, server, session_s),
        intelligibility=_intelligibility(replies),
        server_errors=dict(Counter(error for score in scores for error in score.server_errors)),
        session_s=round(session_s, 3),
        goodput=goodput(info.goodput, asked, scores, seconds) if info.goodput else None,
    )


def _answers(results: Sequence[UtteranceResult]) -> Answers:
    outcomes = Counter(result.outcome for result in results)
    # Reasons carry figures; grouping by the words in front of them keeps the table short.
    reasons = Counter(f"{r.outcome}: {r.reason.rstrip('0123456789. ')}" for r in results if r.reason)
    return Answers(
        attempted=len(results),
        answered=outcomes["answered"],
        wrong_words=outcomes["wrong_words"],
        early=outcomes["early"],
        unanswered=outcomes["unanswered"],
        failed=outcomes["failed"],
        answered_share=round(outcomes["answered"] / len(results), 4) if results else None,
        reasons=dict(reasons.most_common()),
        false_starts=sum(result.false_starts for result in results),
        within=within(results),
    )


def within(results: Sequence[UtteranceResult]) -> dict[str, float]:
    """Share of all ``results`` that were answered rightly within each of ``WITHIN_S`` seconds."""
    times = [r.split.v2v_ms for r in results if r.outcome == "answered" and r.split is not None]
    heard = [time for time in times if time is not None]
    if not results:
        return {}
    return {f"{s:g}": round(sum(time <= s * 1000 for time in heard) / len(results), 4) for s in WITHIN_S}


def _metrics(utterances: dict[str, Utterance], scores: Sequence[CallScore]) -> dict[str, Metric]:
    """Voice-to-voice time and parts over the answered utterances; delivery and pacing over everything."""
    splits = [
        result.split
        for score in scores
        for result in score.results
        if result.split is not None and result.outcome == "answered" and utterances[result.id].kind == "answer"
    ]
    metrics = {"v2v": metric((split.v2v_ms for split in splits), "ms", TOTAL)}
    for part, formula in PARTS.items():
        metrics[part] = metric((getattr(split, f"{part}_ms") for split in splits), "ms", formula)
    deliveries = [delivery for score in scores for delivery in score.deliveries]
    metrics["audio_rtf_gen"] = metric(
        (d.first_to_done_s / d.audio_s for d in deliveries if d.first_to_done_s is not None and d.audio_s),
        "1",
        "(response.done - first audio delta) / seconds of audio received",
    )
    metrics["audio_ttfp"] = metric((d.ttfp_ms for d in deliveries), "ms", AUDIO_TTFP)
    metrics["audio_underrun"] = metric((d.underrun_s for d in deliveries), "s", AUDIO_UNDERRUN)
    metrics["audio_duration"] = metric((d.audio_s for d in deliveries), "s", AUDIO_DURATION)
    lags = (lag for score in scores for lag in score.pacing_lags_ms)
    metrics["pacing_lag"] = metric(lags, "ms", "chunk handed to the transport - its due time, at least 0")
    return metrics


def _recognition(utterances: dict[str, Utterance], scores: Sequence[CallScore]) -> dict[str, Words]:
    """Word errors by group. Utterances without any transcript count with all their words as errors."""
    groups: dict[str, Callable[[Utterance], bool]] = {
        "all": lambda u: True,
        "recordings": lambda u: u.source == "recording",
        "recordings_clean": lambda u: u.source == "recording" and u.noise == "none",
        "synthesised": lambda u: u.source == "synthesised",
    }
    rows = [
        (utterances[result.id], word_errors(utterances[result.id].words, result.transcript or ""))
        for score in scores
        for result in score.results
        if utterances[result.id].kind == "answer"
    ]
    table = {}
    for name, belongs in groups.items():
        members = [errors for utterance, errors in rows if belongs(utterance)]
        total = sum(members, WordErrors(0, 0))
        table[name] = Words(len(members), total.words, total.errors, round(total.rate, 4) if total.words else None)
    return table


def _barge_ins(utterances: dict[str, Utterance], scores: Sequence[CallScore]) -> BargeIns:
    results = [r for score in scores for r in score.results if utterances[r.id].kind == "barge_in"]
    tried = [result.barge_in for result in results if result.barge_in is not None]
    measured = [barge_in for barge_in in tried if barge_in.overlapping]
    stops = [barge_in.stop_latency_ms for barge_in in measured]
    return BargeIns(
        attempted=len(results),
        measured=len(measured),
        not_overlapping=len(tried) - len(measured),
        failed=len(results) - len(tried),
        not_stopped_in_2_s=sum(stop is not None and stop > NOT_STOPPED_MS for stop in stops),
        stop_latency=metric(stops, "ms", "last audible sample heard of the answer - onset of the interruption, >= 0"),
        server_stop=metric(
            (b.server_stop_ms for b in measured), "ms", "last audio delta of the answer received - onset"
        ),
        detect=metric((b.detect_ms for b in measured), "ms", "speech_started received - onset"),
        late_audio=metric((b.late_audio_ms for b in measured), "ms", "audio received after the client had stopped"),
    )


def _underruns(deliveries: Sequence[Delivery]) -> Underruns:
    starved = [delivery.underrun_s for delivery in deliveries if delivery.underrun_s is not None]
    if not starved:
        return Underruns(0, None, None, None, None)
    return Underruns(
        responses=len(starved),
        total_s=round(sum(starved), 6),
        starved=sum(seconds > 0 for seconds in starved),
        longest_s=max(delivery.longest_stall_s or 0.0 for delivery in deliveries),
        continuity=round(sum(seconds <= CONTINUOUS_S for seconds in starved) / len(starved), 4),
    )


def _server_use(info: RunInfo, samples: Sequence[ServerSample], session_s: float) -> ServerUse:
    marks = {sample.phase: sample for sample in samples if sample.phase != "sample"}

    def spent(what: Literal["cpu_s", "stolen_s"], first: Phase, last: Phase) -> tuple[float, float] | None:
        """How much between two marks, and within how many seconds."""
        if first not in marks or last not in marks:
            return None
        before, after = getattr(marks[first], what), getattr(marks[last], what)
        return None if before is None or after is None else (after - before, marks[last].t_s - marks[first].t_s)

    idle, run = spent("cpu_s", "idle_start", "idle_end"), spent("cpu_s", "run_start", "run_end")
    stolen = spent("stolen_s", "run_start", "run_end")
    return ServerUse(
        ready_s=info.ready_s,
        idle_cpu_share=round(idle[0] / idle[1], 4) if idle else None,
        cpu_s_per_session_s=round(run[0] / session_s, 4) if run and session_s else None,
        rss_max_bytes=max((sample.rss_bytes for sample in samples), default=None),
        stolen_share=round(stolen[0] / stolen[1], 4) if stolen else None,
    )


def _intelligibility(replies: Sequence[RecognisedReply]) -> Intelligibility:
    if not replies:
        return Intelligibility(0, None, None)
    total = sum((word_errors(r.transcript, r.recognised) for r in replies), WordErrors(0, 0))
    return Intelligibility(len(replies), total.words, round(max(0.0, 1 - total.rate), 4))
