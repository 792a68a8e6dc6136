"""Turns of the user under server_vad and manual turn detection, on a scripted clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_driver import AUDIBLE, Driver, silence, speech

from duologue.codecs.g711 import encode_ulaw
from duologue.engine.requests import Converse, Transcribe
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits
from duologue.sessions.timebase import TICKS_PER_MS, VAD_FRAME_TICKS
from duologue.sessions.turns.policy import NEVER, Paused, Resumed, Started, Stopped, TurnSignal
from duologue.sessions.turns.silence import SilencePolicy, SilenceSettings

PREFIX_MS, WINDOW_MS = 300, 500


def names(driver: Driver, start: int = 0) -> list[str]:
    return [kind for kind in driver.kinds() if kind != "session.updated"][start:]


def test_o7_a_turn_is_started_stopped_committed_and_answered_in_order() -> None:
    driver = Driver()
    driver.say(silence(640), speech(640), silence(800))
    driver.transcribe("Hello there.")
    assert names(driver, 1) == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
    ]
    item_id = driver.last(events.SpeechStarted).item_id
    assert {driver.last(kind).item_id for kind in (events.SpeechStopped, events.InputAudioCommitted)} == {item_id}
    assert driver.last(events.ItemDone).item.id == item_id


def test_speech_positions_include_prefix_padding_and_silence_window() -> None:
    driver = Driver()
    driver.say(silence(640), speech(640), silence(800))
    assert driver.last(events.SpeechStarted).audio_start_ms == 640 - PREFIX_MS
    assert driver.last(events.SpeechStopped).audio_end_ms == 1280 + WINDOW_MS


def test_the_recogniser_gets_exactly_the_turn() -> None:
    driver = Driver()
    driver.say(silence(640), speech(640), silence(800))
    payload = driver.requests[driver.pending(Transcribe)[0]].payload
    assert isinstance(payload, Transcribe)
    assert payload.audio == silence(PREFIX_MS) + speech(640) + silence(WINDOW_MS)


def test_prefix_padding_does_not_reach_into_the_turn_before() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": {"prefix_padding_ms": 2000}}}})
    driver.say(speech(640), silence(800))
    first_end = driver.last(events.SpeechStopped).audio_end_ms
    driver.say(speech(640), silence(800))
    assert driver.last(events.SpeechStarted).audio_start_ms == first_end


@pytest.mark.parametrize("click_ms", [10, 32])
def test_a_click_is_not_speech(click_ms: int) -> None:
    driver = Driver()
    driver.say(silence(640), speech(click_ms), silence(800))
    assert not driver.all(events.SpeechStarted)


def test_fc_033_a_word_of_200_ms_is_a_turn() -> None:
    driver = Driver()
    driver.say(silence(1000), speech(200), silence(800))
    driver.transcribe("No.")
    assert driver.all(events.ResponseCreated)


def test_fc_051_a_turn_without_words_gets_no_answer() -> None:
    driver = Driver()
    driver.say(speech(640), silence(800))
    driver.transcribe("")
    assert driver.last(events.TranscriptionCompleted).transcript == ""
    assert not driver.all(events.ResponseCreated)
    driver.spoken_turn()
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_a_pause_shorter_than_the_window_does_not_end_the_turn() -> None:
    driver = Driver()
    driver.say(speech(640), silence(448), speech(320), silence(800))
    assert len(driver.all(events.SpeechStopped)) == 1
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + 448 + 320 + WINDOW_MS


def test_fc_053_a_turn_without_end_is_cut_and_no_sample_is_lost_or_doubled() -> None:
    driver = Driver(limits=Limits(max_turn_s=2.0))
    driver.say(speech(5120), silence(800))
    starts = [event.audio_start_ms for event in driver.all(events.SpeechStarted)]
    stops = [event.audio_end_ms for event in driver.all(events.SpeechStopped)]
    assert starts == [0, 2000, 4000]
    assert stops == [2000, 4000, 5120 + WINDOW_MS]
    audio = b"".join(
        request.payload.audio for request in driver.requests.values() if isinstance(request.payload, Transcribe)
    )
    assert audio == speech(5120) + silence(WINDOW_MS)


def test_o13_without_create_and_interrupt_only_the_turns_are_seen() -> None:
    flags = {"create_response": False, "interrupt_response": False}
    driver = Driver({"audio": {"input": {"turn_detection": flags}}})
    driver.say(speech(640), silence(800))
    driver.transcribe("Hello.")
    assert driver.all(events.TranscriptionCompleted)
    assert not driver.all(events.ResponseCreated)
    driver.do(client.ResponseCreate())
    driver.write("Some")
    driver.say(speech(640))
    assert not driver.all(events.ResponseDone)
    driver.finish()
    assert driver.last(events.ResponseDone).response.status == "completed"


def test_semantic_vad_waits_longer_the_less_eager() -> None:
    ends = {}
    for eagerness in ("high", "auto", "low"):
        driver = Driver({"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": eagerness}}}})
        driver.say(speech(640), silence(2500))
        ends[eagerness] = driver.last(events.SpeechStopped).audio_end_ms
    assert ends["high"] < ends["auto"] < ends["low"]


def test_settings_of_the_detector_change_in_mid_turn_without_losing_it() -> None:
    driver = Driver()
    driver.say(speech(640))
    driver.update({"audio": {"input": {"turn_detection": {"silence_duration_ms": 200}}}})
    driver.say(silence(320))
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + 200
    assert len(driver.all(events.SpeechStarted)) == 1


# -- manual turns ------------------------------------------------------------------------------------------------------


def manual(**patch: object) -> Driver:
    return Driver({"audio": {"input": {"turn_detection": None, **patch}}})


def test_o10_a_manual_commit_makes_an_item_and_no_response() -> None:
    driver = manual()
    driver.say(speech(500))
    seen = len(driver.sent)
    driver.do(client.InputAudioCommit())
    driver.transcribe("Hello.")
    assert driver.kinds()[seen:] == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
    ]


def test_a_manual_response_waits_for_the_words_of_its_context() -> None:
    driver = manual(transcription=None)
    driver.say(speech(500))
    driver.do(client.InputAudioCommit())
    assert not driver.pending(Transcribe)
    driver.do(client.ResponseCreate())
    assert driver.all(events.ResponseCreated)
    assert not driver.pending(Converse)
    driver.transcribe("What is the time?")
    assert driver.context() == [("system", "Be brief."), ("user", "What is the time?")]
    assert not driver.all(events.TranscriptionCompleted)


@pytest.mark.parametrize("held_ms", [0, 99])
def test_fc_059_o11_a_commit_below_100_ms_is_one_error_and_nothing_else(held_ms: int) -> None:
    driver = manual()
    driver.do(client.InputAudioAppend(audio=speech(held_ms)))
    sent = driver.do(client.InputAudioCommit(event_id="c"))
    (error,) = sent
    assert isinstance(error, events.ErrorEvent)
    assert error.error.code == "input_audio_buffer_commit_empty"
    assert error.error.event_id == "c"
    assert f"buffer only has {held_ms:.2f}ms of audio" in error.error.message


def test_fc_059_the_minimum_of_a_g711_commit_is_800_bytes() -> None:
    driver = manual(format={"type": "audio/pcmu"})
    driver.do(client.InputAudioAppend(audio=b"\xff" * 799))
    driver.do(client.InputAudioCommit())
    assert driver.last(events.ErrorEvent).error.code == "input_audio_buffer_commit_empty"
    driver.do(client.InputAudioAppend(audio=b"\xff"))
    driver.do(client.InputAudioCommit())
    assert driver.all(events.InputAudioCommitted)


def test_fc_061_a_commit_as_the_first_event_is_an_error() -> None:
    driver = manual()
    driver.do(client.InputAudioCommit())
    assert driver.last(events.ErrorEvent).error.code == "input_audio_buffer_commit_empty"
    assert not driver.all(events.TranscriptionCompleted)
    assert not driver.requests


def test_fc_092_an_odd_byte_waits_for_its_other_half() -> None:
    driver = manual()
    audio = speech(200)
    driver.do(client.InputAudioAppend(audio=audio[:4801]))
    driver.do(client.InputAudioAppend(audio=audio[4801:]))
    driver.do(client.InputAudioCommit())
    payload = driver.requests[driver.pending(Transcribe)[0]].payload
    assert isinstance(payload, Transcribe)
    assert payload.audio == audio


def test_clear_drops_what_was_not_committed() -> None:
    driver = manual()
    driver.say(speech(500))
    driver.do(client.InputAudioClear())
    assert isinstance(driver.sent[-1], events.InputAudioCleared)
    driver.do(client.InputAudioCommit())
    assert driver.last(events.ErrorEvent).error.code == "input_audio_buffer_commit_empty"


def test_a_commit_by_hand_during_speech_ends_the_turn_once() -> None:
    driver = Driver()
    driver.say(speech(960))
    driver.do(client.InputAudioCommit())
    driver.say(silence(800))
    kinds = names(driver)
    assert kinds.count("input_audio_buffer.speech_started") == 1
    assert kinds.count("input_audio_buffer.speech_stopped") == 1
    assert kinds.count("input_audio_buffer.committed") == 1
    assert not driver.all(events.ResponseCreated)


def test_fc_139_memory_is_bounded_by_the_turn() -> None:
    driver = Driver()
    for _ in range(50):
        driver.say(silence(1000), chunk_ms=100)
    timeline = driver.machine._listening._timeline
    held_ms = (timeline.end - timeline.start) / 48
    assert held_ms < 600


def test_a_manual_buffer_over_its_limit_is_refused_and_the_session_lives() -> None:
    limits = Limits(max_manual_buffer_s=1.0)
    driver = Driver({"audio": {"input": {"turn_detection": None}}}, limits=limits)
    driver.say(speech(1100), chunk_ms=100)
    driver.do(client.InputAudioAppend(audio=speech(100), event_id="over"))
    assert driver.last(events.ErrorEvent).error.event_id == "over"
    driver.do(client.InputAudioCommit())
    assert driver.all(events.InputAudioCommitted)


# -- formats and chunking ----------------------------------------------------------------------------------------------


def test_a_change_of_format_in_mid_turn_keeps_positions() -> None:
    driver = Driver()
    driver.say(silence(320), speech(640))
    driver.update({"audio": {"input": {"format": {"type": "audio/pcmu"}}}})
    quiet = encode_ulaw(b"\x00\x00" * 8 * 900)
    for first in range(0, len(quiet), 160):
        driver.do(client.InputAudioAppend(audio=quiet[first : first + 160]))
    assert driver.last(events.SpeechStopped).audio_end_ms == pytest.approx(960 + WINDOW_MS, abs=32)


_AUDIO = silence(500) + speech(700) + silence(300) + speech(100) + silence(900) + speech(400) + silence(700)


@given(sizes=st.lists(st.integers(1, 9_001), min_size=1, max_size=40), speculate=st.booleans())
def test_o6_fc_041_any_chunking_gives_the_same_turns(sizes: list[int], speculate: bool) -> None:
    def turns(driver: Driver) -> list[object]:
        kinds = (events.SpeechStarted, events.SpeechStopped, Transcribe)
        positions = [
            (type(event).__name__, getattr(event, "audio_start_ms", None), getattr(event, "audio_end_ms", None))
            for event in driver.sent
            if isinstance(event, kinds)
        ]
        audio = [request.payload.audio for request in driver.requests.values()]  # type: ignore[union-attr]
        return [*positions, *audio]

    whole, pieces = (Driver(heard_from=AUDIBLE, speculate=speculate) for _ in range(2))
    whole.do(client.InputAudioAppend(audio=_AUDIO))
    position, turn = 0, 0
    while position < len(_AUDIO):
        size = sizes[turn % len(sizes)] if turn < len(sizes) else 4_321
        pieces.do(client.InputAudioAppend(audio=_AUDIO[position : position + size]))
        position, turn = position + size, turn + 1
    assert turns(whole) == turns(pieces)


def test_a_turn_ends_with_the_sample_that_makes_the_silence_long_enough() -> None:
    driver = Driver(heard_from=AUDIBLE)
    driver.say(silence(640), speech(640))  # 40 frames: the window ends within the 56th, at 12 of 32 ms
    driver.say(silence(WINDOW_MS - 1), chunk_ms=1)
    assert not driver.all(events.SpeechStopped)
    driver.say(silence(1), chunk_ms=1)
    assert driver.last(events.SpeechStopped).audio_end_ms == 1280 + WINDOW_MS


@pytest.mark.parametrize("heard_from", [AUDIBLE, 0.0])
def test_what_is_heard_before_the_window_ends_waits_for_its_frame(heard_from: float) -> None:
    driver = Driver(heard_from=heard_from)
    driver.say(silence(640), speech(640), silence(WINDOW_MS - 14), speech(194), silence(400), chunk_ms=2)
    assert not driver.all(events.SpeechStopped), "the frame that begins 20 ms before the window's end is speech"
    driver.say(silence(200))
    assert len(driver.all(events.SpeechStarted)) == len(driver.all(events.SpeechStopped)) == 1


@pytest.mark.parametrize(("window_ms", "pause_ms"), [(500, 128), (200, 64)])
def test_an_answer_is_prepared_from_the_sample_at_which_the_pause_begins(window_ms: int, pause_ms: int) -> None:
    detection = {"turn_detection": {"type": "server_vad", "silence_duration_ms": window_ms}}
    driver = Driver({"audio": {"input": detection}}, heard_from=AUDIBLE, speculate=True)
    driver.say(silence(640), speech(650), chunk_ms=10)  # the 41st frame is a third speech: to the detector it is none
    driver.say(silence(pause_ms - 11), chunk_ms=1)
    assert not driver.pending(Transcribe)
    driver.say(silence(1), chunk_ms=1)
    payload = driver.requests[driver.pending(Transcribe)[0]].payload
    assert isinstance(payload, Transcribe)
    expected = silence(PREFIX_MS) + speech(650) + silence(pause_ms - 10)
    assert payload.audio == expected
    at_once = Driver({"audio": {"input": detection}}, heard_from=AUDIBLE, speculate=True)
    at_once.do(client.InputAudioAppend(audio=silence(640) + speech(650) + silence(160)))
    prepared = next(request.payload for request in at_once.requests.values())
    assert isinstance(prepared, Transcribe)
    assert prepared.audio == expected, "however the sound came"


# -- idle time-out -----------------------------------------------------------------------------------------------------


def test_o14_an_idle_timeout_commits_silence_and_asks_for_an_answer() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": {"idle_timeout_ms": 5000}}}})
    driver.spoken_turn(ms=1000)
    seen = len(driver.sent)
    driver.wait(5.9)
    assert len(driver.sent) == seen
    driver.wait(0.2)
    assert driver.kinds()[seen:] == [
        "input_audio_buffer.timeout_triggered",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]
    assert driver.context()[-1] == ("user", "[The user has been silent for 5 seconds.]")


def test_o9_the_next_idle_timeout_begins_where_the_last_ended() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": {"idle_timeout_ms": 5000}}}})
    driver.spoken_turn()
    driver.say(silence(100))
    for _ in range(2):
        driver.wait(10)
        driver.answer()
    first, second = driver.all(events.IdleTimeoutTriggered)
    assert second.audio_start_ms >= first.audio_end_ms


def test_speech_disarms_the_idle_timeout() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": {"idle_timeout_ms": 5000}}}})
    driver.spoken_turn(ms=1000)
    driver.say(speech(640))
    driver.wait(20)
    assert not driver.all(events.IdleTimeoutTriggered)


def test_a_noise_without_words_starts_the_idle_timeout_afresh() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": {"idle_timeout_ms": 5000}}}})
    driver.spoken_turn(ms=1000)
    driver.wait(3)
    driver.say(speech(640), silence(800))
    driver.transcribe("")
    driver.wait(4.9)
    assert not driver.all(events.IdleTimeoutTriggered)
    driver.wait(0.2)
    assert len(driver.all(events.IdleTimeoutTriggered)) == 1


def test_an_idle_timeout_whose_answer_is_refused_comes_once() -> None:
    """It used to come again at once, and for ever."""
    detection = {"turn_detection": {"idle_timeout_ms": 5000}}
    driver = Driver({"audio": {"input": detection}}, limits=Limits(requests_per_minute=1))
    driver.spoken_turn(ms=1000)
    driver.wait(20)
    assert len(driver.all(events.IdleTimeoutTriggered)) == 1
    assert driver.last(events.ErrorEvent).error.code == "rate_limit_exceeded"


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("interrupt", [True, False])
def test_o13_create_response_and_interrupt_response_in_all_four_combinations(create: bool, interrupt: bool) -> None:
    flags = {"create_response": create, "interrupt_response": interrupt}
    driver = Driver({"audio": {"input": {"turn_detection": flags}}})
    echoed = driver.last(events.SessionUpdated).session.audio.input.turn_detection
    assert (echoed.create_response, echoed.interrupt_response) == (create, interrupt)  # type: ignore[union-attr]
    driver.do(client.ResponseCreate())
    running = driver.last(events.ResponseCreated).response.id
    driver.write("One two three.")
    driver.speak(5000)
    driver.say(speech(640), silence(800))
    driver.transcribe("Hello.")
    assert len(driver.all(events.InputAudioCommitted)) == 1
    ended = [event.response.id for event in driver.all(events.ResponseDone)]
    assert ended == ([running] if interrupt else [])
    errors = [event.error.code for event in driver.all(events.ErrorEvent)]
    began = len(driver.all(events.ResponseCreated)) - 1
    match create, interrupt:
        case True, True:
            assert (began, errors) == (1, [])
        case True, False:  # the automatic answer fails as one created by hand would
            assert (began, errors) == (0, ["conversation_already_has_active_response"])
        case _:
            assert (began, errors) == (0, [])


def test_o9_the_silence_of_a_client_that_sends_none_begins_after_what_was_said() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": {"idle_timeout_ms": 5000}}}})
    driver.spoken_turn(ms=1000)
    driver.wait(7)
    stopped, timeout = driver.last(events.SpeechStopped), driver.last(events.IdleTimeoutTriggered)
    assert stopped.audio_end_ms <= timeout.audio_start_ms <= timeout.audio_end_ms


def test_speech_right_after_an_idle_timeout_begins_no_earlier_than_it_ended() -> None:
    driver = Driver({"audio": {"input": {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 5000}}}})
    driver.spoken_turn()
    driver.wait(10)
    silent_until = driver.last(events.IdleTimeoutTriggered).audio_end_ms
    driver.say(speech(600), silence(800))
    assert driver.last(events.SpeechStarted).audio_start_ms == silent_until


@pytest.mark.parametrize(("window_ms", "silent_frames"), [(200, 2), (400, 2), (500, 4), (1500, 4)])
def test_the_shorter_the_window_the_earlier_an_answer_is_prepared(window_ms: int, silent_frames: int) -> None:
    policy = SilencePolicy(SilenceSettings(silence_duration_ms=window_ms))
    probabilities = [0.9] * 10 + [0.01] * 6
    signals = [
        (index, signal)
        for index, probability in enumerate(probabilities)
        for signal in policy.frame(index * VAD_FRAME_TICKS, (index + 1) * VAD_FRAME_TICKS, probability)
    ]
    assert next(index for index, signal in signals if isinstance(signal, Paused)) == 10 + silent_frames - 1


def signals_of(
    policy: SilencePolicy, frames: Sequence[tuple[float, int]], first: int = 0
) -> list[tuple[int, TurnSignal]]:
    """``frames``: probability, and for how many milliseconds nothing has been heard. With the number of the frame."""
    return [
        (index, signal)
        for index, (probability, quiet_ms) in enumerate(frames, first)
        for signal in policy.frame(
            index * VAD_FRAME_TICKS, (index + 1) * VAD_FRAME_TICKS, probability, quiet_ms * TICKS_PER_MS
        )
    ]


@pytest.mark.parametrize(("heard_until", "dated_back"), [(0, 0), (16, 16), (48, 48), (64, 64), (112, 64)])
def test_silence_counts_from_the_last_sound_that_was_heard(heard_until: int, dated_back: int) -> None:
    policy = SilencePolicy(SilenceSettings(silence_duration_ms=500))
    fading = [(0.9, max(0, heard_until - 32 * after)) for after in (3, 2, 1, 0)]
    signals = signals_of(policy, [(0.99, 0)] * 6 + fading + [(0.1, heard_until + 32 * n) for n in range(1, 30)])
    stopped = next(signal for _, signal in signals if isinstance(signal, Stopped))
    assert stopped.end == 10 * VAD_FRAME_TICKS + (500 - dated_back) * TICKS_PER_MS
    paused = next(signal for _, signal in signals if isinstance(signal, Paused))
    assert paused.end == 10 * VAD_FRAME_TICKS - dated_back * TICKS_PER_MS


def test_what_is_heard_of_a_silence_does_not_prolong_it() -> None:
    """A click, or a breath: the model says that nobody speaks."""
    quiet = [(0.1, 32 * n) for n in range(1, 5)] + [(0.1, 0)] + [(0.1, 32 * n) for n in range(1, 20)]
    signals = signals_of(SilencePolicy(SilenceSettings()), [(0.99, 0)] * 8 + quiet)
    assert [type(signal) for _, signal in signals] == [Started, Paused, Stopped]
    assert signals[-1][1] == Stopped(8 * VAD_FRAME_TICKS + 500 * TICKS_PER_MS)


@given(
    voices=st.lists(
        st.tuples(st.floats(0.0, 1.0), st.sampled_from([0, 0, 16, 32, 48, 64, 96, 128])), min_size=1, max_size=60
    ),
    window_ms=st.integers(20, 700),
)
def test_silence_known_early_gives_what_its_frame_would(voices: list[tuple[float, int]], window_ms: int) -> None:
    early, late = (SilencePolicy(SilenceSettings(silence_duration_ms=window_ms)) for _ in range(2))
    for index, (probability, quiet_ms) in enumerate(voices):
        start, end = index * VAD_FRAME_TICKS, (index + 1) * VAD_FRAME_TICKS
        signals: list[TurnSignal] = []
        if probability < 0.3 and quiet_ms >= 32:
            while start < early.due < end:
                signals += early.silent()
        signals += early.frame(start, end, probability, quiet_ms * TICKS_PER_MS)
        expected = late.frame(start, end, probability, quiet_ms * TICKS_PER_MS)
        if any(isinstance(signal, Stopped) for signal in expected):  # it need not tell of a pause in the same frame
            signals = [signal for signal in signals if not isinstance(signal, Paused)]
        assert signals == expected


@pytest.mark.parametrize(
    ("frames", "due_ms"),
    [
        ([(0.99, 0), (0.01, 32)], None),  # 64 ms of silence end with the next frame, which says so itself
        ([(0.9, 16), (0.01, 48)], 16),
        ([(0.9, 48)], 16),
        ([(0.9, 16)], None),  # 48 ms to go
        ([(0.97, 48)], None),  # no doubt
        ([(0.9, 16), (0.01, 48), (0.01, 80), (0.01, 112), (0.01, 144), (0.01, 176)], 24),
    ],
)
def test_silence_is_due_where_it_gives_a_signal_within_the_next_frame(
    frames: list[tuple[float, int]], due_ms: int | None
) -> None:
    policy = SilencePolicy(SilenceSettings(silence_duration_ms=200))
    signals_of(policy, [(0.99, 0)] * 8 + frames)
    end = (8 + len(frames)) * VAD_FRAME_TICKS
    assert policy.due == (NEVER if due_ms is None else end + due_ms * TICKS_PER_MS)


def test_with_a_short_window_a_pause_begins_when_the_model_doubts_what_cannot_be_heard() -> None:
    policy = SilencePolicy(SilenceSettings(silence_duration_ms=200))
    signals = signals_of(policy, [(0.99, 0)] * 8 + [(0.98, 32), (0.97, 64), (0.9, 96), (0.6, 128)])
    assert [(index, type(signal)) for index, signal in signals] == [(1, Started), (10, Paused)]
    later = signals_of(policy, [(0.6, 160), (0.99, 192), (0.99, 16)], first=12)
    assert later == [(14, Resumed())], "only what is heard takes the pause back, whatever the model says"


@pytest.mark.parametrize(("window_ms", "probability"), [(200, 0.96), (500, 0.9)])
def test_no_pause_begins_in_a_stop_or_where_there_is_time(window_ms: int, probability: float) -> None:
    policy = SilencePolicy(SilenceSettings(silence_duration_ms=window_ms))
    signals = signals_of(policy, [(0.99, 0)] * 8 + [(probability, 32 * n) for n in range(1, 5)])
    assert [type(signal) for _, signal in signals] == [Started]


@pytest.mark.parametrize(
    ("probabilities", "started_at"),
    [
        ([0.99, 0.99], 1),
        ([0.6, 0.86], 1),
        ([0.63, 0.37, 0.23, 0.22], None),  # pink noise that sets in, as the model hears it
        ([0.7, 0.8, 0.64, 0.47, 0.43, 0.33], None),
        ([0.6, 0.7, 0.6, 0.6, 0.6, 0.6], 5),
    ],
)
def test_what_might_be_noise_has_to_last_longer(probabilities: list[float], started_at: int | None) -> None:
    signals = signals_of(SilencePolicy(SilenceSettings()), [(0.01, 320)] * 20 + [(p, 0) for p in probabilities])
    assert [(index, signal) for index, signal in signals] == (
        [] if started_at is None else [(20 + started_at, Started(20 * VAD_FRAME_TICKS - 300 * TICKS_PER_MS))]
    )
