import itertools
import math
import random
import re

import numpy as np
import pytest

from duologue.codecs.harmonic_noise import HOP, HarmonicNoiseSynthesiser
from duologue.codecs.levels import dbfs, first_audible_sample, last_audible_sample
from duologue.engine.requests import OUTPUT_SAMPLE_RATE, Converse, Speak, TextDelta
from duologue.engine.stage import StageFinish
from duologue.engine.stages.codec import HarmonicNoiseCodec
from duologue.engine.stages.hibari import PhonemeWord, align_words, in_runs
from duologue.engine.stages.talker import audible_range
from duologue.engine.words import WordErrors, normalise_words, word_errors

REPLIES = (
    "The capital of France is Paris, and it is well known for its museums.",
    "Sure. I can tell you a story about a small boat that crossed the great ocean in winter.",
    "It will be sunny tomorrow morning, with a light wind from the west in the afternoon.",
    "You should drink a glass of water before you go to bed, and sleep for eight hours.",
    "**Please note:** the train leaves at half past seven from platform number twelve.",
)


def _samples(deltas) -> np.ndarray:
    return np.frombuffer(b"".join(delta.pcm for delta in deltas), "<i2").astype(np.float32) / 32768


def _spans(deltas):
    return [span for delta in deltas for span in delta.words]


def test_rewritten_words_are_divided_between_those_that_stayed():
    given = ["paid", "$5", "at", "7:30", "pm", "today"]
    spoken = ["paid", "five", "dollars", "at", "seven", "thirty", "P.M.", "today"]
    assert align_words(given, spoken) == [0, 1, 1, 2, 3, 3, 4, 5]
    assert align_words(["a", "b"], ["a", "b"]) == [0, 1]
    assert align_words(["a", "b", "c"], ["a", "c"]) == [0, 2]
    assert align_words(["a"], ["a", "b"]) == [0, 0]
    assert align_words(["x"], ["one", "two", "three"]) == [0, 0, 0]


def test_runs_are_no_longer_than_the_model_allows():
    words = [PhonemeWord("abc ", i) for i in range(10)] + [PhonemeWord("x" * 25, 10)]
    runs = in_runs(words, 10)
    assert all(sum(len(word.phonemes) for word in run) <= 10 for run in runs)
    assert "".join(word.phonemes for run in runs for word in run) == "abc " * 10 + "x" * 25


@pytest.mark.models
@pytest.mark.parametrize("text", ["This is, well, a test.", "Sure.", "hushed voices whisper", "Fifty fifths."])
def test_what_is_cut_off_a_clause_is_inaudible_and_all_of_the_silence(talker, text):
    prediction = talker._model.predict(talker._model.phonemes(text.split()), 1.0)
    sound = HarmonicNoiseSynthesiser(prediction.frames, 1).synthesise(len(prediction.frames))
    first, end = audible_range(prediction.frames)
    assert first_audible_sample(sound[: first * HOP], OUTPUT_SAMPLE_RATE) is None
    assert first_audible_sample(sound[end * HOP :], OUTPUT_SAMPLE_RATE) is None
    assert first_audible_sample(sound, OUTPUT_SAMPLE_RATE) - first * HOP < 0.08 * OUTPUT_SAMPLE_RATE
    assert end * HOP - last_audible_sample(sound, OUTPUT_SAMPLE_RATE) < 0.1 * OUTPUT_SAMPLE_RATE


@pytest.mark.models
def test_the_pieces_of_text_do_not_matter(speak):
    text = "It costs $9.99, I think. Would you like one? " + REPLIES[0]
    whole = speak(text, seed=3)
    by_letter = speak(text, [TextDelta(text=letter) for letter in text], seed=3)
    assert b"".join(d.pcm for d in whole) == b"".join(d.pcm for d in by_letter)
    assert _spans(whole) == _spans(by_letter)


@pytest.mark.models
def test_the_reply_recognised_again_is_its_text(speak, transcribe):
    total = WordErrors(0, 0)
    for text in REPLIES:
        total += word_errors(text, transcribe(_samples(speak(text, seed=1)), OUTPUT_SAMPLE_RATE))
    assert total.words > 70
    assert total.rate <= 0.05, total


