"""Opus (RFC 6716) over the system's libopus: mono PCM16 at any of libopus's rates, with loss hidden.

Why not PyAV: FFmpeg's decoder takes no flag for in-band error correction and flushes itself on an empty packet, so that
neither correction nor concealment can be reached through it. Why not a binding from PyPI: they copy sample by sample or
release the interpreter's lock around calls of some ten microseconds, after which a busy thread may keep it for 5 ms.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from functools import lru_cache
from typing import Any, Final, Literal

from duologue.codecs.pcm import SAMPLE_BYTES

OpusRate = Literal[8000, 12000, 16000, 24000, 48000]
Application = Literal["voip", "audio", "restricted_lowdelay"]
Signal = Literal["auto", "voice", "music"]

RATES: Final = (8000, 12000, 16000, 24000, 48000)
MAX_PACKET_BYTES: Final = 1275
"""Longest Opus frame (RFC 6716, section 3.2.1): room for any packet that the encoder below makes."""
MAX_PACKET_MS: Final = 120
DTX_BYTES: Final = 2
"""A packet of at most so many bytes says "silence goes on"; of a row of them only the first need be sent."""

_APPLICATIONS: Final[dict[str, int]] = {"voip": 2048, "audio": 2049, "restricted_lowdelay": 2051}
_SET_BITRATE: Final = 4002
_SET_COMPLEXITY: Final = 4010
_SET_INBAND_FEC: Final = 4012
_SET_EXPECTED_LOSS: Final = 4014
_SET_DTX: Final = 4016
_SET_SIGNAL: Final = 4024
_RESET: Final = 4028
_SIGNALS: Final[dict[str, int]] = {"auto": -1000, "voice": 3001, "music": 3002}
_ERRORS: Final = {-1: "bad argument", -2: "buffer too small", -3: "internal error", -4: "corrupted packet"}


class OpusError(ValueError):
    """libopus refused: a corrupted packet or a setting out of range. The codec's state is as it was."""


class OpusMissingError(ImportError):
    """libopus is not on this machine. The message says what to install."""


