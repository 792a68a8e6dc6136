"""Sample rate conversion of mono float32 streams; the state is kept, so chunked output equals one-shot output.

Two kinds of filter, chosen by ``quality``:

- ``"QQ"``, ``"LQ"``, ``"MQ"``, ``"HQ"``, ``"VHQ"``: libsoxr's. Best passband and the fewest operations, but libsoxr
  filters in blocks, so output comes in bursts.
- ``"LOW_DELAY"`` (:data:`VOICE_ACTIVITY_QUALITY`): a short windowed-sinc filter of ours that gives every output sample
  as soon as its last input sample has come: for what must know *now* whether somebody speaks, and for G.711 output.

Most milliseconds of input that must have been pushed beyond an output sample's own position before that sample is
returned (measured with chunks of 1 ms, soxr 1.1.0):

========== ====== ====== ====== ====== ====== =========
rates      QQ     LQ     MQ     HQ     VHQ    LOW_DELAY
========== ====== ====== ====== ====== ====== =========
24 to 16   1.1    21.0   38.6   37.6   78.0   3.0
8 to 16    1.2    62.2   119.0  116.8  112.2  5.0
24 to 8    1.0    41.0   76.2   74.1   155.0  5.0
48 to 16   1.0    21.0   38.6   37.6   78.0   3.0
========== ====== ====== ====== ====== ====== =========

(kHz; the last millisecond is the chunk's.) ``QQ`` has no filter against aliasing at all: fricatives above 8 kHz would
be folded down onto speech, which is why it is not the one for voice activity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, Protocol

import numpy as np
import soxr
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from duologue.codecs.pcm import PCM16, SAMPLE_BYTES

SoxrQuality = Literal["QQ", "LQ", "MQ", "HQ", "VHQ"]
Quality = Literal["QQ", "LQ", "MQ", "HQ", "VHQ", "LOW_DELAY"]

VOICE_ACTIVITY_QUALITY: Final = "LOW_DELAY"
"""Quality for streams on which the end of speech is waited for: adds 2 to 4 ms where libsoxr's adds up to 117 ms.

Silero's decisions at 0.5 on twelve recordings (1,548 frames, 24 to 16 kHz) are the same as with ``"HQ"``.
"""

_ZERO_CROSSINGS: Final = 32
"""Half the length of the low-delay filter in samples of the lower of the two rates: 2 ms at 16 kHz, 4 ms at 8 kHz."""

_STOPBAND_DB: Final = 72.0

_BLOCK_GROUPS: Final = 16
"""Periods of the two rates in one block of :class:`FrameResampler`."""


class _Filter(Protocol):
    def process(self, samples: NDArray[np.float32], last: bool) -> NDArray[np.float32]: ...


class StreamResampler:
    """Converts one mono stream from ``rate_in`` to ``rate_out`` hertz, piece by piece.

    The state lasts as long as the object; another pair of rates is another object. After ``last`` the next call
    starts a new stream. ``n`` input samples give ``round(n * rate_out / rate_in)`` output samples by then, ties up.
    """

    def __init__(self, rate_in: int, rate_out: int, quality: Quality = "HQ") -> None:
        if rate_in <= 0 or rate_out <= 0:
            raise ValueError(f"sample rates must be positive, not {rate_in} and {rate_out}")
        self.rate_in: Final = rate_in
        self.rate_out: Final = rate_out
        self._filter: _Filter
        if rate_in == rate_out:
            self._filter = _Identity()
        elif quality == "LOW_DELAY":
            self._filter = _LowDelayFilter(rate_in, rate_out)
        else:
            self._filter = _SoxrFilter(rate_in, rate_out, quality)

    def process(self, samples: NDArray[np.float32], last: bool = False) -> NDArray[np.float32]:
        """Output samples ``[m]`` that are ready after input ``samples`` ``[n]``; with ``last``, all that is left.

        Output sample ``k`` lies at the time of input sample ``k * rate_in / rate_out``: the stream is not shifted.
        """
        if samples.ndim != 1:
            raise ValueError(f"samples: one dimension expected, shape is {samples.shape}")
        return self._filter.process(np.ascontiguousarray(samples, np.float32), last)


def resample(samples: NDArray[np.float32], rate_in: int, rate_out: int, quality: Quality = "HQ") -> NDArray[np.float32]:
    """All of mono ``samples`` ``[n]`` converted at once: float32 ``[round(n * rate_out / rate_in)]``."""
    return StreamResampler(rate_in, rate_out, quality).process(samples, last=True)


class _Identity:
    def process(self, samples: NDArray[np.float32], last: bool) -> NDArray[np.float32]:
        return samples


class _SoxrFilter:
    """libsoxr's stream."""

    def __init__(self, rate_in: int, rate_out: int, quality: SoxrQuality) -> None:
        self._stream = soxr.ResampleStream(rate_in, rate_out, 1, dtype="float32", quality=quality)

    def process(self, samples: NDArray[np.float32], last: bool) -> NDArray[np.float32]:
        converted: NDArray[np.float32] = self._stream.resample_chunk(samples, last=last)
        if last:
            self._stream.clear()
        return converted


