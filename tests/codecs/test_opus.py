"""Opus over libopus: what is lost is hidden, silence is cheap, errors name what was wrong."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from missing import need_libopus

from duologue.codecs import opus
from duologue.codecs.opus import DTX_BYTES, OpusDecoder, OpusEncoder, OpusError, carries_correction, packet_samples
from duologue.codecs.pcm import PCM16

need_libopus()

FRAME = 480


def voice_like(seconds: float, rate: int = 24_000) -> np.ndarray:
    """A tone of 150 Hz with overtones, slowly swelling: SILK takes it for speech."""
    time = np.arange(int(seconds * rate)) / rate
    tone = sum(np.sin(2 * np.pi * 150 * n * time) / n for n in range(1, 12))
    return (tone * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time)) * 6000).astype(PCM16)


def packets_of(samples: np.ndarray, **settings: object) -> list[bytes]:
    encoder = OpusEncoder(24_000, **settings)  # type: ignore[arg-type]
    return [encoder.encode(samples[at : at + FRAME].tobytes()) for at in range(0, len(samples) - FRAME + 1, FRAME)]


def decoded(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, PCM16).astype(np.float64)


def steepest(samples: np.ndarray) -> float:
    return float(np.abs(np.diff(samples)).max())


@pytest.mark.parametrize("rate", opus.RATES)
def test_a_packet_decodes_to_any_rate_and_says_how_long_it_is(rate: int) -> None:
    packets = packets_of(voice_like(0.4))
    decoder = OpusDecoder(rate)  # type: ignore[arg-type]
    for packet in packets:
        assert len(decoder.decode(packet)) == 2 * packet_samples(packet, rate) == 2 * rate // 50


def test_what_was_encoded_is_heard_again() -> None:
    samples = voice_like(1.0)
    decoder = OpusDecoder(24_000)
    heard = np.concatenate([decoded(decoder.decode(packet)) for packet in packets_of(samples, bitrate=96_000)])
    best = max(
        np.corrcoef(samples[4800 : 4800 + 9600], heard[4800 + lag : 4800 + lag + 9600])[0, 1] for lag in range(400)
    )
    assert best > 0.85


def test_FC_156_a_lost_packet_is_recovered_from_the_next_one() -> None:
    samples = voice_like(1.0)
    packets = packets_of(samples, expected_loss=20)
    assert sum(map(carries_correction, packets)) > len(packets) // 2
    lost = next(n for n in range(20, len(packets)) if carries_correction(packets[n + 1]))
    whole, recovering, guessing = OpusDecoder(), OpusDecoder(), OpusDecoder()
    for packet in packets[:lost]:
        whole.decode(packet), recovering.decode(packet), guessing.decode(packet)
    truth = decoded(whole.decode(packets[lost]))
    recovered = decoded(recovering.recover(packets[lost + 1], FRAME))
    guessed = decoded(guessing.conceal(FRAME))
    assert np.abs(recovered - truth).mean() < 0.6 * np.abs(truth).mean()
    assert len(guessed) == len(recovered) == FRAME
    after = decoded(recovering.decode(packets[lost + 1]))
    joined = np.concatenate([recovered, after])
    assert steepest(joined) <= 1.5 * steepest(decoded(whole.decode(packets[lost + 1])))


def test_FC_156_without_a_copy_recovery_is_concealment() -> None:
    packets = packets_of(voice_like(0.6), correction=False)
    assert not any(map(carries_correction, packets))
    one, other = OpusDecoder(), OpusDecoder()
    for packet in packets[:20]:
        one.decode(packet), other.decode(packet)
    assert one.recover(packets[21], FRAME) == other.conceal(FRAME)


def test_a_long_loss_sinks_into_noise_without_a_click() -> None:
    decoder = OpusDecoder()
    loud = [decoded(decoder.decode(packet)) for packet in packets_of(voice_like(0.6))][-1]
    guesses = [decoded(decoder.conceal(FRAME)) for _ in range(20)]
    assert np.abs(guesses[0]).mean() > 0.3 * np.abs(loud).mean()
    assert np.abs(guesses[-1]).mean() < 0.25 * np.abs(loud).mean()
    assert steepest(np.concatenate([loud, *guesses])) <= 1.5 * steepest(loud)


def test_what_would_be_guessed_can_be_known_without_guessing() -> None:
    packets = packets_of(voice_like(1.0))
    asked, plain = OpusDecoder(24_000), OpusDecoder(24_000)
    for packet in packets[:20]:
        asked.decode(packet)
        plain.decode(packet)
        asked.foresee(FRAME)
    assert asked.decode(packets[20]) == plain.decode(packets[20])
    foreseen = asked.foresee(FRAME)
    assert foreseen == asked.conceal(FRAME) == plain.conceal(FRAME)


def test_silence_gives_packets_that_need_not_be_sent() -> None:
    silence = np.zeros(24_000, PCM16)
    assert sum(len(packet) <= DTX_BYTES for packet in packets_of(silence)) > 30
    assert not any(len(packet) <= DTX_BYTES for packet in packets_of(silence, silence_gaps=False))


def test_bitrate_and_expected_loss_take_effect_at_once() -> None:
    samples = voice_like(1.0)
    few, many = (sum(map(len, packets_of(samples, bitrate=bitrate))) for bitrate in (12_000, 48_000))
    assert few * 2 < many
    encoder = OpusEncoder()
    quiet = [encoder.encode(samples[at : at + FRAME].tobytes()) for at in range(0, 9600, FRAME)]
    encoder.set_expected_loss(25)
    lossy = [encoder.encode(samples[at : at + FRAME].tobytes()) for at in range(9600, 19200, FRAME)]
    assert not any(map(carries_correction, quiet))
    assert any(map(carries_correction, lossy))


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"bitrate": 0}, "bitrate"), ({"complexity": 11}, "complexity"), ({"expected_loss": 101}, "expected_loss")],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, int], name: str) -> None:
    with pytest.raises(OpusError, match=name):
        OpusEncoder(24_000, **settings)  # type: ignore[arg-type]


def test_a_wrong_rate_or_length_is_refused() -> None:
    with pytest.raises(OpusError, match="bad argument"):
        OpusDecoder(44_100)  # type: ignore[arg-type]
    with pytest.raises(OpusError, match="bad argument"):
        OpusEncoder(44_100)  # type: ignore[arg-type]
    with pytest.raises(OpusError, match="100 bytes"):
        OpusEncoder().encode(bytes(100))
    with pytest.raises(OpusError, match="empty"):
        OpusDecoder().decode(b"")


@given(st.binary(min_size=1, max_size=200))
def test_no_packet_of_a_stranger_breaks_the_decoder(packet: bytes) -> None:
    decoder = OpusDecoder()
    try:
        length = packet_samples(packet, 24_000)
        pcm = decoder.decode(packet)
    except OpusError:
        pass
    else:
        assert len(pcm) == 2 * length
    carries_correction(packet)
    assert len(decoder.decode(packets_of(voice_like(0.02))[0])) == 2 * FRAME


def test_without_libopus_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(opus.ctypes, "PyDLL", refuse)
    monkeypatch.setattr(opus.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(opus.OpusMissingError, match="libopus is not installed") as raised:
        opus._load()
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
def test_codecs_are_freed() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(50):
        OpusEncoder(), OpusDecoder()
    before = resident()
    for _ in range(400):
        OpusEncoder(), OpusDecoder()
    assert resident() - before < 8_000_000
