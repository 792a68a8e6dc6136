import threading

import numpy as np
import pytest
from msgspec.structs import replace
from noises import at_dbfs, noises

from duologue.codecs.pcm import float_to_pcm16
from duologue.codecs.resample import resample
from duologue.engine.models import pull, require
from duologue.engine.requests import Transcribe, TranscriptDelta
from duologue.engine.stages.recogniser import (
    SAMPLE_RATE,
    WhisperRecogniser,
    context_prompt,
    split_at_pauses,
    was_spoken,
    without_space,
)
from duologue.engine.stages.whisper import (
    LONGEST_S,
    Hypothesis,
    Recognition,
    Whisper,
    audible_seconds,
    token_bytes,
)
from duologue.engine.words import WordErrors, normalise_words, word_errors


def test_splits_fall_into_pauses_and_lose_nothing():
    noise = np.random.default_rng(0).standard_normal(SAMPLE_RATE * 70).astype(np.float32)
    for second in (20, 45):
        noise[second * SAMPLE_RATE : second * SAMPLE_RATE + 6400] = 0
    parts = split_at_pauses(noise, 29.5)
    assert np.array_equal(np.concatenate(parts), noise)
    assert all(len(part) <= 29.5 * SAMPLE_RATE for part in parts)
    assert 20.0 < len(parts[0]) / SAMPLE_RATE < 20.4
    assert 45.0 < (len(parts[0]) + len(parts[1])) / SAMPLE_RATE < 45.4
    assert split_at_pauses(noise[:0], 29.5) == []


@pytest.mark.parametrize(
    ("text", "no_speech", "log_probability", "spoken"),
    [
        ("Go somewhere.", 0.05, -0.2, True),
        ("5, 5", 0.3, -1.1, True),
        ("5 5", 0.43, -1.35, True),
        ("5 5", 0.49, -1.33, True),
        ("Huh?", 0.42, -1.81, False),
        ("Ah!", 0.48, -1.54, False),
        ("Ah!", 0.499, -1.496, False),
        ("You", 0.93, -2.9, False),
        ("Have... Have...", 0.64, -1.4, False),
        ("Yes.", 0.8, -0.1, True),
        ("Thank you.", 0.9, -0.6, False),
        ("...", 0.0, -0.1, False),
        ("", 0.0, 0.0, False),
        ("PAPAPAPAPAPAPAPAPAPAPAPAPAPA", 0.1, -0.3, False),
    ],
)
def test_what_counts_as_spoken(text, no_speech, log_probability, spoken):
    assert was_spoken(Hypothesis(text, no_speech, log_probability)) is spoken


def test_audible_time_leaves_out_pauses():
    tone = np.sin(np.arange(SAMPLE_RATE) * 0.3).astype(np.float32)
    assert audible_seconds(np.concatenate((tone, 0.001 * tone, tone))) == pytest.approx(2.0, abs=0.05)
    assert audible_seconds(np.zeros(1000, np.float32)) == 0


@pytest.mark.models
def test_word_error_rate_on_the_recordings(recordings, transcribe):
    total = WordErrors(0, 0)
    for samples, spoken in recordings.values():
        total += word_errors(spoken, transcribe(samples))
    assert total.words == 115
    assert total.rate <= 0.10, total


@pytest.mark.models
def test_speech_at_other_rates_and_levels(recordings, transcribe):
    samples, spoken = recordings["goforward.wav"]
    for rate in (8_000, 24_000, 48_000):
        heard = transcribe(resample(samples * np.float32(0.2), 16_000, rate), rate)
        assert word_errors(spoken, heard).errors == 0, (rate, heard)


