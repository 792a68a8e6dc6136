from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from duologue.codecs import g711
from duologue.codecs.wav import WavError, WavWriter, read_wav, write_wav

PCM = np.array([0, 1, -1, 16384, -32768, 32767], "<i2")


def riff(tag: int, channels: int, bits: int, payload: bytes, *, extra: bytes = b"", before: bytes = b"") -> bytes:
    width = channels * bits // 8
    format_ = struct.pack("<HHIIHH", tag, channels, 16000, 16000 * width, width, bits) + extra
    chunks = before + b"fmt " + struct.pack("<I", len(format_)) + format_ + b"data" + struct.pack("<I", len(payload))
    return b"RIFF" + struct.pack("<I", 4 + len(chunks) + len(payload)) + b"WAVE" + chunks + payload


def test_what_is_written_is_read_by_the_standard_library(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", PCM.tobytes(), 24000)
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24000)
        assert file.getnframes() == len(PCM)
        assert file.readframes(99) == PCM.tobytes()


def test_round_trip(tmp_path: Path) -> None:
    with WavWriter(tmp_path / "a.wav", 8000) as writer:
        writer.write(PCM[:2].tobytes())
        writer.write(PCM[2:].tobytes())
    samples, rate = read_wav(tmp_path / "a.wav")
    assert rate == 8000
    assert samples.dtype == np.float32
    assert (samples * 32768).tolist() == PCM.tolist()


def test_a_file_still_being_written_can_be_read(tmp_path: Path) -> None:
    writer = WavWriter(tmp_path / "a.wav", 8000)
    pcm = np.zeros(100_000, "<i2").tobytes()
    writer.write(pcm)
    samples, _ = read_wav(tmp_path / "a.wav")
    writer.close()
    writer.close()
    assert 0 < len(samples) <= 100_000
    assert len(read_wav(tmp_path / "a.wav")[0]) == 100_000


VALUES = np.array([0.0, 0.5, -0.5, -1.0])


@pytest.mark.parametrize(
    ("tag", "bits", "payload"),
    [
        (1, 8, (VALUES * 128 + 128).astype(np.uint8).tobytes()),
        (1, 16, (VALUES * 2**15).astype("<i2").tobytes()),
        (1, 24, b"".join(int(v * 2**23).to_bytes(3, "little", signed=True) for v in VALUES)),
        (1, 32, (VALUES * 2**31).astype("<i4").tobytes()),
        (3, 32, VALUES.astype("<f4").tobytes()),
        (3, 64, VALUES.astype("<f8").tobytes()),
    ],
)
def test_sample_formats(tmp_path: Path, tag: int, bits: int, payload: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(riff(tag, 1, bits, payload))
    samples, rate = read_wav(tmp_path / "a.wav")
    assert rate == 16000
    assert samples.tolist() == VALUES.tolist()


@pytest.mark.parametrize(("tag", "decode"), [(6, g711.decode_alaw), (7, g711.decode_ulaw)])
def test_telephone_formats(tmp_path: Path, tag: int, decode) -> None:
    (tmp_path / "a.wav").write_bytes(riff(tag, 1, 8, bytes(range(256))))
    samples, _ = read_wav(tmp_path / "a.wav")
    assert (samples * 32768).astype("<i2").tobytes() == decode(bytes(range(256)))


def test_channels_are_averaged_and_other_chunks_skipped(tmp_path: Path) -> None:
    stereo = np.array([[8192, 16384], [-8192, 8192]], "<i2").tobytes()
    data = riff(1, 2, 16, stereo, before=b"LIST" + struct.pack("<I", 3) + b"odd\0")
    (tmp_path / "a.wav").write_bytes(data)
    assert read_wav(tmp_path / "a.wav")[0].tolist() == [0.375, 0.0]


def test_the_extensible_format_names_its_own(tmp_path: Path) -> None:
    guid = struct.pack("<HHIH", 22, 16, 4, 1) + bytes.fromhex("000000001000800000aa00389b71")
    (tmp_path / "a.wav").write_bytes(riff(0xFFFE, 1, 16, PCM.tobytes(), extra=guid))
    assert (read_wav(tmp_path / "a.wav")[0] * 32768).tolist() == PCM.tolist()


def test_a_file_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(riff(1, 1, 16, PCM.tobytes())[:-3])
    assert (read_wav(tmp_path / "a.wav")[0] * 32768).tolist() == PCM[:-2].tolist()
    (tmp_path / "b.wav").write_bytes(riff(1, 2, 16, np.full(4, 8192, "<i2").tobytes())[:-2])
    assert read_wav(tmp_path / "b.wav")[0].tolist() == [0.25]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"OggS" + bytes(40), "not a RIFF WAVE file"),
        (b"", "not a RIFF WAVE file"),
        (riff(1, 1, 16, b"")[:36], "no data chunk"),
        (riff(2, 1, 4, b"1234"), "sample format 2 of 4 bits is not supported"),
        (riff(1, 0, 16, b"1234"), "0 channels"),
    ],
)
def test_other_files_are_refused_by_name_and_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "a.wav").write_bytes(data)
    with pytest.raises(WavError, match=rf"a\.wav: .*{reason}"):
        read_wav(tmp_path / "a.wav")


def test_half_a_sample_is_refused(tmp_path: Path) -> None:
    with WavWriter(tmp_path / "a.wav", 8000) as writer, pytest.raises(ValueError, match="3 bytes are not a whole"):
        writer.write(b"abc")
