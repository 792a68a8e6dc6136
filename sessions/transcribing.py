"""Turning the user's sound into words: recogniser requests, and what the client is told of them.

The words of an item are asked for when it is committed. Before that, while the turn is still being spoken, they are
read along where the client wants to see them (:data:`STREAMS`), where the language model is to read them while the user
speaks (:data:`AHEAD`), and in every session as far as needed to keep the rest of a long turn short
(:mod:`duologue.sessions.live_transcript`); all only while the server has time for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from duologue.engine.languages import primary
from duologue.engine.requests import OUTPUT_SAMPLE_RATE, Delta, Finished, Transcribe, TranscriptDelta, Urgency
from duologue.sessions import server_events as events
from duologue.sessions.config import SemanticVad, TranscriptionSession
from duologue.sessions.conversation import Entry
from duologue.sessions.core import SessionCore
from duologue.sessions.effects import AbortRequest
from duologue.sessions.items import InputAudio, MessageItem
from duologue.sessions.listening import TurnSound, Utterance
from duologue.sessions.live_transcript import LiveTranscript, Words
from duologue.sessions.timebase import TICKS_PER_MS, TICKS_PER_SECOND

STREAMS: Final = {"minimal": 250, "low": 400, "medium": 800, "high": 1500, "xhigh": 3000}
"""New sound, in milliseconds, after which a turn in progress is recognised again, by the transcription's ``delay``."""

USUAL_DELAY: Final = "low"
"""Of a transcription session that names none. In a conversation a ``delay`` is what asks for streaming."""

AHEAD: Final = 2500 * TICKS_PER_MS
"""New sound, in ticks, after which the language model is given the words so far of a turn that will be answered: on two
cores a small one needs 6 ms for each of them, which the user would wait for at the end. Short turns have few, and
recognising them twice costs more than it saves."""

SETTLE: Final = 7 * TICKS_PER_SECOND
"""Unsettled sound, in ticks, from which on a pause is looked for: with a little more the recogniser needs a longer
window for it."""

SETTLE_AGAIN: Final = TICKS_PER_SECOND

PARTIAL_DUE_S: Final = 1.0
"""When what is read along is wanted: after that the next one is on its way."""

LONG: Final = 15 * TICKS_PER_SECOND
"""Unsettled sound, in ticks, that is worked on even when the server is busy: left alone, it would cost more later."""


@dataclass
class Spoken:
    """The words of a turn, or of other sound, as far as they are known."""

    live: LiveTranscript = field(default_factory=LiveTranscript)
    rest: Words = field(default_factory=Words)
    """Of the sound after what is settled, from the request under way."""
    sent: str = ""
    """What of them the client has been sent."""

    def add(self, delta: TranscriptDelta) -> None:
        self.rest.add(delta)

    def whole(self) -> Words:
        return self.live.whole(self.rest)

    @property
    def text(self) -> str:
        return self.whole().text.strip()


@dataclass
class Transcription:
    """A recogniser request for an item."""

    entry: Entry
    seconds: float
    words: Spoken = field(default_factory=Spoken)


@dataclass
class Reading:
    """A recogniser request for a turn that goes on."""

    request_id: str
    start: int
    """Where its sound begins, in ticks from the turn's start."""
    sample_rate: int
    length: int
    settles: bool
    words: Words = field(default_factory=Words)

    def position(self, sample: int) -> int:
        """A sample of its sound, in ticks from the turn's start."""
        return self.start + sample * TICKS_PER_SECOND // self.sample_rate


@dataclass
class Hearing:
    """A turn in progress."""

    item_id: str
    words: Spoken = field(default_factory=Spoken)
    read_until: int = 0
    """End of the sound that was recognised last, in ticks from the turn's start."""
    settle_from: int = SETTLE
    """Length of unsettled sound, in ticks, at which a pause is looked for again."""
    reading: Reading | None = None
    begun: str = ""
    """What it most likely begins with."""


