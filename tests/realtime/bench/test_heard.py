"""The loudspeaker rendered from the log: every sample where the player put it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duologue.codecs.pcm import PCM16
from duologue.realtime.bench.heard import ReceivedSound
from duologue.realtime.bench.playback import Player
from duologue.realtime.event_log import EventLog, LogEntry

RATE = 24_000


def ramp(count: int, first: int = 1) -> bytes:
    return np.arange(first, first + count, dtype=np.int64).astype(PCM16).tobytes()


def samples(pcm: bytes) -> list[int]:
    return np.frombuffer(pcm, PCM16).tolist()


def test_silence_sound_cut_and_silence():
    player, sound = Player(rate=RATE), ReceivedSound()
    for at, first in ((0.001, 1), (0.001, 101)):
        player.receive("R", "I", 100, at)
        sound.receive("R", ramp(100, first))
    player.flush(0.001 + 150 / RATE)
    out = samples(sound.render(player.segments, RATE, 0.0, 0, 300))
    assert out == [0] * 24 + list(range(1, 151)) + [0] * 126


def test_a_window_of_it_is_the_same_as_all_of_it():
    player, sound = Player(rate=RATE), ReceivedSound()
    for at in (0.01, 0.011, 0.05):
        player.receive("R", "I", 240, at)
        sound.receive("R", ramp(240, round(at * 1e4)))
    whole = sound.render(player.segments, RATE, 0.0, 0, 2400)
    pieces = b"".join(sound.render(player.segments, RATE, 0.0, first, 240) for first in range(0, 2400, 240))
    assert pieces == whole
    assert sound.render(player.segments, RATE, 0.005, 0, 2400)[: -2 * 120] == whole[2 * 120 :]


@given(st.lists(st.integers(1, 700), min_size=1, max_size=30), st.floats(0, 3))
def test_pieces_that_follow_each_other_leave_no_sample_out(sizes: list[int], at: float):
    player, sound = Player(rate=RATE), ReceivedSound()
    first = 1
    for size in sizes:
        player.receive("R", "I", size, at)
        sound.receive("R", ramp(size, first))
        first += size
    out = samples(sound.render(player.segments, RATE, 0.0, 0, round(at * RATE) + sum(sizes)))
    assert out[round(at * RATE) :] == list(range(1, first))


def test_the_log_gives_each_response_its_own_bytes():
    def delta(response: str, size: int) -> LogEntry:
        return LogEntry("s2c", 0.0, {"type": "response.output_audio.delta", "response_id": response, "bytes": size})

    entries = [delta("R", 4), LogEntry("note", 0.0, {"type": "x"}), delta("S", 2), delta("R", 2)]
    sound = ReceivedSound.from_log(entries, ramp(4))
    assert samples(sound.of_response("R")) == [1, 2, 4]
    assert samples(sound.of_response("S")) == [3]


def test_sound_is_placed_by_the_log_where_the_client_played_it():
    origin, aside_s = 12_345.678901234, 20e-9
    log = EventLog()
    log.start_input_clock(origin)
    # Arrivals in the middle between two samples, and a little to either side.
    arrivals = [origin + (n + 0.5) / RATE + aside for n in range(0, 2400, 7) for aside in (-aside_s, aside_s)]
    for at in arrivals:
        log.received({}, at)
    for at, entry in zip(arrivals, log.entries(), strict=True):
        assert round(entry.t_s * RATE) == round((at - origin) * RATE)