@lru_cache(maxsize=1)
def _library() -> Any:
    """libopus, functions declared. Raises :class:`OpusMissingError`."""
    library = _load()
    pointer, int32 = ctypes.c_void_p, ctypes.c_int32
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "opus_get_version_string": (ctypes.c_char_p, []),
        "opus_packet_get_nb_samples": (ctypes.c_int, [ctypes.c_char_p, int32, int32]),
        "opus_decoder_get_size": (ctypes.c_int, [ctypes.c_int]),
        "opus_decoder_create": (pointer, [int32, ctypes.c_int, ctypes.POINTER(ctypes.c_int)]),
        "opus_decoder_destroy": (None, [pointer]),
        "opus_decoder_ctl": (ctypes.c_int, [pointer, ctypes.c_int]),
        "opus_decode": (ctypes.c_int, [pointer, ctypes.c_char_p, int32, pointer, ctypes.c_int, ctypes.c_int]),
        "opus_encoder_create": (pointer, [int32, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int)]),
        "opus_encoder_destroy": (None, [pointer]),
        # Fewer types than arguments: the rest is variadic, which some machines pass in another way.
        "opus_encoder_ctl": (ctypes.c_int, [pointer, ctypes.c_int]),
        "opus_encode": (int32, [pointer, ctypes.c_char_p, ctypes.c_int, pointer, int32]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _load() -> ctypes.PyDLL:
    # PyDLL keeps the interpreter's lock: a call takes less time than getting the lock back from a busy thread would.
    names = ["libopus.0.dylib", "/opt/homebrew/lib/libopus.0.dylib"] if sys.platform == "darwin" else ["libopus.so.0"]
    for name in names:
        try:
            return ctypes.PyDLL(name)
        except OSError:
            continue
    found = ctypes.util.find_library("opus")
    if found is None:
        how = "brew install opus" if sys.platform == "darwin" else "apt install libopus0, or your system's own package"
        raise OpusMissingError(f"libopus is not installed, and calls need it: {how}.")
    return ctypes.PyDLL(found)


def libopus_version() -> str:
    """What libopus calls itself. Raises :class:`OpusMissingError`."""
    return str(_library().opus_get_version_string().decode())


def packet_samples(packet: bytes, rate: int) -> int:
    """Samples at ``rate`` hertz that a packet decodes to. Raises :class:`OpusError` for one that is no Opus packet."""
    return _checked(_library().opus_packet_get_nb_samples(packet, len(packet), rate))


def carries_correction(packet: bytes) -> bool:
    """Whether a packet of one frame brings a second, coarser copy of the frame before it (RFC 6716, section 4.2.4)."""
    if len(packet) <= DTX_BYTES:
        return False
    configuration, stereo, code = packet[0] >> 3, packet[0] >> 2 & 1, packet[0] & 3
    if configuration >= 16 or code:
        return False
    silk_frames = (1, 1, 2, 3)[configuration & 3] if configuration < 12 else 1
    mid = packet[1] >> (7 - silk_frames) & 1
    side = packet[1] >> (6 - 2 * silk_frames) & 1 if stereo else 0
    return bool(mid or side)


class OpusDecoder:
    """One mono stream of packets to PCM16 at ``rate``. libopus filters inside: no resampler is needed after it."""

    def __init__(self, rate: OpusRate = 24_000) -> None:
        """Raises :class:`OpusError` for another rate than those of libopus, :class:`OpusMissingError` without it."""
        self._destroy = _library().opus_decoder_destroy
        self._state: int | None = None
        self._spare: OpusDecoder | None = None
        self.rate: Final = rate
        self._most = rate * MAX_PACKET_MS // 1000
        self._pcm = ctypes.create_string_buffer(self._most * SAMPLE_BYTES)
        self._address = ctypes.addressof(self._pcm)
        self._decode = _library().opus_decode
        error = ctypes.c_int()
        self._state = _library().opus_decoder_create(rate, 1, ctypes.byref(error))
        _checked(error.value)

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._destroy(self._state)

    def decode(self, packet: bytes) -> bytes:
        """PCM16 of the next packet. Raises :class:`OpusError` for a corrupted one."""
        if not packet:
            raise OpusError("opus: an empty packet")
        return self._run(packet, self._most, 0)

    def recover(self, following: bytes, samples: int) -> bytes:
        """PCM16 of the last ``samples`` samples before packet ``following``, which were lost.

        From the copy in ``following`` where :func:`carries_correction` says that there is one, else a guess from what
        was heard before. Then ``following`` itself goes to :meth:`decode`.
        """
        return self._run(following, samples, 1)

    def conceal(self, samples: int) -> bytes:
        """A guess for ``samples`` lost samples, sinking into noise as it goes on. A multiple of 2.5 ms, at most 120."""
        return self._run(None, samples, 0)

    def foresee(self, samples: int) -> bytes:
        """What :meth:`conceal` would say next; the decoder goes on as if it had not been asked."""
        if self._spare is None:
            self._spare = OpusDecoder(self.rate)
        assert self._state is not None
        assert self._spare._state is not None
        # libopus: the state is one piece of memory, and a shallow copy of it is a copy.
        ctypes.memmove(self._spare._state, self._state, _library().opus_decoder_get_size(1))
        return self._spare.conceal(samples)

    def reset(self) -> None:
        """Forget what was heard: another stream begins."""
        _checked(_library().opus_decoder_ctl(self._state, _RESET))

    def _run(self, packet: bytes | None, samples: int, correction: int) -> bytes:
        length = 0 if packet is None else len(packet)
        count = _checked(self._decode(self._state, packet, length, self._address, samples, correction))
        return ctypes.string_at(self._address, count * SAMPLE_BYTES)


class OpusEncoder:
    """One mono stream of PCM16 at ``rate`` to packets, of 2.5, 5, 10, 20, 40 or 60 ms each."""

    def __init__(
        self,
        rate: OpusRate = 24_000,
        *,
        application: Application = "voip",
        bitrate: int = 32_000,
        complexity: int = 5,
        expected_loss: int = 0,
        correction: bool = True,
        silence_gaps: bool = True,
    ) -> None:
        """``bitrate`` in bit/s (the nearest it can do), ``complexity`` 0 to 10, ``expected_loss`` in percent.

        ``correction``: each packet may carry a coarse copy of the one before, at the cost of some of the bitrate; the
        encoder does it once ``expected_loss`` is above 0. ``silence_gaps`` (DTX): silence gives packets of at most
        :data:`DTX_BYTES` bytes. Raises :class:`OpusError` for a setting out of range.
        """
        self._destroy = _library().opus_encoder_destroy
        self._state: int | None = None
        self.rate: Final = rate
        self._packet = ctypes.create_string_buffer(MAX_PACKET_BYTES)
        self._address = ctypes.addressof(self._packet)
        self._encode = _library().opus_encode
        error = ctypes.c_int()
        self._state = _library().opus_encoder_create(rate, 1, _APPLICATIONS[application], ctypes.byref(error))
        _checked(error.value)
        self.set_bitrate(bitrate)
        self._set(_SET_COMPLEXITY, "complexity", complexity)
        self._set(_SET_INBAND_FEC, "correction", int(correction))
        self.set_silence_gaps(silence_gaps)
        self.set_expected_loss(expected_loss)

    def __del__(self) -> None:
        if getattr(self, "_state", None):
            self._destroy(self._state)

    def encode(self, pcm: bytes) -> bytes:
        """The packet of one frame. Raises :class:`OpusError` for a length that no frame has."""
        count = self._encode(self._state, pcm, len(pcm) // SAMPLE_BYTES, self._address, MAX_PACKET_BYTES)
        if count < 0:
            raise OpusError(f"opus: a frame of {len(pcm)} bytes at {self.rate} Hz: {_ERRORS.get(count, count)}")
        return ctypes.string_at(self._address, count)

    def set_bitrate(self, bitrate: int) -> None:
        """Bits per second from the next frame on."""
        self._set(_SET_BITRATE, "bitrate", bitrate)

    def set_expected_loss(self, percent: int) -> None:
        """Share of the packets that the other side says it loses, 0 to 100."""
        self._set(_SET_EXPECTED_LOSS, "expected_loss", percent)

    def set_silence_gaps(self, silence_gaps: bool) -> None:
        """Whether silence, and a sound so steady that it is taken for noise, gives packets that need not be sent."""
        self._set(_SET_DTX, "silence_gaps", int(silence_gaps))

    def set_signal(self, signal: Signal) -> None:
        """What the sound is to be taken for. ``voice``: linear prediction, good at few bits, and the only way that
        carries correction; ``music``: transform coding, a third of the work, which wants more bits for a voice."""
        self._set(_SET_SIGNAL, "signal", _SIGNALS[signal])

    def _set(self, request: int, name: str, value: int) -> None:
        code = _library().opus_encoder_ctl(self._state, request, ctypes.c_int32(value))
        if code < 0:
            raise OpusError(f"opus: {name} cannot be {value}")


def _checked(code: int) -> int:
    if code < 0:
        raise OpusError(f"opus: {_ERRORS.get(code, f'error {code}')}")
    return code
