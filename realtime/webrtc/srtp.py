"""SRTP of a session that aiortc has set up, called without letting go of the interpreter.

pylibsrtp's calls go through cffi, which releases the interpreter's lock around each. They take two microseconds; where
another thread is busy (voice activity is) getting the lock back takes up to a whole switch interval, twice a frame and
call. The same functions of the same library are called here through ``ctypes.PyDLL``, which keeps the lock.

Used of pylibsrtp's private parts: ``Session._srtp`` (``srtp_t *``) and the functions that ``_binding`` exports.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, Final, Protocol

import pylibsrtp
from pylibsrtp import _binding

MOST_BYTES: Final = 2048
_TRAILER: Final = 144
"""SRTP_MAX_TRAILER_LEN of libsrtp: what protecting may add."""

SRTP_ERRORS: Final = (ValueError, pylibsrtp.Error)
"""What is raised for a packet that is not authentic, was seen before, is too long, or is no RTP."""


class Srtp(Protocol):
    """One direction of a transport."""

    def protect(self, packet: bytes) -> bytes:
        """An RTP packet, encrypted."""

    def unprotect(self, packet: bytes) -> bytes:
        """A packet from the peer, checked and decrypted."""


def srtp_of(session: pylibsrtp.Session) -> Srtp:
    """The same context behind a short way; the session itself where this build of pylibsrtp does not show it."""
    try:
        return _ShortWay(session)
    except (AttributeError, OSError):
        return session


@lru_cache(maxsize=1)
def _library() -> Any:
    library = ctypes.PyDLL(_binding.__file__)
    for name in ("srtp_protect", "srtp_unprotect"):
        function = getattr(library, name)
        function.argtypes, function.restype = [ctypes.c_void_p] * 3, ctypes.c_int
    return library


class _ShortWay:
    def __init__(self, session: pylibsrtp.Session) -> None:
        self._protect, self._unprotect = _library().srtp_protect, _library().srtp_unprotect
        self._session = session
        """Owns the context."""
        self._context = int(_binding.ffi.cast("uintptr_t", session._srtp[0]))
        self._buffer = ctypes.create_string_buffer(MOST_BYTES)
        self._at = ctypes.addressof(self._buffer)
        self._length = ctypes.c_int()
        self._length_at = ctypes.addressof(self._length)

    def protect(self, packet: bytes) -> bytes:
        return self._run(self._protect, packet)

    def unprotect(self, packet: bytes) -> bytes:
        return self._run(self._unprotect, packet)

    def _run(self, function: Any, packet: bytes) -> bytes:
        size = len(packet)
        if size > MOST_BYTES - _TRAILER:
            raise ValueError(f"a packet of {size} bytes is too long")
        ctypes.memmove(self._at, packet, size)
        self._length.value = size
        status = function(self._context, self._at, self._length_at)
        if status:
            raise ValueError(f"libsrtp: status {status}")
        return ctypes.string_at(self._at, self._length.value)
