"""The sound of a client's loudspeaker, from what it received and when it played it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from duologue.codecs.pcm import PCM16, SAMPLE_BYTES
from duologue.realtime.bench.playback import Segment
from duologue.realtime.client import AUDIO_DELTA
from duologue.realtime.event_log import LogEntry


class ReceivedSound:
    """The audio of each response as it came, whether it was played or not."""

    def __init__(self) -> None:
        self._pcm: dict[str, bytearray] = {}

    @classmethod
    def from_log(cls, entries: Iterable[LogEntry], audio: bytes) -> ReceivedSound:
        """From a connection's log and all of its received ``audio`` (PCM16), which lies in order of arrival."""
        sound = cls()
        position = 0
        for entry in entries:
            if entry.dir == "s2c" and entry.event.get("type") == AUDIO_DELTA:
                size = entry.event.get("bytes", 0)
                sound.receive(entry.event.get("response_id") or "", audio[position : position + size])
                position += size
        return sound

    def receive(self, response_id: str, pcm: bytes) -> None:
        self._pcm.setdefault(response_id, bytearray()).extend(pcm)

    def of_response(self, response_id: str) -> bytes:
        """PCM16 of everything received for a response."""
        return bytes(self._pcm.get(response_id, b""))

    def render(self, segments: Sequence[Segment], rate: int, origin_s: float, first: int, count: int) -> bytes:
        """PCM16 of samples ``[first, first + count)`` of the loudspeaker, ``origin_s`` being the time of sample 0.

        ``segments`` in order of time. Where nothing was played there is silence.
        """
        out = np.zeros(count, PCM16)
        ended_s, ended = -np.inf, 0
        for segment in segments:
            # What follows without a gap follows at the next sample, whatever rounding says.
            place = ended if abs(segment.start_s - ended_s) < 1e-6 else round((segment.start_s - origin_s) * rate)
            ended_s, ended = segment.end_s, place + segment.samples
            low, high = max(place, first), min(ended, first + count)
            if low >= high:
                continue
            offset = segment.offset + low - place
            pcm = self._pcm.get(segment.response_id, b"")
            piece = pcm[offset * SAMPLE_BYTES : (offset + high - low) * SAMPLE_BYTES]
            out[low - first : low - first + len(piece) // SAMPLE_BYTES] = np.frombuffer(bytes(piece), PCM16)
        return out.tobytes()
