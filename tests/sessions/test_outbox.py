"""The outbox: merged and bounded, nothing lost, nothing reordered within a part, terminals never held back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duologue.sessions import server_events as events
from duologue.sessions.outbox import Outbox, Outgoing

PLACE = {"response_id": "r", "output_index": 0, "content_index": 0}


def audio(number: int, item_id: str = "i", response_id: str = "r") -> events.OutputAudioDelta:
    place = {**PLACE, "item_id": item_id, "response_id": response_id}
    return events.OutputAudioDelta(event_id=f"a{number}", delta=bytes([number % 256]) * 2, **place)  # type: ignore[arg-type]


def words(number: int, item_id: str = "i") -> events.OutputAudioTranscriptDelta:
    return events.OutputAudioTranscriptDelta(event_id=f"w{number}", delta=f"{number} ", item_id=item_id, **PLACE)  # type: ignore[arg-type]


def done(number: int) -> events.OutputAudioDone:
    return events.OutputAudioDone(event_id=f"d{number}", item_id="i", **PLACE)  # type: ignore[arg-type]


def drained(outbox: Outbox) -> list[Outgoing]:
    taken: list[Outgoing] = []
    while outbox:
        taken += outbox.take()
    return taken


def test_fc_138_deltas_of_a_slow_reader_are_merged_and_terminals_get_through() -> None:
    outbox = Outbox()
    for number in range(1512):
        outbox.push(audio(number), samples=1)
    outbox.push(done(0))
    merged, last = drained(outbox)
    assert isinstance(merged.event, events.OutputAudioDelta)
    assert merged.event.delta == b"".join(audio(number).delta for number in range(1512))
    assert merged.samples == 1512
    assert isinstance(last.event, events.OutputAudioDone)


def test_take_stops_after_sound_so_that_an_interruption_finds_the_rest() -> None:
    outbox = Outbox()
    outbox.push(words(1))
    outbox.push(audio(1), samples=1)
    outbox.push(done(0))
    outbox.push(audio(2, "j"), samples=1)
    assert [type(outgoing.event) for outgoing in outbox.take()] == [
        events.OutputAudioTranscriptDelta,
        events.OutputAudioDelta,
    ]
    outbox.drop_audio("r")
    assert [type(outgoing.event) for outgoing in drained(outbox)] == [events.OutputAudioDone]
    assert outbox.audio_bytes == 0


def test_fc_011_only_the_interrupted_responses_sound_is_dropped() -> None:
    outbox = Outbox()
    outbox.push(words(1))
    outbox.push(audio(1))
    outbox.push(audio(2, "j", "other"))
    outbox.drop_audio("r")
    assert [outgoing.event.event_id for outgoing in drained(outbox)] == ["w1", "a2"]


PUSHES = st.lists(st.sampled_from(["audio", "words", "done", "take"]), max_size=60)


@given(PUSHES)
def test_o35_nothing_is_lost_or_reordered(pushes: list[str]) -> None:
    outbox, taken = Outbox(), []
    pushed: list[events.ServerEvent] = []
    for number, what in enumerate(pushes):
        if what == "take":
            taken += outbox.take()
            continue
        event = {"audio": audio, "words": words, "done": done}[what](number)
        pushed.append(event)
        outbox.push(event, samples=1 if what == "audio" else 0)
    taken += drained(outbox)
    for kind, empty in ((events.OutputAudioDelta, b""), (events.OutputAudioTranscriptDelta, "")):
        before = empty.join(event.delta for event in pushed if isinstance(event, kind))  # type: ignore[attr-defined]
        after = empty.join(out.event.delta for out in taken if isinstance(out.event, kind))  # type: ignore[attr-defined]
        assert before == after
    terminals = [event.event_id for event in pushed if isinstance(event, events.OutputAudioDone)]
    assert [out.event.event_id for out in taken if isinstance(out.event, events.OutputAudioDone)] == terminals
    assert sum(out.samples for out in taken) == pushes.count("audio")
    assert outbox.audio_bytes == 0

    def before_each_terminal(trace: list[events.ServerEvent]) -> list[tuple[int, int]]:
        counts, sound, text = [], 0, 0
        for event in trace:
            match event:
                case events.OutputAudioDelta(delta=delta):
                    sound += len(delta)
                case events.OutputAudioTranscriptDelta(delta=delta):
                    text += len(delta)
                case events.OutputAudioDone():
                    counts.append((sound, text))
        return counts

    assert before_each_terminal(pushed) == before_each_terminal([out.event for out in taken])
