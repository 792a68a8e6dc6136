"""semantic_vad: a model says when the turn is over; silence decides where it says nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_driver import AUDIBLE, LATE, RATE, Driver, silence, speech

from duologue.engine.requests import Converse, Transcribe, TranscriptDelta
from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Eagerness, Limits, SemanticVad
from duologue.sessions.effects import AskTurnModel, EngineOutput, TurnJudged
from duologue.sessions.listening import ANSWER_WITHIN_S
from duologue.sessions.timebase import TICKS_PER_MS, VAD_FRAME_TICKS
from duologue.sessions.turns.policy import Asked, Paused, Resumed, Started, Stopped, TurnSignal
from duologue.sessions.turns.semantic import (
    ASK_MS,
    CERTAIN,
    LONGEST_WAIT_MS,
    USUAL_WORDS,
    WAIT_MS,
    WORDS_REACH,
    SemanticPolicy,
    SemanticSettings,
    log_odds,
)
from duologue.sessions.turns.silence import SEMANTIC_SILENCE_MS, SilenceSettings

FRAME_MS = 32
FIRST_ASK_MS = 128
"""100 ms of silence, at the end of the frame that completes them."""
CERTAIN_HIGH_MS = int(SemanticSettings.of(SemanticVad(eagerness="high")).wait(CERTAIN))
"""Silence after which the most eager ends a turn that certainly sounds finished."""


def semantic(judge: Callable[[AskTurnModel], float | None], eagerness: str = "auto", **options: object) -> Driver:
    detection = {"type": "semantic_vad", "eagerness": eagerness}
    return Driver({"audio": {"input": {"turn_detection": detection}}}, judge=judge, **options)  # type: ignore[arg-type]


def silence_heard(question: AskTurnModel) -> int:
    """Milliseconds of silence at the end of what the model hears."""
    samples = len(question.pcm) // 2
    loud = len(question.pcm.rstrip(b"\x00")) // 2
    return round((samples - loud) * 1000 / question.sample_rate)


def test_a_turn_that_certainly_sounds_finished_ends_after_one_question_of_the_most_eager() -> None:
    driver = semantic(lambda question: 0.99, "high")
    driver.say(silence(640), speech(640), silence(800))
    (stopped,) = driver.all(events.SpeechStopped)
    assert stopped.audio_end_ms == 1280 + CERTAIN_HIGH_MS
    (question,) = driver.questions
    assert silence_heard(question) == FIRST_ASK_MS
    assert question.sample_rate == RATE


@pytest.mark.parametrize("eagerness", ["low", "medium", "auto", "high"])
@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.8])
def test_the_less_finished_a_turn_sounds_the_longer_is_waited(eagerness: Eagerness, probability: float) -> None:
    wait = round(SemanticSettings.of(SemanticVad(eagerness=eagerness)).wait(log_odds(probability)))
    driver = semantic(lambda question: probability, eagerness)
    driver.say(speech(640), silence(wait - FRAME_MS))
    assert not driver.all(events.SpeechStopped)
    driver.say(silence(2 * FRAME_MS))
    assert driver.last(events.SpeechStopped).audio_end_ms == pytest.approx(640 + wait, abs=1)


def test_the_longest_waits_are_those_of_the_protocol() -> None:
    assert LONGEST_WAIT_MS == {"low": 8000, "medium": 4000, "auto": 4000, "high": 2000}
    assert WAIT_MS["low"] > WAIT_MS["medium"] == WAIT_MS["auto"] > WAIT_MS["high"]
    settings = SemanticSettings(wait_ms=3000, longest_wait_ms=2000)
    assert settings.wait(0.0) == 2000


def test_silence_alone_is_the_case_in_which_answers_move_nothing() -> None:
    settings = SemanticSettings(wait_ms=500, sway=0.0)
    assert {settings.wait(log_odds(probability)) for probability in (0.0, 0.3, 1.0)} == {500}


def test_answers_multiply_the_wait_whatever_it_is() -> None:
    """Equal odds for and against cancel out, and the most eager is swayed by the same factor as the most patient."""
    for wait_ms in (300.0, 1000.0):
        settings = SemanticSettings(wait_ms=wait_ms, sway=0.12)
        assert settings.wait(1.0) == pytest.approx(wait_ms * 0.88692, rel=1e-4)
        assert settings.wait(2.5) * settings.wait(-2.5) == pytest.approx(wait_ms**2)
    assert SemanticSettings(wait_ms=110, sway=0.12).wait(CERTAIN) == ASK_MS[0], "not before the model is asked"


def test_log_odds_have_bounds_whatever_the_model_says() -> None:
    bounds = [log_odds(probability) for probability in (0.0, 0.5, 1.0, -0.1, 1.2)]
    assert bounds == [-CERTAIN, 0, CERTAIN, -CERTAIN, CERTAIN]
    assert log_odds(0.9) == pytest.approx(2.197, abs=0.001)


def test_it_is_asked_again_as_the_silence_grows_and_hears_it() -> None:
    driver = semantic(lambda question: 0.0)
    driver.say(speech(640), silence(1000))
    heard = [silence_heard(question) for question in driver.questions]
    expected = [-(-ask // FRAME_MS) * FRAME_MS for ask in ASK_MS if ask <= 1000 - FRAME_MS]
    assert heard == expected


def test_it_is_asked_and_ends_the_turn_at_the_very_sample_where_that_is_silent() -> None:
    driver = semantic(lambda question: 0.5, heard_from=AUDIBLE)
    driver.say(speech(640), silence(WAIT_MS["auto"] - 1), chunk_ms=1)
    assert [silence_heard(question) for question in driver.questions] == [
        ask for ask in ASK_MS if ask < WAIT_MS["auto"]
    ]
    assert not driver.all(events.SpeechStopped)
    driver.say(silence(1), chunk_ms=1)
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + WAIT_MS["auto"]


def test_an_answer_that_makes_the_silence_long_enough_ends_the_turn_before_its_frame_is_complete() -> None:
    driver = semantic(lambda question: 1.0 if question.question == 1 else LATE, "high", heard_from=AUDIBLE)
    driver.say(speech(640), silence(210), chunk_ms=1)  # the frame that goes on ends at 224 ms
    (_, asked) = driver.questions
    assert silence_heard(asked) == 200
    driver.do(TurnJudged(asked.question, 1.0))
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + CERTAIN_HIGH_MS


def test_an_answer_that_shortens_the_wait_counts_within_the_frame() -> None:
    policy = SemanticPolicy(SemanticSettings(wait_ms=105), SilenceSettings())
    for index in range(11):
        signals = policy.frame(index * VAD_FRAME_TICKS, (index + 1) * VAD_FRAME_TICKS, 0.99 if index < 8 else 0.01)
    assert [type(signal) for signal in policy.silent()] == [Paused, Asked], signals
    assert policy.judged(0.5) == []
    ends = 8 * VAD_FRAME_TICKS + 105 * TICKS_PER_MS
    assert (policy.due, policy.silent()) == (ends, [Stopped(ends)])


def test_one_stray_answer_does_not_end_a_turn_that_sounded_unfinished() -> None:
    answers = iter([0.02, 0.03, 0.9, 0.02, 0.02])
    driver = semantic(lambda question: next(answers))
    driver.say(speech(640), silence(832))
    assert len(driver.questions) == 5
    assert not driver.all(events.SpeechStopped)


def test_the_wait_follows_the_mean_of_the_answers_as_the_silence_grows() -> None:
    answers = iter([0.02, 0.98, 0.98, 0.98])
    driver = semantic(lambda question: next(answers))
    driver.say(speech(640), silence(900))
    waits = SemanticSettings.of(SemanticVad())
    assert waits.wait(log_odds(0.98)) < 500, "one such answer would have ended it before the fourth question"
    assert len(driver.questions) == 4
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + int(waits.wait(log_odds(0.98) / 2))


def test_who_goes_on_is_asked_about_afresh() -> None:
    answers = iter([0.1, 0.1, 0.1, 0.1, 0.99, 0.99, 0.99])
    driver = semantic(lambda question: next(answers))
    driver.say(speech(640), silence(512), speech(320), silence(800))
    asked = [FIRST_ASK_MS, 224, 320]
    assert [silence_heard(question) for question in driver.questions] == [*asked, 512, *asked]
    assert len(driver.all(events.SpeechStarted)) == len(driver.all(events.SpeechStopped)) == 1
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + 512 + 320 + int(SemanticSettings().wait(CERTAIN))


@pytest.mark.parametrize("eagerness", ["low", "auto", "high"])
def test_silence_decides_where_the_model_fails(eagerness: str) -> None:
    driver = semantic(lambda question: None, eagerness)
    driver.say(speech(640), silence(2000))
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + SEMANTIC_SILENCE_MS[eagerness]
    assert len(driver.questions) == 1, "it is not asked again in this pause"


def test_silence_decides_where_the_answer_comes_too_late() -> None:
    driver = semantic(lambda question: LATE)
    driver.say(speech(640), silence(640))
    assert not driver.all(events.SpeechStopped)
    driver.wait(ANSWER_WITHIN_S)
    driver.say(silence(320))
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + SEMANTIC_SILENCE_MS["auto"]
    before = len(driver.sent)
    driver.do(TurnJudged(driver.questions[0].question, 0.99))
    assert len(driver.sent) == before


def test_the_next_pause_is_judged_again_after_a_failure() -> None:
    answers = iter([None, 0.99])
    driver = semantic(lambda question: next(answers), "high")
    driver.say(speech(640), silence(416), speech(320), silence(800))
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + 416 + 320 + CERTAIN_HIGH_MS


def test_what_comes_while_the_model_thinks_waits_for_its_answer() -> None:
    """A decision is about the audio up to the question, whenever the answer comes."""
    driver = semantic(lambda question: LATE, "high")
    driver.say(speech(640), silence(320), speech(320))
    driver.do(TurnJudged(driver.questions[0].question, 0.99))
    (stopped,) = driver.all(events.SpeechStopped)
    assert stopped.audio_end_ms == 640 + CERTAIN_HIGH_MS
    assert [event.audio_start_ms for event in driver.all(events.SpeechStarted)] == [0, 640 + CERTAIN_HIGH_MS]


def test_what_was_prepared_in_secret_is_released_when_the_model_says_so() -> None:
    driver = semantic(lambda question: LATE, "high", speculate=True)
    driver.say(speech(640), silence(CERTAIN_HIGH_MS + FRAME_MS))
    driver.transcribe("What time is it?")
    request_id = driver.pending(Converse)[0]
    driver.write("It is")
    assert not driver.all(events.ResponseCreated)
    driver.do(TurnJudged(driver.questions[0].question, 0.99))
    assert driver.all(events.ResponseCreated)
    assert request_id in driver.requests, "the very request that was begun in the pause"


def test_a_commit_by_hand_settles_an_open_question() -> None:
    driver = semantic(lambda question: LATE)
    driver.say(speech(640), silence(320))
    driver.do(client.InputAudioCommit())
    before = driver.kinds()
    driver.do(TurnJudged(driver.questions[0].question, 0.99))
    assert driver.kinds() == before
    assert before.count("input_audio_buffer.speech_stopped") == before.count("input_audio_buffer.committed") == 1
    driver.say(silence(640), speech(640), silence(320))
    assert len(driver.questions) == 2, "the next turn is heard"
    assert driver.last(events.SpeechStarted).audio_start_ms == 960 + 640 - 300


@pytest.mark.parametrize(
    "detection",
    [{"type": "server_vad"}, {"type": "semantic_vad", "eagerness": "high"}, None],
    ids=["server_vad", "high", "none"],
)
def test_the_settings_may_change_while_the_model_thinks(detection: dict[str, str] | None) -> None:
    driver = semantic(lambda question: LATE)
    driver.say(speech(640), silence(320))
    driver.update({"audio": {"input": {"turn_detection": detection}}})
    driver.do(TurnJudged(driver.questions[0].question, 0.1))
    driver.say(silence(2500))
    if len(driver.questions) > 1:
        driver.wait(ANSWER_WITHIN_S)
    driver.say(silence(320))
    if detection is None:
        assert not driver.all(events.SpeechStopped)
        driver.do(client.InputAudioCommit())
    assert len(driver.all(events.InputAudioCommitted)) == 1


def test_another_eagerness_in_a_pause_keeps_what_the_model_has_said() -> None:
    answers = iter([0.02, 0.02, 0.02, 0.98])
    driver = semantic(lambda question: next(answers), "low")
    driver.say(speech(640), silence(480))
    driver.update({"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "auto"}}}})
    driver.say(silence(200))
    assert len(driver.questions) == 4
    assert not driver.all(events.SpeechStopped)


def test_a_change_of_format_while_the_model_thinks_does_not_lose_the_turn() -> None:
    driver = semantic(lambda question: LATE)
    driver.say(speech(640), silence(320))
    driver.update({"audio": {"input": {"format": {"type": "audio/pcmu"}}}})
    for _ in range(60):
        driver.now += 0.1
        driver.do(client.InputAudioAppend(audio=b"\xff" * 800))
        driver.wait(0)
    assert len(driver.all(events.SpeechStopped)) == 1


def test_a_turn_without_end_is_cut_under_semantic_vad_too() -> None:
    driver = semantic(lambda question: 0.0, limits=Limits(max_turn_s=2.0))
    driver.say(speech(1800), silence(640), speech(640))
    assert driver.all(events.SpeechStopped)[0].audio_end_ms == 2000
    assert driver.all(events.SpeechStarted)[1].audio_start_ms == 2000


def test_without_a_model_it_waits_longer_the_less_eager() -> None:
    detection = {"type": "semantic_vad", "eagerness": "low"}
    driver = Driver({"audio": {"input": {"turn_detection": detection}}})
    driver.say(speech(640), silence(2000))
    assert not driver.questions
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + SEMANTIC_SILENCE_MS["low"]


@pytest.mark.parametrize("quiet_ms", [0, 10, 30, 50, 64])
def test_no_question_is_asked_before_the_pause_is_known(quiet_ms: int) -> None:
    """Silence is dated back to the last sound, so that 100 ms of it may be over a frame before 128 are."""
    policy = SemanticPolicy(SemanticSettings(), SilenceSettings())
    heard: list[TurnSignal] = []
    for frame in range(30):
        speaks, start = frame < 8 or 13 <= frame < 16, frame * VAD_FRAME_TICKS
        quiet = quiet_ms * TICKS_PER_MS if frame in (7, 15) else 0
        signals = policy.frame(start, start + VAD_FRAME_TICKS, 0.99 if speaks else 0.01, quiet)
        heard += signals
        if any(isinstance(signal, Asked) for signal in signals):
            assert policy.judged(0.02) == []
    kinds = [type(signal) for signal in heard]
    assert kinds[:3] == [Started, Paused, Asked]
    assert kinds.count(Paused) == 2
    after = kinds[kinds.index(Resumed) + 1 :]
    assert after[:2] == [Paused, Asked], "the next pause is asked about from its beginning"


# -- words -------------------------------------------------------------------------------------------------------------


def said(driver: Driver, full_stop: float | None, text: str = "I would like") -> None:
    """The recogniser has heard the turn up to its pause."""
    driver.do(EngineOutput(driver.pending(Transcribe)[0], TranscriptDelta(text=text, full_stop=full_stop)))


@pytest.mark.parametrize("full_stop", [-4.0, 1.5, USUAL_WORDS, 6.0, 20.0])
def test_the_less_finished_the_words_are_the_longer_is_waited(full_stop: float) -> None:
    wait = round(SemanticSettings().wait(log_odds(0.7), full_stop))
    driver = semantic(lambda question: 0.7, speculate=True)
    driver.say(speech(640), silence(256))
    said(driver, full_stop)
    driver.say(silence(wait - 256 - FRAME_MS))
    assert not driver.all(events.SpeechStopped)
    driver.say(silence(2 * FRAME_MS))
    assert driver.last(events.SpeechStopped).audio_end_ms == pytest.approx(640 + wait, abs=1)


def test_words_multiply_the_wait_within_bounds() -> None:
    settings = SemanticSettings(wait_ms=600, words_sway=0.1)
    assert settings.wait(0.0) == settings.wait(0.0, USUAL_WORDS) == 600
    assert settings.wait(0.0, USUAL_WORDS + 1) == pytest.approx(600 * 0.904837, rel=1e-5)
    assert settings.wait(0.0, -100) == settings.wait(0.0, USUAL_WORDS - WORDS_REACH) == pytest.approx(600 * 1.349859)


def test_words_are_asked_for_where_they_count_and_nowhere_else() -> None:
    asked = {}
    for kind in ("semantic_vad", "server_vad"):
        driver = Driver({"audio": {"input": {"turn_detection": {"type": kind}}}}, judge=lambda _: 0.5, speculate=True)
        driver.say(speech(640), silence(256))
        (request,) = driver.requests.values()
        assert isinstance(request.payload, Transcribe)
        asked[kind] = request.payload.full_stop
        said(driver, -3.0)  # nobody is disturbed by what was not asked for
        driver.say(silence(3000))
        assert len(driver.all(events.SpeechStopped)) == 1
    assert asked == {"semantic_vad": True, "server_vad": False}
    driver = semantic(lambda question: 0.99)
    driver.say(speech(640), silence(800))
    (request,) = driver.requests.values()
    assert isinstance(request.payload, Transcribe)
    assert not request.payload.full_stop, "the turn is over already"


def test_words_of_one_pause_say_nothing_of_the_next() -> None:
    driver = semantic(lambda question: 0.5, speculate=True)
    driver.say(speech(640), silence(256))
    stale = driver.pending(Transcribe)[0]
    said(driver, 8.5)
    driver.say(speech(320), silence(256))
    driver.do(EngineOutput(stale, TranscriptDelta(text="late", full_stop=8.5)))
    driver.say(silence(1000))
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + 256 + 320 + int(SemanticSettings().wait(0.0))


def test_words_alone_do_not_end_a_turn_of_which_the_model_says_nothing() -> None:
    driver = semantic(lambda question: None, speculate=True)
    driver.say(speech(640), silence(256))
    said(driver, 20.0)
    driver.say(silence(2000))
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + SEMANTIC_SILENCE_MS["auto"]


def test_words_do_not_prolong_the_wait_once_the_model_has_failed() -> None:
    answers = iter([0.5, None])
    driver = semantic(lambda question: next(answers), speculate=True)
    driver.say(speech(640), silence(256))
    said(driver, -4.0)
    driver.say(silence(2000))
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + int(SemanticSettings().wait(0.0))


def test_a_recogniser_that_says_nothing_of_it_changes_nothing() -> None:
    driver = semantic(lambda question: 0.5, speculate=True)
    driver.say(speech(640), silence(256))
    said(driver, None)
    driver.say(silence(1000))
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + int(SemanticSettings().wait(0.0))


def test_another_eagerness_in_a_pause_keeps_what_the_words_have_said() -> None:
    driver = semantic(lambda question: 0.5, "low", speculate=True)
    driver.say(speech(640), silence(256))
    said(driver, 8.5)
    driver.update({"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "auto"}}}})
    driver.say(silence(1000))
    assert driver.last(events.SpeechStopped).audio_end_ms == 640 + int(SemanticSettings().wait(0.0, 8.5))


# -- any chunking ------------------------------------------------------------------------------------------------------

_AUDIO = silence(300) + speech(500) + silence(1100) + speech(300) + silence(250) + speech(700) + silence(4500)


def judged_by_length(question: AskTurnModel) -> float:
    """Some answer that depends on nothing but what the model hears."""
    return len(question.pcm) // 2 % 97 / 97


def turns(driver: Driver) -> list[object]:
    positions: list[object] = [
        (type(event).__name__, getattr(event, "audio_start_ms", None), getattr(event, "audio_end_ms", None))
        for event in driver.sent
        if isinstance(event, events.SpeechStarted | events.SpeechStopped)
    ]
    heard = [question.pcm for question in driver.questions]
    audio = [r.payload.audio for r in driver.requests.values() if isinstance(r.payload, Transcribe)]
    return [*positions, *heard, *audio]


@given(sizes=st.lists(st.integers(1, 20_001), min_size=1, max_size=40), slow=st.booleans())
def test_o6_fc_041_any_chunking_and_any_speed_of_the_model_give_the_same_turns(sizes: list[int], slow: bool) -> None:
    whole = semantic(judged_by_length, heard_from=AUDIBLE)
    whole.do(client.InputAudioAppend(audio=_AUDIO))
    pieces = semantic((lambda question: LATE) if slow else judged_by_length, heard_from=AUDIBLE)
    position, turn, answered = 0, 0, 0
    while position < len(_AUDIO):
        size = sizes[turn % len(sizes)]
        pieces.do(client.InputAudioAppend(audio=_AUDIO[position : position + size]))
        position, turn = position + size, turn + 1
        if slow and turn % 3 == 0:
            while answered < len(pieces.questions):
                question = pieces.questions[answered]
                answered += 1
                pieces.do(TurnJudged(question.question, judged_by_length(question)))
    while slow and answered < len(pieces.questions):
        question = pieces.questions[answered]
        answered += 1
        pieces.do(TurnJudged(question.question, judged_by_length(question)))
    assert turns(whole) == turns(pieces)
    assert len(whole.all(events.SpeechStopped)) >= 2