class Transcribing:
    """Owns the transcriptions under way, and the words of the turn in progress."""

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._open: dict[str, Transcription] = {}
        self._hearing: Hearing | None = None
        self._ready_for = "en"

    def get_ready(self) -> None:
        """Have the recogniser fetch and load what it needs for the session's language, before anybody speaks."""
        language = session_language(self._core)
        if language != self._ready_for:
            self._ready_for = language
            silence = Utterance(b"", OUTPUT_SAMPLE_RATE)
            self._core.open_request(self.payload(silence, urgency="partial"))  # what comes of it is nobody's

    def owns(self, request_id: str) -> bool:
        return request_id in self._open or (self._hearing is not None and self._reads(request_id) is not None)

    # -- a turn in progress --------------------------------------------------------------------------------------------

    @property
    def begun(self) -> str:
        """What the turn in progress most likely begins with, as far as it has been read along."""
        return "" if self._hearing is None else self._hearing.begun

    def heard(self, turn: TurnSound, ahead: bool) -> None:
        """There is more sound of a turn: read along if that is wanted, due, and affordable. ``ahead``: its first words
        are of use before its end."""
        core, hearing = self._core, self._hearing
        if hearing is None or hearing.item_id != turn.item_id:
            self.drop()
            hearing = self._hearing = Hearing(turn.item_id)
        if hearing.reading is not None or not (core.responds or self._wanted):
            return
        unsettled = turn.length - hearing.words.live.until
        settles = unsettled >= hearing.settle_from
        interval = self._interval or (AHEAD if ahead else None)
        if not settles and (interval is None or turn.length - hearing.read_until < interval):
            return
        if not core.context.may_read_along() and unsettled < LONG:
            return
        start = hearing.words.live.until
        utterance = turn.after(start)
        request_id = core.open_request(self.payload(utterance, hearing.words, "partial", settles), PARTIAL_DUE_S)
        hearing.reading = Reading(request_id, start, utterance.sample_rate, unsettled, settles)
        hearing.read_until = hearing.read_until if settles else turn.length

    def drop(self) -> None:
        """Nothing will come of the turn in progress."""
        self._stop_reading()
        self._hearing = None

    def _read(self, hearing: Hearing, reading: Reading, delta: Delta) -> None:
        if isinstance(delta, TranscriptDelta):
            reading.words.add(delta)
        if not isinstance(delta, Finished):
            return
        hearing.reading = None
        end, live = reading.words.end_sample, hearing.words.live
        if reading.settles:
            hearing.settle_from = reading.length + SETTLE_AGAIN if end is None else SETTLE
            if end is not None:
                live.settle(reading.words, reading.position(end))
        elif end is not None:
            hearing.begun = live.begun(reading.words)
            if self._interval is not None:  # else nobody has seen them, and later words need not agree
                live.hear(reading.words)
        if self._interval is not None:
            self._send(hearing.words, {"item_id": hearing.item_id, "content_index": 0})

    def _reads(self, request_id: str) -> Reading | None:
        reading = self._hearing.reading if self._hearing is not None else None
        return reading if reading is not None and reading.request_id == request_id else None

    def _stop_reading(self) -> None:
        if self._hearing is not None and self._hearing.reading is not None:
            self._core.effects.append(AbortRequest(self._hearing.reading.request_id, "superseded"))
            self._hearing.reading = None

    @property
    def _wanted(self) -> bool:
        """Whether the client wants transcripts."""
        return self._core.session.audio.input.transcription is not None

    @property
    def _interval(self) -> int | None:
        """Ticks of new sound after which words are asked for again that the client gets at once; None: it waits."""
        transcription = self._core.session.audio.input.transcription
        if transcription is None:
            return None
        delay = transcription.delay
        if delay is UNSET:
            if not isinstance(self._core.session, TranscriptionSession):
                return None
            delay = USUAL_DELAY
        return STREAMS[delay] * TICKS_PER_MS

    # -- an item -------------------------------------------------------------------------------------------------------

    def begin(self, entry: Entry) -> None:
        """Have an item's sound turned into words, unless that is under way."""
        recording = entry.recording
        if recording is None or not recording.size:
            entry.transcript = entry.transcript or ""
        elif not any(transcription.entry is entry for transcription in self._open.values()):
            utterance = Utterance(recording.pcm, recording.sample_rate)
            request_id, words = self.open(utterance, "final", entry.id)
            self.adopt(request_id, Transcription(entry, utterance.seconds, words))

    def open(
        self, utterance: Utterance, urgency: Urgency, item_id: str | None = None, due_in_s: float = 0.0
    ) -> tuple[str, Spoken]:
        """Ask for the words of a turn, or of the item ``item_id``, of which some may be known already."""
        hearing = self._hearing
        of_turn = hearing is not None and item_id in (None, hearing.item_id)
        if hearing is None or not of_turn:
            words = Spoken()
        else:
            self._stop_reading()
            words = Spoken(hearing.words.live, sent=hearing.words.sent)
        rest = utterance.after(words.live.until)
        return self._core.open_request(self.payload(rest, words, urgency), due_in_s), words

    def aside(self, utterance: Utterance) -> str:
        """Ask for the words of sound that is no turn; what comes of it is the caller's."""
        return self._core.open_request(self.payload(utterance))

    def adopt(self, request_id: str, transcription: Transcription) -> None:
        """Take over a request that is already open; the words that stand can be seen now."""
        self._open[request_id] = transcription
        self._leave_turn(transcription.entry)
        if self._announced(transcription.entry) and isinstance(transcription.entry.item, MessageItem):
            self._send(transcription.words, _place(transcription.entry.id, transcription.entry.item))

    def output(self, request_id: str, delta: Delta) -> Entry | None:
        """Take what the recogniser says; returns the item whose words have become known (or will not be)."""
        reading = self._reads(request_id)
        if reading is not None and self._hearing is not None:
            self._read(self._hearing, reading, delta)
            return None
        transcription = self._open[request_id]
        if isinstance(delta, TranscriptDelta):
            transcription.words.add(delta)
        if not isinstance(delta, Finished):
            return None
        del self._open[request_id]
        entry = transcription.entry
        if delta.reason == "failed":
            self._failed(entry)
        else:
            self.complete(entry, transcription.words, transcription.seconds)
        return entry

    def complete(self, entry: Entry, words: Spoken, seconds: float) -> None:
        """An item's words are known."""
        self._leave_turn(entry)
        whole = words.whole()
        transcript = entry.transcript = whole.text.strip()
        if self._core.conversation.find(entry.id) is entry:
            self._core.conversation.version += 1
        if not self._announced(entry) or not isinstance(entry.item, MessageItem):
            return
        place = _place(entry.id, entry.item)
        content = list(entry.item.content)
        content[place["content_index"]] = InputAudio(transcript=transcript)
        entry.item = replace(entry.item, content=tuple(content))
        logprobs = self._logprobs(whole)
        if rest := transcript[len(words.sent) :]:
            in_one = logprobs if not words.sent else UNSET
            self._core.emit(events.TranscriptionDelta, **place, delta=rest, logprobs=in_one)
        self._core.emit(
            events.TranscriptionCompleted,
            **place,
            transcript=transcript,
            usage=events.TranscriptionUsage(seconds=round(seconds, 3)),
            languages=UNSET if whole.language is None else (events.Language(code=whole.language),),
            logprobs=logprobs,
        )

    def _leave_turn(self, entry: Entry) -> None:
        """The turn in progress has become an item."""
        if self._hearing is not None and self._hearing.item_id == entry.id:
            self.drop()

    def _send(self, words: Spoken, place: dict[str, Any]) -> None:
        """Send what stands of some words and has not been sent."""
        if new := words.live.text[len(words.sent) :]:
            words.sent += new
            self._core.emit(events.TranscriptionDelta, **place, delta=new)

    def _logprobs(self, words: Words) -> tuple[events.Logprob, ...] | UnsetType:
        """What the session's ``include`` asks for."""
        if not self._core.session.include:
            return UNSET
        return tuple(
            events.Logprob(token=logprob.token, logprob=round(logprob.logprob, 6), bytes=tuple(logprob.bytes))
            for logprob in words.logprobs
        )

    def payload(
        self, utterance: Utterance, words: Spoken | None = None, urgency: Urgency = "final", settle: bool = False
    ) -> Transcribe:
        """What asks for the words of some sound; ``words`` are those before it."""
        settings = self._core.session.audio.input
        transcription = settings.transcription
        prompt = transcription.prompt if transcription is not None else UNSET
        return Transcribe(
            audio=utterance.pcm,
            sample_rate=utterance.sample_rate,
            language=_language_setting(self._core),
            prompt=None if prompt is UNSET else prompt,
            before="" if words is None else words.live.settled_text[-CONTEXT_CHARACTERS:],
            logprobs=bool(self._core.session.include),
            urgency=urgency,
            settle=settle,
            full_stop=urgency == "speculative" and isinstance(settings.turn_detection, SemanticVad),
        )

    def _failed(self, entry: Entry) -> None:
        entry.transcript = ""
        if self._announced(entry) and isinstance(entry.item, MessageItem):
            place = _place(entry.id, entry.item)
            self._core.emit(events.TranscriptionFailed, **place, error=events.TranscriptionErrorBody())

    def _announced(self, entry: Entry) -> bool:
        """Whether the client has asked for transcripts and knows the item."""
        return self._wanted and self._core.conversation.find(entry.id) is entry


CONTEXT_CHARACTERS: Final = 400
"""Of what came before, that the recogniser is told; it takes what it can use."""


def _place(item_id: str, item: MessageItem) -> dict[str, Any]:
    """Where the sound of a message is, as transcription events say it."""
    index = next(index for index, part in enumerate(item.content) if isinstance(part, InputAudio))
    return {"item_id": item_id, "content_index": index}


def _language_setting(core: SessionCore) -> str | None:
    """The language that the client has named, or the first of several."""
    transcription = core.session.audio.input.transcription
    if transcription is None:
        return None
    if transcription.language is not UNSET:
        return transcription.language
    return next(iter(() if transcription.languages is UNSET else transcription.languages), None)


def session_language(core: SessionCore) -> str:
    """The language that the user speaks, by its code; English where none is named."""
    return primary(_language_setting(core) or "en")
