"""An SDP offer, checked before anything is allocated for it, and the sections that this server does not take.

The WebRTC library answers every media section that it is given, so it is given only those that are served: one of
audio, one of video where video is wanted, one data channel. In the answer the others stand at their places again,
rejected (RFC 3264 section 6: the number and the order of media sections never change). Pure functions over text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from duologue.sessions.errors import ProtocolError

MAX_OFFER_BYTES: Final = 256 * 1024
MAX_SECTIONS: Final = 32
_OPUS = re.compile(r"^a=rtpmap:\d+ opus/48000(/2)?$", re.IGNORECASE | re.MULTILINE)
_KEYS = re.compile(r"(\d{1,3}) telephone-event/(\d{4,5})(?:/1)?", re.IGNORECASE)
_MOST_BITRATE = re.compile(r"(?:^|;)\s*maxaveragebitrate=(\d{1,6})\s*(?:;|$)", re.IGNORECASE)
_FINGERPRINT = re.compile(r"^[\w-]+ [0-9A-F]{2}(:[0-9A-F]{2}){15,63}$", re.IGNORECASE)
_DATA_PROFILES = ("UDP/DTLS/SCTP", "TCP/DTLS/SCTP", "DTLS/SCTP")
_CANDIDATE = re.compile(r"^(?!.* rport (?!\d+( |$)))\S{1,64} \d{1,5} \S+ \d{1,10} \S+ \d{1,5} typ \S+( .*)?$")
_REQUIRED = {
    "ice-ufrag": "ICE user name",
    "ice-pwd": "ICE password",
    "fingerprint": "DTLS fingerprint",
    "setup": "DTLS role",
}
_RTCP_TYPES = range(72, 77)
"""Payload types that RTCP takes once both share a port (RFC 5761, section 4)."""
_FORMS = {
    name: re.compile(form)
    for name, form in {
        "rtpmap": r"\d{1,3} [^/ ]+/\d{1,6}(/\d{1,2})?",
        "fmtp": r"\d{1,3} \S.*",
        "rtcp-fb": r"(\*|\d{1,3}) \S.*",
        "rtcp": r"\d{1,5}( IN IP[46] \S+)?",
        "extmap": r"\d{1,5}(/[a-z]+)? \S+",
        "ssrc": r"\d{1,10} [^:]+:.*",
        "ssrc-group": r"\S+( \d{1,10})+",
        "sctpmap": r"\d{1,5} \S.*",
        "max-message-size": r"\d{1,15}",
    }.items()
}
"""What the values of attributes look like that the WebRTC library reads and can do without."""
_NUMBERS = re.compile(r"(?:^|;)\s*(apt|max-f[rs]|maxplaybackrate|minptime|stereo|useinbandfec)\s*=(?!\s*\d+\s*(;|$))")
_DIRECTIONS = ("sendrecv", "sendonly", "recvonly", "inactive")
_LONGEST_REASON = 160


def bad_offer(reason: str) -> ProtocolError:
    """What a client is told whose offer cannot be taken."""
    return ProtocolError("invalid_offer", f"The SDP offer cannot be taken: {reason}", "sdp")


@dataclass(frozen=True)
class Section:
    """One ``m=`` line and what belongs to it."""

    kind: str
    port: int
    profile: str
    formats: tuple[str, ...]
    lines: tuple[str, ...]
    """All lines, the ``m=`` line first."""

    def attributes(self, name: str) -> list[str]:
        """The values of ``a=name:value`` lines, in order."""
        prefix = f"a={name}:"
        return [line.removeprefix(prefix) for line in self.lines if line.startswith(prefix)]

    def flag(self, name: str) -> bool:
        return f"a={name}" in self.lines

    @property
    def mid(self) -> str:
        return next(iter(self.attributes("mid")), "")

    @property
    def direction(self) -> str:
        """Which way its media goes, as the client sees it."""
        return next((name for name in _DIRECTIONS if self.flag(name)), "sendrecv")

    @property
    def rejected(self) -> bool:
        """Whether the client itself has no use for it."""
        return self.port == 0 and not self.flag("bundle-only")

    def without(self, *prefixes: str) -> Section:
        """The same without lines that begin with one of ``prefixes``."""
        return replace(self, lines=tuple(line for line in self.lines if not line.startswith(prefixes)))

    def refusal(self) -> list[str]:
        """The lines of an answer that reject it."""
        refused = [f"m={self.kind} 0 {self.profile} {' '.join(self.formats)}", "c=IN IP4 0.0.0.0", "a=inactive"]
        return refused + ([f"a=mid:{self.mid}"] if self.mid else [])


@dataclass(frozen=True)
class Offer:
    """An offer that can be answered."""

    head: tuple[str, ...]
    """The lines before the first section."""
    sections: tuple[Section, ...]
    taken: tuple[int, ...]
    """Places of the sections that are served."""
    candidates: tuple[str, ...]
    """Candidates of the client whose names have to be looked up first (``.local``), without ``candidate:``.

    Each name is a query to the local network, so those that no pair can be made with are left out."""

    @property
    def shows_video(self) -> bool:
        """Whether the client sends video in a section that is served."""
        return self._video("sendrecv", "sendonly")

    @property
    def wants_video(self) -> bool:
        """Whether the client takes video in a section that is served."""
        return self._video("sendrecv", "recvonly")

    def _video(self, *directions: str) -> bool:
        sections = (self.sections[index] for index in self.taken)
        return any(section.kind == "video" and section.direction in directions for section in sections)

    @property
    def has_channel(self) -> bool:
        return any(self.sections[index].kind == "application" for index in self.taken)

    @property
    def telephone_events(self) -> tuple[tuple[int, int], ...]:
        """Payload types and clock rates under which the audio that is served has keys of the telephone (RFC 4733)."""
        audio = next(self.sections[index] for index in self.taken if self.sections[index].kind == "audio")
        found = (_KEYS.fullmatch(value) for value in audio.attributes("rtpmap"))
        return tuple((int(match[1]), int(match[2])) for match in found if match)

    @property
    def most_bitrate(self) -> int | None:
        """Bits a second that the client wants its Opus to be at most (RFC 7587, 6.1: ``maxaveragebitrate``), if so."""
        audio = next(self.sections[index] for index in self.taken if self.sections[index].kind == "audio")
        formats = [value.partition(" ")[0] for value in audio.attributes("rtpmap") if " opus/" in value.lower()]
        for value in audio.attributes("fmtp"):
            number, _, parameters = value.partition(" ")
            found = _MOST_BITRATE.search(parameters)
            if found and number in formats:
                return int(found[1])
        return None

    @property
    def sdp(self) -> str:
        """The offer for the WebRTC library: the sections that are served and no others."""
        mids = [self.sections[index].mid for index in self.taken]
        lines = [_bundle(line, mids) for line in self.head if _is_readable(line, ())]
        kept = [self.sections[index] for index in self.taken]
        for section in _with_candidates(kept, self.sections):
            # Without an end of candidates a peer that is only seen when it calls in can still be learnt.
            lines += _readable(_without_local_names(section.without("a=end-of-candidates")))
        return _joined(lines)

    def answer(self, sdp: str) -> str:
        """The library's answer with every section of the offer in its place."""
        head, answered = _split(sdp)
        if len(answered) != len(self.taken):
            raise ValueError(f"{len(answered)} sections answer {len(self.taken)}")
        places = dict(zip(self.taken, answered, strict=True))
        bundled = any(line.startswith("a=group:BUNDLE") for line in self.head)
        lines = [line for line in head if bundled or not line.startswith("a=group:BUNDLE")]
        for index, section in enumerate(self.sections):
            lines += places[index].lines if index in places else section.refusal()
        return _joined(lines)