@pytest.mark.models
def test_a_reply_begins_at_once_and_pauses_like_a_speaker(speak):
    for text in REPLIES:
        samples = _samples(speak(text, seed=1))
        assert first_audible_sample(samples, OUTPUT_SAMPLE_RATE) <= 0.02 * OUTPUT_SAMPLE_RATE
        assert len(samples) - last_audible_sample(samples, OUTPUT_SAMPLE_RATE) <= 0.1 * OUTPUT_SAMPLE_RATE
        levels = np.array([dbfs(frame) for frame in samples[: len(samples) // 240 * 240].reshape(-1, 240)])
        longest = max(len(list(run)) for quiet, run in itertools.groupby(levels < -50) if quiet)
        assert longest <= 45, "no pause of more than 450 ms"


@pytest.mark.models
def test_every_word_has_a_place_in_text_and_sound(speak):
    text = "**Hello!** It costs $9.99, and that is 5 km away 😀. Would you go at 7:30 pm? Dr. Smith's mail is me@x.org."
    deltas = speak(text, seed=1)
    spans = _spans(deltas)
    words = [text[span.text_start : span.text_end] for span in spans]
    assert words == [word for word in text.split() if word != "😀."]
    ends = [span.end_sample for span in spans]
    assert ends == sorted(ends)
    assert ends[0] > 0
    assert ends[-1] <= len(_samples(deltas))


@pytest.mark.models
@pytest.mark.parametrize("text", REPLIES[:3])
def test_sound_up_to_a_words_end_holds_the_words_up_to_it(speak, transcribe, text):
    deltas = speak(text, seed=1)
    samples, spans = _samples(deltas), _spans(deltas)
    errors = WordErrors(0, 0)
    for span in spans[3::4]:
        heard = transcribe(samples[: span.end_sample], OUTPUT_SAMPLE_RATE)
        expected = text[: span.text_end]
        errors += word_errors(expected, heard)
        assert abs(len(normalise_words(heard)) - len(normalise_words(expected))) <= 1, (expected, heard)
    assert errors.rate <= 0.12, errors


@pytest.mark.models
def test_speed_changes_the_length_and_not_the_words(speak, transcribe):
    text = REPLIES[3]
    lengths = {}
    for speed in (0.7, 1.0, 1.5):
        samples = _samples(speak(text, seed=1, speed=speed))
        lengths[speed] = len(samples)
        assert word_errors(text, transcribe(samples, OUTPUT_SAMPLE_RATE)).rate <= 0.1
    assert lengths[0.7] > 1.25 * lengths[1.0] > 1.25 * 1.25 * lengths[1.5]


@pytest.mark.models
def test_text_without_words_makes_no_sound(speak):
    assert speak("😀 --- ***") == []
    assert speak("") == []


def _pitch(samples: np.ndarray) -> float:
    """Median pitch in hertz, by autocorrelation of 40 ms frames that are loud and periodic."""
    found = []
    for start in range(0, len(samples) - 960, 480):
        frame = samples[start : start + 960].astype(np.float64)
        if dbfs(samples[start : start + 960]) > -30:
            correlation = np.fft.irfft(np.abs(np.fft.rfft(frame, 2048)) ** 2)[:480]
            lag = 60 + int(correlation[60:320].argmax())
            if correlation[lag] > 0.5 * correlation[0]:
                found.append(OUTPUT_SAMPLE_RATE / lag)
    return float(np.median(found))


@pytest.mark.models
@pytest.mark.parametrize("text", ["It is 6432" + "9" * 60 + ", I think.", "Call 1,234,567,890,123,456,789 today."])
def test_a_number_beyond_all_names_is_read_digit_by_digit(speak, text):
    spoken = _spans(speak(text))
    assert text[spoken[0].text_start : spoken[0].text_end] == text.split()[0]
    assert text[spoken[-1].text_start : spoken[-1].text_end] == text.split()[-1]
    assert len(_samples(speak(text))) > 5 * OUTPUT_SAMPLE_RATE


def test_a_word_that_cannot_be_read_costs_only_itself(talker, monkeypatch):
    model = talker._model
    tokenize = model._g2p.tokenize

    def failing(text):
        if "zyx" in text:
            raise IndexError(text)
        return tokenize(text)

    monkeypatch.setattr(model._g2p, "tokenize", failing)
    words = model.phonemes(["One", "zyx", "three."])
    assert [word.word for word in words] == [0, 2]
    assert all(word.phonemes for word in words)


def test_fc_114_one_speaker_over_all_sentences(speak):
    pitches = [_pitch(_samples(speak(text))) for text in REPLIES]
    assert max(pitches) < 1.25 * min(pitches)
    assert 140 < np.median(pitches) < 260


def _long_text() -> str:
    """1,500 words in sentences that are all different."""
    who = ("the old farmer", "a young doctor", "my neighbor", "the captain", "her brother", "our teacher")
    did = ("carried a basket", "painted a picture", "wrote a letter", "found a coin", "bought some bread")
    where = ("near the river", "in the market", "behind the house", "on the mountain", "under the bridge")
    when = ("on Monday", "last summer")
    sentences = [f"{' '.join(parts)}.".capitalize() for parts in itertools.product(who, did, where, when)]
    random.Random(0).shuffle(sentences)
    return " ".join(" ".join(sentences).split()[:1491]) + " and that is really the end of it."


@pytest.mark.models
def test_fc_108_a_text_of_1500_words_is_spoken_to_the_end(speak, transcribe):
    text = _long_text()
    assert len(text.split()) == 1499
    deltas = speak(text, seed=1)
    samples, spans = _samples(deltas), _spans(deltas)
    assert [text[span.text_start : span.text_end] for span in spans] == text.split()
    gaps = np.diff([0] + [span.end_sample for span in spans]) / OUTPUT_SAMPLE_RATE
    assert gaps.max() < 2.0
    starts = [i + 1 for i, span in enumerate(spans[:-30]) if text[span.text_end - 1] == "."]
    total = WordErrors(0, 0)
    for first in (0, *starts[30:180:30], starts[-1]):
        words = spans[first : first + 30] if first != starts[-1] else spans[first:]
        start = spans[first - 1].end_sample if first else 0
        heard = transcribe(samples[start : words[-1].end_sample], OUTPUT_SAMPLE_RATE)
        total += word_errors(text[words[0].text_start : words[-1].text_end], heard)
    assert total.words > 150
    assert total.rate <= 0.06, total


@pytest.mark.models
def test_a_reply_over_its_budget_ends_as_length_with_all_sound_made_so_far(run_stage, talker, monkeypatch):
    sentences = ["This is the first one.", "This is the second one.", "This is the third one.", "And the last one."]
    pieces = [TextDelta(text=f"{sentence} ") for sentence in sentences]
    whole = run_stage(talker, Speak(text="", seed=1), pieces)
    assert len(whole) == 4
    monkeypatch.setattr(talker, "_longest_reply_s", 0.1)
    cut = run_stage(talker, Speak(text="", seed=1), pieces)
    assert cut[1:] == [StageFinish("length")]
    assert np.array_equal(cut[0].frames.f0, whole[0].frames.f0)
    sound = run_stage(HarmonicNoiseCodec(), Speak(text="", seed=1), cut[:1])
    assert sum(len(d.pcm) for d in sound) // 2 == pytest.approx(len(cut[0].frames) * HOP, abs=0.1 * OUTPUT_SAMPLE_RATE)


@pytest.mark.models
def test_the_end_of_a_clause_is_not_waited_for_by_who_has_heard_everything(talker, recorder):
    said = "Yes, that is so. People say it in the old town every other day."
    text = said + " When sunlight reaches our air it comes down by"
    spoken = []
    for left_s, seed in ((math.inf, None), (0.0, 7), (0.0, None)):
        context = recorder(Converse(messages=(), seed=seed))
        context.left_s = left_s
        state = talker.start(context.request)
        for word in re.findall(r"\S+\s*", text):
            talker.process(state, TextDelta(text=word), context)
        spoken.append(context.pieces[-1].words[-1].text_end)
    patient, reproducible, hurried = spoken
    assert text[:patient].strip() == text[:reproducible].strip() == said
    assert text[:hurried].strip().endswith("When sunlight reaches our air it")


@pytest.mark.models
def test_fc_020_an_abort_predicts_no_more_than_the_run_in_hand(talker, recorder, monkeypatch):
    predicted = []
    predict = talker._model.predict
    monkeypatch.setattr(talker._model, "predict", lambda *a: predicted.append(len(a[0])) or predict(*a))
    context = recorder(Speak(text="One sentence. Another one. A third one. And the last."))
    context._then = lambda piece: setattr(context, "aborted", True)
    state = talker.start(context.request)
    talker.process(state, context.request.payload, context)
    talker.finish(state, context)
    assert len(context.pieces) == len(predicted) == 1
