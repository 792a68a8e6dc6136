"""Pieces of the jitter buffer to PCM without a break: what is lost is recovered or guessed, silence has soft edges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from duologue.codecs.opus import OpusDecoder, OpusError, OpusRate, carries_correction, packet_samples
from duologue.codecs.pcm import SAMPLE_BYTES
from duologue.codecs.ramps import cross_fade, fade_in, fade_out
from duologue.realtime.webrtc.jitter import FRAME_TICKS, RTP_RATE, Lost, Piece, Received

MOST_GUESSED_S: Final = 0.100
"""Longest that missing sound is guessed: libopus goes on for ever, with noise as loud as what was heard before."""
_EDGE_S: Final = 0.005


class StreamDecoder:
    """One stream of :class:`~duologue.realtime.webrtc.jitter.Piece` to mono PCM16 at ``rate``."""

    def __init__(self, rate: OpusRate = 24_000) -> None:
        self.rate: Final = rate
        self.recovered = 0
        """Lost packets that the next one brought a copy of, or that were guessed with it at hand."""
        self.corrupted = 0
        self._decoder = OpusDecoder(rate)
        self._frame = rate // 50
        self._edge = int(rate * _EDGE_S)
        self._most_guessed = int(rate * MOST_GUESSED_S)
        self._guessed = self._most_guessed
        """Samples since the last packet; at the most of them the stream is silent, as it is before its first packet."""
        self._guessing = False
        """Whether what was heard last did not come as it was sent."""

    def decode(self, pieces: Iterable[Piece]) -> bytes:
        """PCM16 of ``pieces``, exactly as long as they are."""
        return b"".join(map(self._decode, pieces))

    def _decode(self, piece: Piece) -> bytes:
        if isinstance(piece, Received):
            return self._packet(piece.payload)
        samples = piece.ticks * self.rate // RTP_RATE
        following = piece.following if isinstance(piece, Lost) else None
        if following is None:
            return self._missing(samples)
        # Only the last frame can be in the packet that follows.
        last = min(samples, packet_samples(following, self.rate))
        guessed = self._missing(samples - last) if samples > last else b""
        self.recovered += 1
        try:
            return guessed + self._sound(following, last)
        except OpusError:
            return guessed + self._missing(last)

    def _packet(self, packet: bytes) -> bytes:
        try:
            return self._sound(packet)
        except OpusError:
            self.corrupted += 1
            return self._missing(packet_samples(packet, self.rate))

    def _sound(self, packet: bytes, lost: int = 0) -> bytes:
        """Sound of the stream itself: of ``packet``, or of the ``lost`` samples before it.

        It rises from silence, and what was guessed before it passes over into it: the guess has drifted off by then,
        and libopus joins the two with a step.
        """
        silent = self._guessed >= self._most_guessed
        guess = self._decoder.foresee(self._edge) if self._guessing and not silent else b""
        pcm = self._decoder.recover(packet, lost) if lost else self._decoder.decode(packet)
        self._guessed, self._guessing = 0, lost > 0 and not carries_correction(packet)
        return fade_in(pcm, self._edge) if silent else cross_fade(guess, pcm, self._edge)

    def _missing(self, samples: int) -> bytes:
        """Guess so long as guessing makes sense, then be silent."""
        guesses: list[bytes] = []
        left = min(samples, self._most_guessed - self._guessed)
        while left > 0:
            # libopus guesses in steps of 2.5 ms.
            step = min(left, self._frame)
            step -= step % (self.rate // 400)
            if not step:
                break
            guesses.append(self._decoder.conceal(step))
            self._guessing = True
            self._guessed += step
            left -= step
        if guesses and self._most_guessed - self._guessed < self.rate // 400:
            guesses[-1] = fade_out(guesses[-1], 2 * self._edge)
            self._guessed = self._most_guessed
        pcm = b"".join(guesses)
        return pcm.ljust(samples * SAMPLE_BYTES, b"\0")


def packet_ticks(packet: bytes) -> int:
    """How long a packet's sound is, at :data:`~duologue.realtime.webrtc.jitter.RTP_RATE`.

    Raises :class:`~duologue.codecs.opus.OpusError` for something that is no Opus packet.
    """
    if packet[0] & 3 == 0 and packet[0] >> 3 in _TWENTY_MS:
        return FRAME_TICKS
    return packet_samples(packet, RTP_RATE)


_TWENTY_MS: Final = frozenset({1, 5, 9, 13, 15, 19, 23, 27, 31})
"""Configurations of RFC 6716, table 2, whose frames are 20 ms long."""