class _LowDelayFilter:
    """Polyphase windowed-sinc filter; needs ``reach`` input samples on either side of an output sample and no more."""

    def __init__(self, rate_in: int, rate_out: int) -> None:
        divisor = math.gcd(rate_in, rate_out)
        self._up, self._down = rate_out // divisor, rate_in // divisor
        self._bank = _polyphase_bank(self._up, self._down)
        self._reach = self._bank.shape[1] // 2
        self._start()

    def _start(self) -> None:
        # One sample less than reach: a window covers (position - reach, position + reach].
        self._history = np.zeros(self._reach - 1, np.float32)
        self._history_start = 1 - self._reach
        self._taken = 0
        self._given = 0

    def process(self, samples: NDArray[np.float32], last: bool) -> NDArray[np.float32]:
        self._taken += len(samples)
        if last:
            end = (2 * self._taken * self._up + self._down) // (2 * self._down)
            buffered = np.concatenate((self._history, samples, np.zeros(self._reach, np.float32)))
        else:
            end = max(self._given, -((self._reach - self._taken) * self._up // self._down))
            buffered = np.concatenate((self._history, samples))
        output = self._convolve(buffered, end)
        if last:
            self._start()
            return output
        self._given = end
        needed = end * self._down // self._up - self._reach + 1 - self._history_start
        self._history = buffered[needed:].copy()
        self._history_start += needed
        return output

    def _convolve(self, buffered: NDArray[np.float32], end: int) -> NDArray[np.float32]:
        """Output samples from the last one given to ``end``; ``buffered`` begins at input ``_history_start``."""
        output = np.empty(end - self._given, np.float32)
        if not len(output):
            return output
        windows = sliding_window_view(buffered, self._bank.shape[1])
        for phase in range(min(self._up, len(output))):
            # Outputs ``up`` apart use the same row of the bank, on windows ``down`` apart: views, nothing is copied.
            position = (self._given + phase) * self._down
            rows = windows[position // self._up - self._reach + 1 - self._history_start :: self._down]
            count = len(range(phase, len(output), self._up))
            # einsum adds up each row by itself, so a sample does not depend on which others are made with it.
            output[phase :: self._up] = np.einsum("ij,j->i", rows[:count], self._bank[position % self._up])
        return output


class FrameResampler:
    """The low-delay filter for frames of fixed length, of many streams in one pass. Keeps no state.

    Frame ``n`` of a stream is made from its PCM16 samples ``[n * step - lead, n * step - lead + window)``; what lies
    before the stream's first sample is zero. So it does not depend on how the stream came in pieces, nor on the other
    streams of the pass. Raises ``ValueError`` for a frame that is not a whole number of input samples.
    """

    def __init__(self, rate_in: int, rate_out: int, frame: int) -> None:
        divisor = math.gcd(rate_in, rate_out)
        up, down = rate_out // divisor, rate_in // divisor
        if frame % up:
            raise ValueError(f"{frame} samples at {rate_out} Hz are not a whole number of samples at {rate_in} Hz")
        bank = _polyphase_bank(up, down)
        taps = bank.shape[1]
        self.step: Final = frame // up * down
        """Input samples from one frame to the next."""
        self.lead: Final = taps // 2 - 1
        """Samples that a frame needs before its own."""
        self._frame: Final = frame
        self.window: Final = (frame - 1) * down // up + taps
        groups = math.gcd(frame // up, _BLOCK_GROUPS)
        self._blocks = frame // up // groups
        self._block_step = groups * down
        # One block of outputs is one row of samples times this matrix: the bank's rows, each at its own offset.
        self._matrix = np.zeros(((groups * up - 1) * down // up + taps, groups * up), np.float32)
        for output in range(groups * up):
            first, phase = divmod(output * down, up)
            self._matrix[first : first + taps, output] = bank[phase]
        self._matrix /= 32768

    def convert(self, windows: Sequence[bytes], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Float32 ``[frames, frame]`` of as many PCM16 ``windows`` of :attr:`window` samples; written into ``out``, an
        array of that shape whose rows are contiguous, if there is one."""
        if out is None:
            out = np.empty((len(windows), self._frame), np.float32)
        shape = (len(windows), self._blocks, len(self._matrix))
        strides = (self.window * SAMPLE_BYTES, self._block_step * SAMPLE_BYTES, SAMPLE_BYTES)
        # A view, in which the blocks overlap; as_strided takes longer to make one.
        blocks = np.ndarray(shape, PCM16, b"".join(windows), strides=strides).astype(np.float32, order="C")
        # A product for each frame: small enough to stay on one thread, and the same whatever else is in the pass.
        np.matmul(blocks, self._matrix, out=out.reshape(len(windows), self._blocks, -1))
        return out


@lru_cache(maxsize=16)
def _polyphase_bank(up: int, down: int) -> NDArray[np.float32]:
    """Filter for each of the ``up`` positions between two input samples: ``[up, 2 * reach]``, each adding up to 1.

    Kaiser-windowed sinc (Oppenheim & Schafer, Discrete-Time Signal Processing, section 7.5): stopband from half the
    lower rate on, 72 dB down; passband to 0.43 of the lower rate (6.9 kHz at 16 kHz, 3.4 kHz at 8 kHz).
    """
    lower = min(1.0, up / down)
    reach = math.ceil(_ZERO_CROSSINGS / lower)
    transition = (_STOPBAND_DB - 8) / (2.285 * 2 * reach) / (2 * np.pi)
    cutoff = lower / 2 - transition / 2
    offset = np.arange(up)[:, None] / up - np.arange(1 - reach, reach + 1)[None, :]
    beta = 0.1102 * (_STOPBAND_DB - 8.7)
    window = np.i0(beta * np.sqrt(np.maximum(0.0, 1 - (offset / reach) ** 2))) / np.i0(beta)
    bank = np.sinc(2 * cutoff * offset) * window
    bank /= bank.sum(axis=1, keepdims=True)
    return bank.astype(np.float32)
