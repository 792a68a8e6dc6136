"""Figures of one call, computed from its log alone: a pure function of the events and the received audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.engine.words import word_errors
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.conversation import Conversation, SeenResponse, Turn
from duologue.realtime.bench.playback import ClientPlayback, Player, Policy, underrun
from duologue.realtime.bench.utterances import Utterance
from duologue.realtime.bench.voice_to_voice import VoiceSplit, first_heard_s, last_heard_s, voice_split
from duologue.realtime.client import Received, ServerMessage
from duologue.realtime.event_log import LogEntry

Outcome = Literal["answered", "wrong_words", "early", "unanswered", "failed"]
RIGHT_WORDS_WER = 0.34
"""An answered utterance counts as understood up to this word error rate of its transcript."""
CONTINUOUS_S = 0.1
NOT_STOPPED_MS = 2000.0


class BargeIn(msgspec.Struct, frozen=True):
    """One interruption. Times in milliseconds from the interruption's first audible sample."""

    overlapping: bool
    """Whether any of the answer was unheard at that moment; if not, nothing else is measured."""
    stop_latency_ms: float | None = None
    server_stop_ms: float | None = None
    detect_ms: float | None = None
    late_audio_ms: float | None = None


class Delivery(msgspec.Struct, frozen=True):
    """How the audio of one response arrived."""

    response_id: str
    status: str | None
    audio_s: float
    underrun_s: float | None
    stalls: int | None
    longest_stall_s: float | None
    first_to_done_s: float | None
    ttfp_ms: float | None = None


class UtteranceResult(msgspec.Struct, frozen=True):
    """What became of one utterance."""

    id: str
    call: str
    outcome: Outcome
    reason: str | None = None
    user_stop_s: float | None = None
    transcript: str | None = None
    word_errors: int | None = None
    words: int | None = None
    response_id: str | None = None
    split: VoiceSplit | None = None
    barge_in: BargeIn | None = None
    false_starts: int = 0
    """Turns that were over before the user's first sound and got no answer: noise taken for speech."""


class CallScore(msgspec.Struct, frozen=True):
    """All figures of one call."""

    call: str
    results: list[UtteranceResult]
    deliveries: list[Delivery]
    replies: dict[str, str]
    """Transcript by response id, of the responses that were delivered whole."""
    server_errors: list[str]
    pacing_lags_ms: list[float]
    duration_s: float


class Said(msgspec.Struct, frozen=True):
    """A ``utterance`` or ``interruption`` note of the log."""

    type: str
    id: str
    at: float
    onset_s: float
    stop_s: float


class Replay:
    """A call's log played through the same conversation and player as the caller's."""

    def __init__(self, entries: Sequence[LogEntry], policy: Policy, player: Player | None = None) -> None:
        self.conversation = Conversation()
        self.playback = ClientPlayback(policy, player)
        self.said: list[Said] = []
        self.overlapped: dict[str, list[str]] = {}
        """By utterance: the responses that had unheard audio when the interruption began."""
        self.lost: str | None = None
        self.lags_ms: list[float] = []
        for entry in entries:
            if entry.dir == "s2c":
                message = msgspec.convert(entry.event, ServerMessage)
                received = Received(entry.t_s, message, entry.event.get("bytes", 0))
                self.conversation.handle(received)
                self.playback.handle(received)
            elif entry.dir == "note":
                self._note(entry)
            elif entry.due_s is not None:
                self.lags_ms.append(max(0.0, (entry.t_s - entry.due_s) * 1000))
        self.duration_s = entries[-1].t_s - entries[0].t_s if entries else 0.0

    def _note(self, entry: LogEntry) -> None:
        kind = entry.event["type"]
        if kind in ("utterance", "interruption"):
            onset = entry.event["onset_sample"] / SAMPLE_RATE
            self.said.append(Said(kind, entry.event["id"], entry.t_s, onset, entry.event["stop_sample"] / SAMPLE_RATE))
            if kind == "interruption":
                unheard = [s.response_id for s in self.playback.player.segments if s.end_s > onset]
                self.overlapped[entry.event["id"]] = list(dict.fromkeys(unheard))
        elif kind == "playback.stop":
            self.playback.player.flush(entry.t_s)
        elif kind == "connection.lost":
            self.lost = entry.event["message"]


def score_call(
    call: str,
    utterances: Sequence[Utterance],
    entries: Sequence[LogEntry],
    audio: NDArray[np.float32],
    policy: Policy = "obey",
) -> CallScore:
    """Score the utterances of one call. ``audio``: float32 ``[samples]`` at 24 kHz, as received."""
    replay = Replay(entries, policy)
    responses = replay.conversation.responses.values()
    return CallScore(
        call=call,
        results=[_result(call, utterance, replay, audio) for utterance in utterances],
        deliveries=[_delivery(response) for response in responses if response.audio],
        replies={r.response_id: r.text for r in responses if r.status in ("completed", "incomplete") and r.audio},
        server_errors=replay.conversation.errors,
        pacing_lags_ms=replay.lags_ms,
        duration_s=round(replay.duration_s, 6),
    )