@pytest.mark.models
def test_more_than_one_window_is_recognised_to_the_end(recordings, transcribe):
    names = [f"librivox-austen-{n}.wav" for n in ("0870", "0880", "0920", "0930", "0870", "0920", "0930")]
    pause = np.zeros(SAMPLE_RATE // 2, np.float32)
    samples = np.concatenate([part for name in names for part in (recordings[name][0], pause)])
    assert len(samples) / SAMPLE_RATE > LONGEST_S
    spoken = " ".join(recordings[name][1] for name in names)
    assert word_errors(spoken, transcribe(samples)).rate <= 0.10


@pytest.mark.models
def test_fc_037_an_utterance_cut_at_its_last_voiced_frame_keeps_its_last_word(recordings, transcribe):
    for name, last in (("something.wav", "something"), ("librivox-austen-0930.wav", "himself")):
        samples, spoken = recordings[name]
        level = np.abs(samples) > 0.02 * np.abs(samples).max()
        heard = transcribe(samples[: int(np.flatnonzero(level)[-1]) + 1])
        assert normalise_words(heard)[-1] == last
        assert len(normalise_words(heard)) == len(spoken.split())


@pytest.mark.models
def test_fc_037_silence_follows_speech_that_fills_a_window_to_its_end(recordings, transcribe):
    samples, spoken = recordings["librivox-austen-0930.wav"]
    level = np.abs(samples) > 0.02 * np.abs(samples).max()
    samples = samples[: int(np.flatnonzero(level)[-1]) + 1]
    noise = np.random.default_rng(0).standard_normal(8 * SAMPLE_RATE - len(samples)).astype(np.float32) * 1e-4
    heard = transcribe(np.concatenate((noise.astype(np.float32), samples)))
    assert word_errors(spoken, heard).errors == 0, heard


@pytest.mark.models
def test_fc_037_half_a_second_of_silence_fits_into_the_window(recogniser):
    tone = (0.1 * np.sin(np.arange(30 * SAMPLE_RATE) * 0.3)).astype(np.float32)
    lengths = (1, 7.5, 7.6, 14.6, 29.5)
    windows = [Recognition(recogniser._whisper, tone[: int(s * SAMPLE_RATE)]).key[1] for s in lengths]
    assert windows == [8, 8, 15, 30, 30]
    with pytest.raises(ValueError, match="longer than"):
        recogniser._whisper.recognise(tone)


@pytest.mark.models
def test_a_text_may_be_as_long_as_the_room_that_it_is_given(recogniser, recordings):
    """The library takes half of its ``max_length`` for the length of the text: fast speech was cut short."""
    recognition = Recognition(recogniser._whisper, recordings["cards-001.wav"][0], logprobs=True)
    made = []
    recognition.take = made.append
    recognition.room = 40
    recognition.encode()
    recogniser._whisper.decode([recognition])
    assert len(made[0].tokens) >= 40  # the model runs in circles here, which is what the test needs


@pytest.mark.models
def test_a_decode_that_runs_in_circles_is_not_believed(recordings, transcribe):
    rng = np.random.default_rng(1)
    for name in ("cards-001.wav", "cards-003.wav", "cards-004.wav"):
        samples, spoken = recordings[name]
        for before in (0.0, 0.15, 0.3, 0.6, 1.0):
            pause = (rng.standard_normal(int(before * SAMPLE_RATE)) * 1e-4).astype(np.float32)
            heard = normalise_words(transcribe(np.concatenate((pause, samples, pause))))
            assert len(heard) <= len(spoken.split()) + 2, (name, before, heard)


@pytest.mark.models
@pytest.mark.parametrize("level", [-20, -45])
def test_fc_036_sounds_in_which_nobody_speaks_are_no_words(transcribe, level):
    """Clicks and breath, hum, fan and music too, short and long."""
    for seconds in (1.5, 3.0):
        sounds = noises(seconds, seed=7)
        heard = {name: transcribe(at_dbfs(sound, level)) for name, sound in sounds.items()}
        assert heard == dict.fromkeys(sounds, "")
    assert transcribe(np.zeros(SAMPLE_RATE, np.float32)) == ""


@pytest.mark.models
def test_fc_036_nor_do_they_become_words_by_what_was_said_before(transcribe):
    before = "And Mr. John Dashwood had then leisure to consider how much there might be prudently in his power to do."
    for seed, seconds, level in ((3, 2.0, -30), (0, 1.5, -20), (1, 3.0, -45)):
        sounds = noises(seconds, seed=seed)
        heard = {name: transcribe(at_dbfs(sound, level), before=before) for name, sound in sounds.items()}
        assert heard == dict.fromkeys(sounds, "")


@pytest.mark.models
def test_one_delta_a_part_and_none_once_aborted(recogniser, recordings, recorder):
    samples = recordings["goforward.wav"][0]
    payload = Transcribe(audio=float_to_pcm16(resample(samples, 16_000, 24_000)), sample_rate=24_000)
    context = recorder(payload)
    recogniser.process(recogniser.start(context.request), payload, context)
    (delta,) = context.pieces
    assert isinstance(delta, TranscriptDelta)
    assert delta.end_sample == pytest.approx(len(payload.audio) // 2, abs=2)
    context = recorder(payload)
    state = recogniser.start(context.request)
    recogniser.interrupt(state)
    recogniser.process(state, payload, context)
    assert context.pieces == []


@pytest.mark.models
def test_fc_020_an_abort_ends_a_request_at_once_and_its_other_parts_are_not_begun(
    recogniser, recordings, recorder, monkeypatch
):
    samples = np.tile(recordings["goforward.wav"][0], 20)
    assert len(samples) > 1.2 * LONGEST_S * SAMPLE_RATE
    context = recorder(Transcribe(audio=float_to_pcm16(samples), sample_rate=SAMPLE_RATE))
    state = recogniser.start(context.request)
    begun, go_on, encoded = threading.Event(), threading.Event(), []

    def encode(self):
        encoded.append(len(self._samples) / SAMPLE_RATE)
        begun.set()
        go_on.wait(5)
        self.encoded = "sound"

    decoded = []
    monkeypatch.setattr(Recognition, "encode", encode)
    monkeypatch.setattr(Whisper, "decode", lambda self, batch: decoded.append(batch))
    thread = threading.Thread(target=recogniser.process, args=(state, context.request.payload, context))
    thread.start()
    assert begun.wait(5)
    recogniser.interrupt(state)
    thread.join(5)  # while the step in hand still goes on
    assert not thread.is_alive()
    go_on.set()
    done = recogniser._queue.put(Recognition(recogniser._whisper, samples[:1600]))
    recogniser._queue.cancel(done)
    assert context.pieces == []
    assert len(encoded) == 1
    assert decoded == []


@pytest.mark.models
def test_a_prompt_helps_with_spelling_and_never_appears_itself(recordings, transcribe):
    heard = transcribe(recordings["goforward.wav"][0], prompt="Robot commands in metres.")
    assert "robot" not in heard.lower()
    assert normalise_words(heard)[:2] == ["go", "forward"]


@pytest.mark.parametrize("text", [" Hello café 你好.", "\u00ad\t\x7f\x80"])
def test_the_bytes_of_tokens_are_those_of_the_text(text):
    from tokenizers.pre_tokenizers import ByteLevel

    pieces = [piece for piece, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(text)]
    assert b"".join(map(token_bytes, pieces)) == text.encode()


@pytest.mark.models
def test_logprobs_add_up_to_the_text_and_to_the_score(recordings):
    whisper = Whisper(require("whisper-tiny.en"), threads=1, workers=1)
    for name in ("goforward.wav", "cards-004.wav"):
        samples, _ = recordings[name]
        plain, told = whisper.recognise(samples), whisper.recognise(samples, logprobs=True)
        assert (plain.text, plain.tokens) == (told.text, ())
        tokens = list(without_space(told.tokens))
        assert b"".join(token.bytes for token in tokens).decode() == told.text
        assert all(token.logprob <= 0 for token in tokens)
        # The score is the mean over the tokens and the end of the text, whose own is what is left.
        end = told.log_probability * len(tokens) - sum(token.logprob for token in tokens)
        assert -3 < end <= 1e-3


@pytest.mark.models
def test_a_sentence_that_is_over_is_told_from_one_that_goes_on(recogniser, recordings, recorder):
    """In the pauses behind "ask not" and "can do for you", and at the end."""
    samples, _ = recordings["jfk-ask-not.wav"]

    def heard(until_s, **fields):
        audio = float_to_pcm16(samples[: int(until_s * SAMPLE_RATE)])
        payload = Transcribe(audio=audio, sample_rate=SAMPLE_RATE, **fields)
        context = recorder(payload)
        recogniser.process(recogniser.start(context.request), payload, context)
        (delta,) = context.pieces
        return delta

    ask_not, for_you, country = (heard(until_s, full_stop=True) for until_s in (4.5, 8.0, 10.8))
    assert [normalise_words(delta.text)[-1] for delta in (ask_not, for_you, country)] == ["not", "you", "country"]
    assert ask_not.full_stop < 0 < for_you.full_stop < 3 < country.full_stop
    assert heard(10.8) == replace(country, full_stop=None)


@pytest.mark.models
def test_another_language_goes_to_a_model_that_knows_it_loaded_when_asked_for(recordings, recogniser, recorder):
    pull("whisper-base")
    assert recogniser._other._model is None
    payload = Transcribe(audio=float_to_pcm16(recordings["goforward.wav"][0]), sample_rate=16_000, language="de-AT")
    context = recorder(payload)
    context.working = lambda: None
    recogniser.process(recogniser.start(context.request), payload, context)
    assert [delta.language for delta in context.pieces] == ["de"]
    assert recogniser._other.model.multilingual


@pytest.mark.models
def test_without_such_a_model_another_language_is_refused(recogniser, recorder, monkeypatch):
    monkeypatch.setattr(recogniser, "_multilingual", None)
    payload = Transcribe(audio=bytes(32_000), sample_rate=16_000, language="de")
    context = recorder(payload)
    with pytest.raises(ValueError, match="English only, not 'de'"):
        recogniser.process(recogniser.start(context.request), payload, context)


@pytest.mark.parametrize(
    ("arguments", "multilingual"),
    [
        ({"model": "whisper-tiny.en"}, True),
        ({"model": "whisper-tiny.en", "multilingual": None}, False),
        ({"model": "whisper-base", "multilingual": None}, True),
    ],
)
def test_what_it_is_made_with_says_which_languages_it_knows(arguments, multilingual):
    assert (WhisperRecogniser.abilities(arguments) == {"multilingual"}) is multilingual


@pytest.mark.models
def test_a_pause_is_where_words_are_settled(recogniser, recordings, recorder):
    samples, spoken = recordings["jfk-ask-not.wav"]
    samples = samples[: int(8.4 * SAMPLE_RATE)]
    payload = Transcribe(audio=float_to_pcm16(samples), sample_rate=SAMPLE_RATE, urgency="partial", settle=True)
    context = recorder(payload)
    recogniser.process(recogniser.start(context.request), payload, context)
    (delta,) = context.pieces
    assert 4.2 < delta.end_sample / SAMPLE_RATE < 7.9
    assert normalise_words(delta.text)[:2] == spoken.split()[:2]
    noise = np.random.default_rng(0).standard_normal(8 * SAMPLE_RATE).astype(np.float32) * np.float32(0.1)
    payload = replace(payload, audio=float_to_pcm16(noise))
    context = recorder(payload)
    recogniser.process(recogniser.start(context.request), payload, context)
    assert context.pieces == []  # no pause, and no need to cut yet


def test_the_context_is_the_last_words_from_a_words_start():
    assert context_prompt(None, " ") is None
    assert context_prompt("Names.", "") == "Names."
    assert context_prompt("Names.", "one two") == "Names. one two"
    last = context_prompt(None, "word " * 100 + "end")
    assert last.startswith("word ")
    assert last.endswith("word end")
    assert len(last) <= 200