def parsed(sdp: str, *, takes_video: bool) -> Offer:
    """Read an offer. Raises ``ProtocolError`` that says what is missing."""
    if len(sdp) > MAX_OFFER_BYTES:
        raise bad_offer(f"it is longer than {MAX_OFFER_BYTES} bytes.")
    if not sdp.strip():
        raise bad_offer("it is empty.")
    if sdp.split(maxsplit=1)[0] != "v=0":
        raise bad_offer("it does not begin with 'v=0'; the body is to be the 'sdp' of the offer, as text.")
    head, sections = _split(sdp)
    if len(sections) > MAX_SECTIONS:
        raise bad_offer(f"it has more than {MAX_SECTIONS} media sections.")
    sections = [_directed(section, head) for section in sections]
    taken = _taken(sections, takes_video)
    mids = [section.mid for section in sections if section.mid]
    if twice := [mid for index, mid in enumerate(mids) if mid in mids[:index]]:
        raise bad_offer(f"two of its sections are called '{twice[0][:_LONGEST_REASON]}' ('a=mid').")
    for index in taken:
        _check_transport(sections[index], head)
        _check_formats(sections[index])
    candidates = [candidate for index in taken for candidate in sections[index].attributes("candidate")]
    names = [candidate for candidate in candidates if _is_name(candidate) and _is_of_use(candidate)]
    return Offer(tuple(head), tuple(sections), tuple(taken), tuple(dict.fromkeys(names)))


