"""SRTP by the short way: the same packets as pylibsrtp's own calls make and take."""

from __future__ import annotations

import ctypes
import struct

import pytest
from missing import need_package

need_package("pylibsrtp")

from pylibsrtp import Policy, Session  # noqa: E402

from duologue.realtime.webrtc import srtp  # noqa: E402
from duologue.realtime.webrtc.srtp import MOST_BYTES, SRTP_ERRORS, srtp_of  # noqa: E402

PROFILES = (Policy.SRTP_PROFILE_AES128_CM_SHA1_80, Policy.SRTP_PROFILE_AEAD_AES_128_GCM)


def session(kind: int, profile: int) -> Session:
    key = bytes(range(28 if profile == Policy.SRTP_PROFILE_AEAD_AES_128_GCM else 30))
    return Session(Policy(key=key, ssrc_type=kind, srtp_profile=profile))


def packet(number: int, size: int = 80) -> bytes:
    return struct.pack("!BBHLL", 0x80, 96, number, number * 960, 7) + bytes(number % 251 for _ in range(size))


@pytest.mark.parametrize("profile", PROFILES)
def test_either_way_understands_the_other(profile: int) -> None:
    out, back = Policy.SSRC_ANY_OUTBOUND, Policy.SSRC_ANY_INBOUND
    short, theirs = srtp_of(session(out, profile)), session(out, profile)
    assert not isinstance(short, Session)
    unshort, untheirs = srtp_of(session(back, profile)), session(back, profile)
    for number in range(40):
        plain = packet(number)
        protected = short.protect(plain)
        assert protected == theirs.protect(plain) != plain
        assert unshort.unprotect(protected) == untheirs.unprotect(protected) == plain


def test_what_is_forged_repeated_or_too_long_is_refused_and_the_next_is_taken() -> None:
    profile = PROFILES[0]
    sender, receiver = (
        srtp_of(session(Policy.SSRC_ANY_OUTBOUND, profile)),
        srtp_of(session(Policy.SSRC_ANY_INBOUND, profile)),
    )
    first, second = sender.protect(packet(1)), sender.protect(packet(2))
    assert receiver.unprotect(first) == packet(1)
    for bad in (first, second[:-1] + bytes([second[-1] ^ 1]), b"\x80", b"", bytes(5000)):
        with pytest.raises(SRTP_ERRORS):
            receiver.unprotect(bad)
    with pytest.raises(SRTP_ERRORS):
        sender.protect(packet(3, MOST_BYTES))
    assert receiver.unprotect(second) == packet(2)


def test_a_build_that_shows_nothing_goes_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srtp, "_library", lambda: ctypes.PyDLL(None).no_such_function)
    own = session(Policy.SSRC_ANY_OUTBOUND, PROFILES[0])
    assert srtp_of(own) is own