def _result(call: str, utterance: Utterance, replay: Replay, audio: NDArray[np.float32]) -> UtteranceResult:
    said = next((s for s in replay.said if s.id == utterance.id and s.type == "utterance"), None)
    if said is None:
        return UtteranceResult(utterance.id, call, "failed", replay.lost or "the call ended before it was said")
    later = [s.at for s in replay.said if s.at > said.at]
    end = min(later, default=float("inf"))
    turns = [turn for turn in replay.conversation.turns.values() if said.at <= turn.started_s < end]
    transcript = " ".join(turn.transcript.strip() for turn in turns if turn.transcript)
    errors = word_errors(utterance.words, transcript)
    false = [turn for turn in turns if _is_false_start(turn, said, replay)]
    outcome, reason, turn, response = _outcome(said, [turn for turn in turns if turn not in false], replay, audio)
    if outcome == "answered" and errors.rate > RIGHT_WORDS_WER:
        outcome, reason = "wrong_words", f"word error rate {errors.rate:.2f}"
    split = None
    if turn and response:
        split = voice_split(said.stop_s, turn, response, first_heard_s(replay.playback.player, response, audio))
    return UtteranceResult(
        id=utterance.id,
        call=call,
        outcome=outcome,
        reason=reason,
        user_stop_s=round(said.stop_s, 6),
        transcript=transcript,
        word_errors=errors.errors,
        words=errors.words,
        response_id=response.response_id if response else None,
        split=split,
        barge_in=_barge_in(utterance, replay, audio) if utterance.kind == "barge_in" else None,
        false_starts=len(false),
    )


def _is_false_start(turn: Turn, said: Said, replay: Replay) -> bool:
    """Whether a turn lies before the utterance. One that is answered is none: the answer is early."""
    answered = any(response.audio for response in replay.conversation.responses_to(turn.item_id))
    return turn.stopped_s is not None and turn.stopped_s < said.onset_s and not answered


def _outcome(
    said: Said, turns: Sequence[Turn], replay: Replay, audio: NDArray[np.float32]
) -> tuple[Outcome, str | None, Turn | None, SeenResponse | None]:
    conversation, player = replay.conversation, replay.playback.player
    for turn in turns:
        if turn.stopped_s is not None and turn.stopped_s < said.stop_s:
            ahead = (said.stop_s - turn.stopped_s) * 1000
            return "early", f"turn ended {ahead:.0f} ms before the true end", None, None
        for response in conversation.responses_to(turn.item_id):
            if response.first_audio_s is not None and response.first_audio_s < said.stop_s:
                return "early", "answer audio arrived before the true end", None, None
    turn = next((turn for turn in turns if turn.stopped_s is not None), None)
    if turn is None:
        return ("failed", replay.lost, None, None) if replay.lost else ("unanswered", "no turn ended", None, None)
    for response in conversation.responses_to(turn.item_id):
        if first_heard_s(player, response, audio) is not None:
            return "answered", None, turn, response
    if replay.lost:
        return "failed", replay.lost, None, None
    statuses = [response.status or "open" for response in conversation.responses_to(turn.item_id)]
    return "unanswered", f"no audible answer (responses: {', '.join(statuses) or 'none'})", None, None


def _barge_in(utterance: Utterance, replay: Replay, audio: NDArray[np.float32]) -> BargeIn | None:
    said = next((s for s in replay.said if s.id == utterance.id and s.type == "interruption"), None)
    if said is None:
        return None
    overlapped = replay.overlapped.get(utterance.id, [])
    if not overlapped:
        return BargeIn(overlapping=False)
    player = replay.playback.player
    responses = [replay.conversation.responses[response_id] for response_id in overlapped]
    heard = [t for response in responses if (t := last_heard_s(player, response, audio)) is not None]
    arrived = [chunk.at for response in responses for chunk in response.audio]
    detected = min(
        (turn.started_s for turn in replay.conversation.turns.values() if turn.started_s >= said.onset_s), default=None
    )
    late = sum(player.late_samples.get(response_id, 0) for response_id in overlapped)
    return BargeIn(
        overlapping=True,
        stop_latency_ms=round(max(0.0, max(heard) - said.onset_s) * 1000, 3) if heard else None,
        server_stop_ms=round((max(arrived) - said.onset_s) * 1000, 3) if arrived else None,
        detect_ms=round((detected - said.onset_s) * 1000, 3) if detected is not None else None,
        late_audio_ms=round(late / player.rate * 1000, 3),
    )


def _delivery(response: SeenResponse) -> Delivery:
    durations = [chunk.samples / SAMPLE_RATE for chunk in response.audio]
    starved = underrun([chunk.at for chunk in response.audio], durations)
    first, done = response.first_audio_s, response.done_s
    return Delivery(
        response_id=response.response_id,
        status=response.status,
        audio_s=round(sum(durations), 6),
        underrun_s=round(starved.seconds, 6) if starved else None,
        stalls=starved.stalls if starved else None,
        longest_stall_s=round(starved.longest_s, 6) if starved else None,
        first_to_done_s=round(done - first, 6) if done is not None and first is not None else None,
        ttfp_ms=round((first - response.created_s) * 1000, 3) if first is not None else None,
    )