def _directed(section: Section, head: Sequence[str]) -> Section:
    """The same with its direction, which may be that of the whole session, or be left out (RFC 8866, section 6.7)."""
    if section.kind == "application" or any(section.flag(name) for name in _DIRECTIONS):
        return section
    of_session = next((name for name in _DIRECTIONS if f"a={name}" in head), "sendrecv")
    return replace(section, lines=(*section.lines, f"a={of_session}"))


def _taken(sections: Sequence[Section], takes_video: bool) -> list[int]:
    wanted = {"audio": True, "video": takes_video, "application": True}
    taken: list[int] = []
    for index, section in enumerate(sections):
        if section.rejected or not wanted.get(section.kind, False) or not _can_serve(section):
            continue
        wanted[section.kind] = False
        taken.append(index)
    if wanted["audio"]:
        audio = [section for section in sections if section.kind == "audio"]
        if not audio:
            raise bad_offer("it has no audio section ('m=audio').")
        if all(section.rejected for section in audio):
            raise bad_offer("its audio section is rejected (port 0).")
        raise bad_offer("its audio section has no Opus ('a=rtpmap:... opus/48000/2') over a secure profile.")
    return taken


def _can_serve(section: Section) -> bool:
    if section.kind == "application":
        return section.profile in _DATA_PROFILES
    secure = section.profile in ("UDP/TLS/RTP/SAVPF", "UDP/TLS/RTP/SAVP", "RTP/SAVPF", "TCP/TLS/RTP/SAVPF")
    if section.kind == "video":
        return secure and any(codec in "\n".join(section.lines).upper() for codec in ("VP8/90000", "H264/90000"))
    return secure and _OPUS.search("\n".join(section.lines)) is not None


def _check_transport(section: Section, head: Sequence[str]) -> None:
    """Raises ``ProtocolError`` for a section that no secure transport can be made for."""
    whole = replace(section, lines=(*section.lines, *head))
    where = f"its {section.kind} section"
    for name, what in _REQUIRED.items():
        if not whole.attributes(name):
            raise bad_offer(f"{where} has no {what} ('a={name}').")
    ufrag, password = whole.attributes("ice-ufrag")[0], whole.attributes("ice-pwd")[0]
    if not 4 <= len(ufrag) <= 256 or not 22 <= len(password) <= 256:
        raise bad_offer(f"{where} has an ICE user name or password of a wrong length.")
    if not all(_FINGERPRINT.match(value) for value in whole.attributes("fingerprint")):
        raise bad_offer(f"{where} has a DTLS fingerprint that is none.")
    for role in whole.attributes("setup"):
        if role not in ("actpass", "active", "passive"):
            raise bad_offer(f"{where} says 'a=setup:{role[:20]}'; an offer says actpass.")
    if section.kind != "application" and not whole.flag("rtcp-mux"):
        raise bad_offer(f"{where} does not multiplex RTCP ('a=rtcp-mux').")
    if not section.mid:
        raise bad_offer(f"{where} has no 'a=mid'.")
    for name in ("mid", "ice-ufrag", "ice-pwd"):
        if len(section.attributes(name)) > 1:
            raise bad_offer(f"{where} has more than one 'a={name}'.")
    for candidate in section.attributes("candidate"):
        if not _CANDIDATE.match(candidate):
            raise bad_offer(f"{where} has a candidate that cannot be read: '{candidate[:_LONGEST_REASON]}'.")


