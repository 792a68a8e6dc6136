import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.codecs.harmonic_noise import HOP, SAMPLE_RATE, AcousticFrames, HarmonicNoiseSynthesiser
from duologue.codecs.levels import first_audible_sample
from duologue.codecs.pcm import float_to_pcm16
from duologue.engine.requests import Speak
from duologue.engine.stages.codec import LEADING_SILENCE_S, ChunkLadder, HarmonicNoiseCodec
from duologue.engine.stages.pieces import FrameWord, SpokenClause

LEAD = round(LEADING_SILENCE_S * SAMPLE_RATE)


def _frames(count: int, seed: int = 0, silent_head: int = 0) -> AcousticFrames:
    rng = np.random.default_rng(seed)

    def column(mean: float) -> np.ndarray:
        values = (mean + rng.standard_normal((count, 601))).astype(np.float32)
        values[:silent_head] = -12
        return values

    return AcousticFrames(
        column(-4), column(0), column(-3), column(-6), column(0), rng.uniform(90, 240, count).astype(np.float32)
    )


def _clause(count: int, seed: int = 0, words: tuple[FrameWord, ...] = (), pause_s: float = 0.0, head: int = 0):
    return SpokenClause(_frames(count, seed, head), words, pause_s)


def _sound(deltas) -> bytes:
    return b"".join(delta.pcm for delta in deltas)


@pytest.mark.parametrize("factor", [0.01, 0.1, 0.3, 0.6, 0.9])
def test_fc_115_each_chunk_is_ready_before_the_one_before_has_been_played(factor):
    ladder, now, played_out, lengths = ChunkLadder(), 100.0, None, []
    for _ in range(12):
        length = ladder.next_length(now, factor)
        now += length * factor
        assert played_out is None or now <= played_out, "the player has run dry"
        played_out = (played_out or now) + length
        ladder.handed_over(length, now)
        lengths.append(length)
    assert lengths[0] == 0.0625
    assert max(lengths) <= 2.0
    assert (lengths[-1] == 2.0) is (factor <= 0.3), "as long as the speed allows"


def test_after_an_underrun_chunks_are_short_again():
    ladder = ChunkLadder()
    ladder.handed_over(2.0, now=0.0)
    assert ladder.next_length(now=0.0, real_time_factor=0.05) == 2.0
    assert ladder.next_length(now=5.0, real_time_factor=0.05) == 0.0625
    ladder.handed_over(0.0625, now=5.0)
    assert ladder.next_length(now=5.0, real_time_factor=0.5) == pytest.approx(0.0625)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(0, 2**40))
@settings(max_examples=15, deadline=None)
def test_chunks_equal_one_shot_sample_for_sample(counts, seed):
    codec = HarmonicNoiseCodec()
    codec.warm_up()
    emitted, expected = [], []
    payload = Speak(text="x", seed=seed)
    state = codec.start(_request(payload))
    for i, count in enumerate(counts):
        codec.process(state, _clause(count, seed=i), _Context(emitted))
        whole = HarmonicNoiseSynthesiser(_frames(count, i), (seed + i * 0x9E3779B1) % 2**32).synthesise(count)
        expected.append(whole)
    sound = np.concatenate(expected)
    first = first_audible_sample(sound, SAMPLE_RATE)
    codec.finish(state, _Context(emitted))
    assert _sound(emitted) == float_to_pcm16(sound[max(0, (first or 0) - LEAD) :])


class _Context:
    aborted = False

    def __init__(self, emitted):
        self.emit = lambda piece: emitted.append(piece) is None
        self.made = lambda seconds: None


def _request(payload):
    from duologue.engine.requests import EngineRequest

    return EngineRequest(request_id="r", session_id="s", payload=payload)


def test_silence_before_the_reply_is_cut_and_pauses_inside_stay(run_stage):
    words = (FrameWord(0, 1, 40),)
    clauses = [_clause(40, 1, words, pause_s=0.2, head=20), _clause(40, 2, head=10), _clause(8, 3)]
    deltas = run_stage(HarmonicNoiseCodec(), Speak(text="x", seed=1), clauses)
    sound = np.frombuffer(_sound(deltas), "<i2") / 32768
    first = first_audible_sample(sound.astype(np.float32), SAMPLE_RATE)
    assert first == 0, "less than one of the 10 ms in which levels are taken"
    assert [span.end_sample for delta in deltas for span in delta.words] == [len(sound) - 48 * HOP - 4800]
    whole = (40 + 40 + 8) * HOP + round(0.2 * SAMPLE_RATE)
    assert whole - 20 * HOP - 600 < len(sound) < whole - 15 * HOP


def test_a_reply_that_begins_with_an_inaudible_clause_still_speaks(run_stage):
    clauses = [_clause(10, 1, pause_s=0.3, head=10), _clause(30, 2)]
    sound = _sound(run_stage(HarmonicNoiseCodec(), Speak(text="x", seed=1), clauses))
    assert 30 * HOP + LEAD <= len(sound) // 2 < 30 * HOP + LEAD + 240


