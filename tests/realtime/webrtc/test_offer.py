"""Offers, as text: what is taken, what is refused and why, and the places of what is not served."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiortc.sdp import SessionDescription
from live_sessions import manager_of, settled
from msgspec.structs import replace
from rtc_client import LOOPBACK, Camera, RtcClient, calling
from scripted_engine import ScriptedEngine

from duologue.realtime.gateway import EdgeSettings
from duologue.realtime.webrtc.offer import MAX_OFFER_BYTES, parsed
from duologue.sessions.errors import ProtocolError

HEAD = ["v=0", "o=- 1 2 IN IP4 127.0.0.1", "s=-", "t=0 0", "a=msid-semantic: WMS"]
FINGERPRINT = "sha-256 " + ":".join(["AB"] * 32)
TRANSPORT = [
    "c=IN IP4 0.0.0.0",
    "a=ice-ufrag:abcd",
    "a=ice-pwd:" + "p" * 24,
    f"a=fingerprint:{FINGERPRINT}",
    "a=setup:actpass",
]
CANDIDATE = "a=candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host"


def audio(mid: str = "0", *more: str, port: int = 9, codec: str = "opus/48000/2") -> list[str]:
    media = [f"m=audio {port} UDP/TLS/RTP/SAVPF 111", *TRANSPORT, f"a=mid:{mid}", "a=sendrecv", "a=rtcp-mux"]
    return [*media, f"a=rtpmap:111 {codec}", *more]


def video(mid: str = "1", *more: str, port: int = 9) -> list[str]:
    media = [f"m=video {port} UDP/TLS/RTP/SAVPF 96", *TRANSPORT, f"a=mid:{mid}", "a=sendrecv", "a=rtcp-mux"]
    return [*media, "a=rtpmap:96 VP8/90000", *more]


def channel(mid: str = "2", *more: str) -> list[str]:
    media = ["m=application 9 UDP/DTLS/SCTP webrtc-datachannel", *TRANSPORT, f"a=mid:{mid}"]
    return [*media, "a=sctp-port:5000", "a=max-message-size:262144", *more]


def offer(*sections: list[str], bundle: str = "") -> str:
    head = [*HEAD, f"a=group:BUNDLE {bundle}"] if bundle else HEAD
    return "\r\n".join([*head, *(line for section in sections for line in section), ""])


def sections_of(sdp: str) -> list[tuple[str, str, bool]]:
    """Kind, mid and whether it is rejected, of each section."""
    found: list[tuple[str, str, bool]] = []
    for block in sdp.replace("\r\n", "\n").split("\nm=")[1:]:
        kind, port = block.split()[:2]
        mid = next((line.removeprefix("a=mid:") for line in block.splitlines() if line.startswith("a=mid:")), "")
        found.append((kind, mid, port == "0"))
    return found


@pytest.mark.parametrize(
    ("sdp", "words"),
    [
        ("", "it is empty"),
        ("hello", "does not begin with 'v=0'"),
        ('{"sdp": "v=0"}', "does not begin with 'v=0'"),
        ("v=0\r\nnonsense", "is no line of SDP"),
        (offer(), "no audio section"),
        (offer(channel()), "no audio section"),
        (offer(video()), "no audio section"),
        (offer(audio(port=0)), "its audio section is rejected"),
        (offer(audio(codec="PCMU/8000")), "has no Opus"),
        (offer([line.replace("UDP/TLS/RTP/SAVPF", "RTP/AVP") for line in audio()]), "over a secure profile"),
        (offer([line for line in audio() if "ice-ufrag" not in line]), "no ICE user name ('a=ice-ufrag')"),
        (offer([line for line in audio() if "ice-pwd" not in line]), "no ICE password ('a=ice-pwd')"),
        (offer([line for line in audio() if "fingerprint" not in line]), "no DTLS fingerprint"),
        (offer([line.replace("AB:AB", "zz") for line in audio()]), "a DTLS fingerprint that is none"),
        (offer([line.replace("pppp", "") for line in audio()]), "of a wrong length"),
        (offer([line.replace("actpass", "holdconn") for line in audio()]), "'a=setup:holdconn'"),
        (offer([line for line in audio() if "rtcp-mux" not in line]), "'a=rtcp-mux'"),
        (offer([line for line in audio() if "mid" not in line]), "no 'a=mid'"),
        (offer([line for line in audio() if "setup" not in line]), "no DTLS role ('a=setup')"),
        (offer(audio("0", "a=mid:1")), "more than one 'a=mid'"),
        (offer(audio("0", "a=ice-ufrag:efgh")), "more than one 'a=ice-ufrag'"),
        (offer(audio("0"), channel("0")), "two of its sections are called '0'"),
        (offer(audio("0"), [line for line in channel() if "sctp-port" not in line]), "no SCTP port ('a=sctp-port')"),
        (offer([line.replace("SAVPF 111", "SAVPF 111 72") for line in audio()]), "the payload type '72'"),
        (offer([line.replace("SAVPF 111", "SAVPF 111 x") for line in audio()]), "the payload type 'x'"),
        (offer(audio()).replace("v=0", "v=0.5"), "does not begin with 'v=0'"),
        (offer(audio("0", CANDIDATE + " raddr 0.0.0.0 rport x")), "a candidate that cannot be read"),
        (offer(audio("0", "a=candidate:1 1 udp")), "a candidate that cannot be read"),
        (offer(["m=audio"]), "is no media line"),
        (offer(*[audio(str(n)) for n in range(40)]), "more than 32 media sections"),
        ("v=0\r\n" + "a=x\r\n" * MAX_OFFER_BYTES, "is longer than"),
    ],
)
def test_fc_163_a_bad_offer_says_what_is_wrong(sdp: str, words: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        parsed(sdp, takes_video=True)
    assert (refused.value.code, refused.value.param) == ("invalid_offer", "sdp")
    assert words in refused.value.message


def test_what_is_not_served_keeps_its_place_in_the_answer() -> None:
    text = offer(
        video("v", CANDIDATE),
        audio("a"),
        audio("b"),
        ["m=text 9 RTP/AVP 98", "a=mid:t"],
        channel("d"),
        bundle="v a b d",
    )
    taken = parsed(text, takes_video=False)
    assert [kind for kind, _, _ in sections_of(taken.sdp)] == ["audio", "application"]
    assert "a=group:BUNDLE a d" in taken.sdp
    assert CANDIDATE in taken.sdp, "the candidates of a bundle stand in its first section"
    answer = taken.answer(offer(audio("a"), channel("d"), bundle="a d"))
    assert sections_of(answer) == [
        ("video", "v", True),
        ("audio", "a", False),
        ("audio", "b", True),
        ("text", "t", True),
        ("application", "d", False),
    ]


def test_a_section_that_only_lives_in_a_bundle_is_not_rejected() -> None:
    taken = parsed(offer(audio("0"), video("1", "a=bundle-only", port=0), bundle="0 1"), takes_video=True)
    assert taken.shows_video
    assert not parsed(offer(audio("0"), video("1", port=0), bundle="0"), takes_video=True).shows_video


@pytest.mark.parametrize(
    ("direction", "shows", "wants"),
    [
        ("sendrecv", True, True),
        ("sendonly", True, False),
        ("recvonly", False, True),
        ("inactive", False, False),
        ("", True, True),
    ],
)
def test_the_direction_of_video_is_read(direction: str, shows: bool, wants: bool) -> None:
    section = [line for line in video("1") if line != "a=sendrecv"] + ([f"a={direction}"] if direction else [])
    taken = parsed(offer(audio("0"), section), takes_video=True)
    assert (taken.shows_video, taken.wants_video) == (shows, wants)


def test_the_direction_of_the_whole_session_counts_where_a_section_has_none() -> None:
    section = [line for line in video("1") if line != "a=sendrecv"]
    taken = parsed(offer(audio("0"), section).replace("s=-", "s=-\r\na=recvonly"), takes_video=True)
    assert (taken.shows_video, taken.wants_video) == (False, True)
    assert "a=recvonly" in taken.sdp.partition("m=video")[2]


def test_lines_that_the_library_cannot_read_and_does_not_need_are_left_out() -> None:
    odd = [
        "c=IN IP5 nowhere",
        "a=rtcp:nine",
        "a=rtcp-fb:111",
        "a=extmap:1 urn:one with attributes",
        "a=ssrc:1",
        "a=fmtp:112 apt=111",
        "a=fmtp:111 minptime=soon",
    ]
    kept = ["a=fmtp:111 minptime=10;useinbandfec=1", "a=extmap:2/recvonly urn:two", "a=rtcp-fb:* nack"]
    text = offer(audio("0", *odd, *kept)).replace("m=audio 9 ", "m=audio  9/2 ")
    lines = parsed(text, takes_video=False).sdp.splitlines()
    assert set(kept) <= set(lines)
    assert not set(odd) & set(lines)
    assert "m=audio 9 UDP/TLS/RTP/SAVPF 111" in lines
    SessionDescription.parse("\r\n".join(lines))


def broken(lines: list[str], seed: int) -> str:
    """An offer with one to three lines lost, doubled, misspelt or stirred."""
    fate, lines = random.Random(seed), list(lines)
    for _ in range(fate.randint(1, 3)):
        place, line = fate.randrange(len(lines)), fate.choice(lines)
        match fate.randrange(4):
            case 0:
                del lines[place]
            case 1:
                lines.insert(place, line)
            case 2:
                at = fate.randrange(2, max(3, len(lines[place])))
                misspelt = fate.choice(["", "x", "-1", "99999999999", " ", "é", ":", "/"])
                lines[place] = lines[place][:at] + misspelt + lines[place][at + fate.randint(0, 3) :]
            case 3:
                words = lines[place].split(" ")
                fate.shuffle(words)
                lines[place] = " ".join(words)
    return "".join(f"{line}\r\n" for line in lines)


async def real_offer() -> list[str]:
    client = RtcClient(camera=Camera())
    try:
        return (await client.offer()).splitlines()
    finally:
        await client.close()


async def test_fc_163_what_is_not_refused_can_be_read_by_the_library() -> None:
    lines = await real_offer()
    refused = 0
    for seed in range(2000):
        try:
            taken = parsed(broken(lines, seed), takes_video=seed % 2 == 0)
        except ProtocolError:
            refused += 1
            continue
        SessionDescription.parse(taken.sdp)
    assert 200 < refused < 1800


async def test_fc_163_broken_offers_are_answered_or_refused_in_words_and_leave_nothing(serve: Any) -> None:
    lines = await real_offer()
    settings = EdgeSettings(webrtc=replace(LOOPBACK, connect_timeout_s=0.2))
    async with serve(manager_of(ScriptedEngine(), max_sessions=200), settings=settings) as edge, edge.http() as http:
        ports = len(psutil.Process().net_connections("udp"))
        for seed in range(100):
            body = {"content": broken(lines, seed), "headers": {"Content-Type": "application/sdp"}}
            answer = await http.post("/v1/realtime/calls", **body)
            assert answer.status_code in (201, 400), (seed, answer.text)
        await settled(lambda: not len(edge.gateway.desk()) and not edge.sessions.open_sessions)
        await settled(lambda: len(psutil.Process().net_connections("udp")) == ports)


@pytest.mark.parametrize(
    ("parameters", "most"),
    [
        ("minptime=10;maxaveragebitrate=20000;useinbandfec=1", 20_000),
        ("maxaveragebitrate=40000", 40_000),
        ("minptime=10; maxaveragebitrate=12000", 12_000),
        ("minptime=10;useinbandfec=1", None),
        ("maxaveragebitrate=fast", None),
    ],
)
def test_the_bits_that_a_client_wants_at_most_are_read(parameters: str, most: int | None) -> None:
    assert parsed(offer(audio("0", f"a=fmtp:111 {parameters}")), takes_video=False).most_bitrate == most
    other = offer(audio("0", f"a=fmtp:63 {parameters}", "a=rtpmap:63 red/48000/2"))
    assert parsed(other, takes_video=False).most_bitrate is None


def test_an_offer_without_a_bundle_gets_no_bundle() -> None:
    taken = parsed(offer(audio("0")), takes_video=False)
    assert "BUNDLE" not in taken.answer(offer(audio("0"), bundle="0"))
    assert not taken.has_channel


def test_fc_151_names_of_the_local_network_are_looked_up_later() -> None:
    name = "1 1 udp 2113937151 6f3a8c1e-0000-4000-8000-000000000000.local 50000 typ host"
    taken = parsed(
        offer(audio("0", f"a=candidate:{name}", CANDIDATE, "a=end-of-candidates"), channel()), takes_video=False
    )
    assert taken.candidates == (name,)
    assert ".local" not in taken.sdp
    assert CANDIDATE in taken.sdp
    assert "end-of-candidates" not in taken.sdp, "a peer that is only seen when it calls in can still be learnt"


FIREFOX = (Path(__file__).parent / "firefox-153.sdp").read_text()
"""What Firefox 153 offers for the demo page: microphone, camera, channel; candidates for RTCP and for TCP as well."""


@pytest.mark.parametrize("takes_video", [False, True])
def test_firefoxs_offer_is_taken_as_it_is(takes_video: bool) -> None:
    taken = parsed(FIREFOX, takes_video=takes_video)
    kinds = ["audio", "video", "application"] if takes_video else ["audio", "application"]
    assert [kind for kind, _, _ in sections_of(taken.sdp)] == kinds
    assert (taken.has_channel, taken.shows_video, taken.wants_video) == (True, takes_video, takes_video)
    assert taken.telephone_events == ((101, 8000),)
    assert "a=candidate" not in taken.sdp, "they are all names, which are looked up later"
    SessionDescription.parse(taken.sdp)


def test_names_are_looked_up_only_of_candidates_that_a_pair_can_be_made_with() -> None:
    names = [candidate.split() for candidate in parsed(FIREFOX, takes_video=False).candidates]
    assert [(component, transport) for _, component, transport, *_ in names] == [("1", "UDP")] * 4
    assert len({(host, port) for _, _, _, _, host, port, *_ in names}) == 4, "two addresses, in two sections"


async def test_firefoxs_offer_is_answered(serve: Any) -> None:
    async with serve(manager_of(ScriptedEngine()), settings=EdgeSettings(webrtc=LOOPBACK)) as edge, edge.http() as http:
        sdp = {"content": FIREFOX, "headers": {"Content-Type": "application/sdp"}}
        answer = await http.post("/v1/realtime/calls", **sdp)
        assert answer.status_code == 201, answer.text
        assert sections_of(answer.text) == [("audio", "0", False), ("video", "1", True), ("application", "2", False)]
        assert "a=group:BUNDLE 0 2" in answer.text
        assert "a=rtpmap:109 opus/48000/2" in answer.text, "by the number that the offer has it under"


def test_transport_of_the_session_level_counts() -> None:
    bare = [line for line in audio() if line not in TRANSPORT]
    parsed("\r\n".join([*HEAD, *TRANSPORT[1:], *bare, ""]), takes_video=False)


async def test_real_offers_are_taken_as_they_are() -> None:
    client = RtcClient()
    client.connection.addTransceiver("video")
    try:
        text = await client.offer()
        taken = parsed(text, takes_video=False)
        assert (taken.has_channel, taken.shows_video) == (True, False)
        assert parsed(text, takes_video=True).shows_video
    finally:
        await client.close()


FORM = "multipart/form-data; boundary=b"


def form(**parts: str) -> bytes:
    heads = (f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in parts.items())
    return ("".join(heads) + "--b--\r\n").encode()


@pytest.mark.parametrize(
    ("content", "content_type", "status", "code"),
    [
        (b"v=0", "application/sdp", 400, "invalid_offer"),
        (b"\xff\xfe", "application/sdp", 400, "invalid_value"),
        (b"v=0", "application/json", 415, "unsupported_media_type"),
        (b"x" * (2**20 + 1), "application/sdp", 400, "invalid_value"),
        (b"nonsense", FORM, 400, "invalid_value"),
        (b"nonsense", "multipart/form-data", 400, "invalid_value"),
        (form(session="{}"), FORM, 400, "missing_required_parameter"),
        (form(sdp="v=0", session="{"), FORM, 400, "invalid_json"),
        (form(sdp="v=0", session="[]"), FORM, 400, "invalid_value"),
        (form(spd="v=0"), FORM, 400, "unknown_parameter"),
        (form(sdp="v=0", session="{}"), FORM, 400, "invalid_offer"),
        (form(sdp=offer(audio()), session='{"voice": "x"}'), FORM, 400, "unknown_parameter"),
        (form(sdp=offer(audio()), session='{"type": "translation"}'), FORM, 400, "invalid_value"),
        (form(sdp=offer(audio()), session='{"model": "gpt-9"}'), FORM, 400, "invalid_value"),
    ],
)
async def test_fc_163_a_bad_request_is_refused_and_holds_nothing(
    serve: Any, content: bytes, content_type: str, status: int, code: str
) -> None:
    async with serve(manager_of(ScriptedEngine()), settings=EdgeSettings(webrtc=LOOPBACK)) as edge, edge.http() as http:
        answer = await http.post("/v1/realtime/calls", content=content, headers={"Content-Type": content_type})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code), error
        assert len(edge.gateway.desk()) == len(edge.gateway.calls) == 0
        assert edge.sessions.open_sessions == 0


async def test_events_of_a_size_that_the_answer_allows_come_in_and_go_out_whole(serve: Any) -> None:
    async with (
        serve(manager_of(ScriptedEngine()), settings=EdgeSettings(webrtc=LOOPBACK)) as edge,
        edge.http() as http,
        calling(http) as client,
    ):
        assert "a=max-message-size:262144" in client.connection.remoteDescription.sdp
        for letter in "ab":
            client.send({"type": "session.update", "session": {"type": "realtime", "instructions": letter * 250_000}})
        for letter in "ab":
            assert (await client.until("session.updated"))["session"]["instructions"] == letter * 250_000
