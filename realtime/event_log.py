"""What went over the wire and when: the raw record from which every figure of a client or benchmark is computed.

One log belongs to one connection. Times are kept on a monotonic clock and written on the *input clock*: seconds since
immediately before the first byte of input audio was handed to the transport (``benchmarks`` section 0.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.wav import read_wav, write_wav
from duologue.engine.requests import OUTPUT_SAMPLE_RATE

Direction = Literal["c2s", "s2c", "note"]
EVENTS_FILE = "events.jsonl"
AUDIO_FILE = "output.wav"


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event. ``note`` entries are the client's own doings that never crossed the wire."""

    dir: Direction
    t_s: float
    """Sent: when it was handed to the transport. Received: when the whole event had arrived."""
    event: dict[str, Any]
    """The event as JSON, with each audio payload replaced by ``bytes``, its decoded length."""
    due_s: float | None = None
    """When a paced chunk was due; ``t_s - due_s`` is its lag."""


class EventLog:
    """Collects the events of one connection; received audio is kept whole, in order of arrival, beside them."""

    def __init__(self) -> None:
        self.origin_s: float | None = None
        self.audio = bytearray()
        """Received output audio, PCM16 at 24 kHz, all responses in order of arrival."""
        self._entries: list[LogEntry] = []

    def sent(self, event: dict[str, Any], at: float, due: float | None = None) -> None:
        self._entries.append(LogEntry("c2s", at, event, due))

    def received(self, event: dict[str, Any], at: float, audio: bytes = b"") -> None:
        self.audio += audio
        self._entries.append(LogEntry("s2c", at, event))

    def note(self, event: dict[str, Any], at: float) -> None:
        self._entries.append(LogEntry("note", at, event))

    def start_input_clock(self, at: float) -> None:
        """Fix the zero of the input clock, once; later calls change nothing."""
        if self.origin_s is None:
            self.origin_s = at

    def entries(self) -> Iterator[LogEntry]:
        """All entries with times on the input clock, at the precision of the file (a nanosecond)."""
        origin = self.origin_s or 0.0

        def written(at: float) -> float:
            # Microseconds would put one sound in 160 or so a sample beside where the client played it.
            return round(at - origin, 9)

        for entry in self._entries:
            due = None if entry.due_s is None else written(entry.due_s)
            yield LogEntry(entry.dir, written(entry.t_s), entry.event, due)

    def save(self, folder: Path) -> None:
        """Write ``events.jsonl`` and ``output.wav`` into ``folder``, made if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        encoder = msgspec.json.Encoder()
        (folder / EVENTS_FILE).write_bytes(encoder.encode_lines(self.entries()))
        write_wav(folder / AUDIO_FILE, bytes(self.audio), OUTPUT_SAMPLE_RATE)


def load_entries(folder: Path) -> list[LogEntry]:
    """The entries that :meth:`EventLog.save` wrote."""
    return msgspec.json.Decoder(LogEntry).decode_lines((folder / EVENTS_FILE).read_bytes())


def load_audio(folder: Path) -> NDArray[np.float32]:
    """The received audio that :meth:`EventLog.save` wrote: float32 ``[samples]`` at 24 kHz."""
    audio, rate = read_wav(folder / AUDIO_FILE)
    if rate != OUTPUT_SAMPLE_RATE:
        raise ValueError(f"{folder / AUDIO_FILE}: expected {OUTPUT_SAMPLE_RATE} Hz, found {rate}")
    return audio


def without_media(event: Any) -> Any:
    """``event`` (parsed JSON) with every base64 ``audio`` payload replaced by ``bytes``, at any depth."""
    if isinstance(event, list):
        return [without_media(value) for value in event]
    if not isinstance(event, dict):
        return event
    stripped: dict[str, Any] = {}
    for key, value in event.items():
        if key == "audio" and isinstance(value, str):
            stripped["bytes"] = len(value) * 3 // 4 - value.count("=", -2)
        else:
            stripped[key] = without_media(value)
    return stripped