def test_a_reply_that_is_never_audible_is_not_lost(run_stage):
    words = (FrameWord(0, 1, 6),)
    deltas = run_stage(HarmonicNoiseCodec(), Speak(text="x", seed=1), [_clause(10, 1, words, head=10)])
    assert len(_sound(deltas)) // 2 == 10 * HOP
    assert [span.end_sample for delta in deltas for span in delta.words] == [6 * HOP]


def test_words_come_with_the_sound_they_end_in(run_stage):
    words = tuple(FrameWord(2 * i, 2 * i + 1, 10 * (i + 1)) for i in range(8))
    clauses = [_clause(80, 1, words, pause_s=0.1), _clause(80, 2, words)]
    deltas = run_stage(HarmonicNoiseCodec(), Speak(text="x", seed=1), clauses)
    assert len(deltas) >= 4
    played, spans = 0, []
    for delta in deltas:
        before, played = played, played + len(delta.pcm) // 2
        assert all(before < span.end_sample <= played for span in delta.words)
        spans += delta.words
    pause = round(0.1 * SAMPLE_RATE)
    assert [span.end_sample for span in spans] == [3000 * i for i in range(1, 9)] + [
        80 * HOP + pause + 3000 * i for i in range(1, 9)
    ]


def test_the_seed_comes_from_the_payload_else_from_the_request(run_stage):
    codec = HarmonicNoiseCodec()

    def sound(seed=None, request_id="a"):
        return _sound(run_stage(codec, Speak(text="x", seed=seed), [_clause(20)], request_id=request_id))

    assert sound(5) == sound(5, "b") != sound(6)
    assert sound() == sound() != sound(request_id="b")


def test_fc_020_an_abort_stops_at_the_next_chunk(recorder):
    codec = HarmonicNoiseCodec()
    context = recorder(Speak(text="x", seed=1))
    context._then = lambda piece: setattr(context, "aborted", True)
    codec.process(codec.start(context.request), _clause(400), context)
    assert len(context.pieces) == 1


def _first_length(codec, request):
    emitted: list = []
    codec.process(codec.start(request), _clause(400), _Context(emitted))
    return len(emitted[0].pcm) / 2 / SAMPLE_RATE


def test_the_first_chunk_is_the_request_s_else_the_deploy_file_s_else_the_shortest():
    import msgspec

    request = _request(Speak(text="x", seed=1))
    longer = msgspec.structs.replace(request, first_chunk_s=0.5)
    for codec, usual in (
        (HarmonicNoiseCodec(), 0.0625),
        (HarmonicNoiseCodec(first_chunk_s=0.2), 0.2),
        (HarmonicNoiseCodec(initial_codec_chunk_frames=8), 0.1),
    ):
        assert _first_length(codec, request) == pytest.approx(usual, abs=HOP / SAMPLE_RATE)
        assert _first_length(codec, longer) == pytest.approx(0.5, abs=HOP / SAMPLE_RATE)


@pytest.mark.parametrize("asked_s", [0.0125, 0.0625, 0.3, 1.0])
@pytest.mark.parametrize("head", [0, 1, 7, 30])
def test_the_first_chunk_is_whole_though_silence_is_cut_and_clauses_are_short(run_stage, asked_s, head):
    def length(counts):
        clauses = [_clause(count, i, pause_s=0.1, head=0 if i else head) for i, count in enumerate(counts)]
        deltas = run_stage(HarmonicNoiseCodec(first_chunk_s=asked_s), Speak(text="x", seed=1), clauses)
        assert len(_sound(deltas)) // 2 >= (sum(counts) - head) * HOP, "nothing is lost"
        return len(deltas[0].pcm) / 2 / SAMPLE_RATE

    # Five frames are needed to find the first audible sample in.
    longest_s = max(asked_s, 0.0625) + 2 * HOP / SAMPLE_RATE
    assert asked_s <= length([head + 200]) <= longest_s
    assert asked_s <= length([head + 20] * 8) <= longest_s + 0.1


def test_a_reply_shorter_than_its_first_chunk_is_not_lost(run_stage):
    deltas = run_stage(HarmonicNoiseCodec(first_chunk_s=2.0), Speak(text="x", seed=1), [_clause(30)])
    assert len(deltas) == 1
    assert len(_sound(deltas)) // 2 == 30 * HOP


@pytest.mark.parametrize("wrong", [{"first_chunk_s": 0.0}, {"first_chunk_s": 3}, {"initial_codec_chunk_frames": 0}])
def test_a_first_chunk_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=r"the first chunk is .* s; it is from 0\.0125 to 2 s"):
        HarmonicNoiseCodec(**wrong)


def test_fc_020_an_abort_amid_a_long_reply_ends_within_the_longest_chunk(recorder):
    codec = HarmonicNoiseCodec()
    codec.warm_up()
    context = recorder(Speak(text="x", seed=1))
    made = 0.0

    def count(samples, _timed=codec._timed):
        nonlocal made
        made += len(sound := _timed(*samples)) / SAMPLE_RATE
        return sound

    codec._timed = lambda *samples: count(samples)
    context._then = lambda piece: setattr(context, "aborted", len(context.pieces) >= 8)
    codec.process(codec.start(context.request), _clause(4000), context)
    handed_over = sum(len(piece.pcm) for piece in context.pieces) / 2 / SAMPLE_RATE
    assert len(context.pieces) == 8
    assert made - handed_over <= 2.0