def _check_formats(section: Section) -> None:
    """Raises ``ProtocolError`` for payload types that are none, and for a data channel at no port."""
    if section.kind != "application":
        for number in section.formats:
            if not number.isdecimal() or int(number) > 127 or int(number) in _RTCP_TYPES:
                raise bad_offer(f"its {section.kind} section has the payload type '{number[:20]}', which cannot be.")
    elif section.profile == "DTLS/SCTP":
        if not section.formats[0].isdecimal():
            raise bad_offer("its application section has no SCTP port ('m=application ... DTLS/SCTP 5000').")
    elif not all(re.fullmatch(r"\d{1,5}", port) for port in section.attributes("sctp-port") or [""]):
        raise bad_offer("its application section has no SCTP port ('a=sctp-port').")


def _readable(section: Section) -> list[str]:
    """Its lines without those that the WebRTC library would stumble over and does not need."""
    known = {value.partition(" ")[0] for value in section.attributes("rtpmap") if _FORMS["rtpmap"].fullmatch(value)}
    return [line for line in section.lines if _is_readable(line, known)]


def _is_readable(line: str, known: Collection[str]) -> bool:
    if line.startswith("c="):
        return re.fullmatch(r"c=IN IP[46] \S+", line) is not None
    name, _, value = line.removeprefix("a=").partition(":")
    form = _FORMS.get(name)
    if form is not None and not form.fullmatch(value):
        return False
    # Parameters of a payload type that is not named, and numbers among them that are none.
    number, _, parameters = value.partition(" ")
    return name != "fmtp" or (number in known and _NUMBERS.search(parameters) is None)


def _split(sdp: str) -> tuple[list[str], list[Section]]:
    """The lines before the first section, and the sections. Raises ``ProtocolError`` for a line that is none."""
    head: list[str] = []
    blocks: list[list[str]] = []
    for line in sdp.splitlines():
        line = line.rstrip()
        if not line:
            continue
        if not re.match(r"^[a-z]=", line):
            raise bad_offer(f"'{line[:_LONGEST_REASON]}' is no line of SDP.")
        if line.startswith("m="):
            blocks.append([line])
        else:
            (blocks[-1] if blocks else head).append(line)
    return head, [_section(block) for block in blocks]


def _section(lines: Sequence[str]) -> Section:
    match lines[0].removeprefix("m=").split():
        case [kind, port, profile, *formats] if formats and port.split("/")[0].isdecimal():
            number = int(port.split("/")[0])
            media = f"m={kind} {number} {profile} {' '.join(formats)}"
            return Section(kind, number, profile, tuple(formats), (media, *lines[1:]))
    raise bad_offer(f"'{lines[0][:_LONGEST_REASON]}' is no media line.")


def _bundle(line: str, mids: Sequence[str]) -> str:
    """A ``BUNDLE`` line with what is served of it; other lines as they are."""
    if not line.startswith("a=group:BUNDLE"):
        return line
    bundled = dict.fromkeys(line.split()[1:])
    return " ".join(["a=group:BUNDLE", *(mid for mid in bundled if mid in mids)])


def _with_candidates(kept: list[Section], sections: Sequence[Section]) -> list[Section]:
    """What is served; the first with the candidates of a bundle whose own first section is not."""
    if any(section.attributes("candidate") for section in kept):
        return kept
    lines = [line for section in sections for line in section.lines if line.startswith("a=candidate:")]
    return [replace(kept[0], lines=(*kept[0].lines, *dict.fromkeys(lines))), *kept[1:]]


def _is_name(candidate: str) -> bool:
    return candidate.split()[4].endswith(".local")


def _is_of_use(candidate: str) -> bool:
    """Whether ours can be paired with it: over UDP, and not for RTCP alone, which always shares the port here."""
    _, component, transport, *_ = candidate.split()
    return component == "1" and transport.lower() == "udp"


def _without_local_names(section: Section) -> Section:
    names = tuple(f"a=candidate:{candidate}" for candidate in section.attributes("candidate") if _is_name(candidate))
    return section.without(*names) if names else section


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\r\n" for line in lines)
