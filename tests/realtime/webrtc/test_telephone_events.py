"""Keys of a telephone in RTP: each once, however its packets come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_sessions import manager_of
from missing import need_libopus, need_package
from scripted_engine import ScriptedEngine
from webrtc_call import until

need_package("aiortc")
need_libopus()

from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription  # noqa: E402

from duologue.realtime.bench.webrtc_peer import LeanPeer  # noqa: E402
from duologue.realtime.gateway import EdgeSettings  # noqa: E402
from duologue.realtime.webrtc.jitter import FRAME_TICKS, JitterBuffer, Lost  # noqa: E402
from duologue.realtime.webrtc.media import IncomingAudio  # noqa: E402
from duologue.realtime.webrtc.telephone_events import KEYS, TelephoneEvents  # noqa: E402


def press(code: int, packets: int = 5, ends: int = 3, step: int = 160) -> list[bytes]:
    """The packets of one event: longer and longer, then its end again and again."""
    going = [bytes([code, 10]) + (step * (n + 1)).to_bytes(2, "big") for n in range(packets)]
    return going + [bytes([code, 0x80 | 10]) + (step * (packets + 1)).to_bytes(2, "big")] * ends


@pytest.mark.parametrize("code", range(16))
def test_FC_160_a_key_is_heard_once_for_all_its_packets(code: int) -> None:
    events = TelephoneEvents()
    heard = [events.add(8_000, packet) for packet in press(code)]
    assert heard == [KEYS[code], *[None] * 7]


def test_FC_160_only_the_end_came() -> None:
    events = TelephoneEvents()
    assert [events.add(8_000, packet) for packet in press(5)[-2:]] == ["5", None]


@pytest.mark.parametrize("code", [16, 32, 64, 255])
def test_FC_160_what_is_no_key_is_ignored(code: int) -> None:
    events = TelephoneEvents()
    assert not any(events.add(8_000, packet) for packet in press(code))
    assert events.add(16_000, press(1)[0]) == "1"


def test_the_same_key_twice_is_two_keys_and_a_late_packet_none() -> None:
    events = TelephoneEvents()
    assert events.add((1 << 32) - 100, press(7)[0]) == "7"
    assert events.add(9_000, press(7)[0]) == "7"
    assert events.add((1 << 32) - 100, press(7)[-1]) is None
    assert events.add(9_000, b"\x07\x80") is None


def test_a_key_held_for_very_long_is_one_key() -> None:
    events = TelephoneEvents()
    assert events.add(0, bytes([3, 10, 0xFF, 0xFF])) == "3"
    assert events.add(0xFFFF, bytes([3, 10, 0x10, 0x00])) is None
    assert events.add(0xFFFF + 0x2000, bytes([3, 10, 0x00, 0xA0])) == "3"


@given(st.lists(st.tuples(st.integers(0, (1 << 32) - 1), st.binary(max_size=8))))
def test_no_packet_of_a_stranger_breaks_it(packets: list[tuple[int, bytes]]) -> None:
    events = TelephoneEvents()
    assert all(key is None or key in KEYS for key in (events.add(*packet) for packet in packets))


def test_packets_without_sound_are_no_loss() -> None:
    buffer = JitterBuffer()
    pieces = []
    for n in range(60):
        silent = 20 <= n < 30
        now = n * 0.020
        pieces += buffer.add(n, 0 if silent else n * FRAME_TICKS, 0 if silent else FRAME_TICKS, b"sound" * 3, now)
        pieces += buffer.poll(now + 0.015)
    assert buffer.stats.lost == 0
    assert not any(isinstance(piece, Lost) for piece in pieces)
    assert sum(getattr(piece, "ticks", FRAME_TICKS) for piece in pieces) == 60 * FRAME_TICKS


async def test_FC_160_keys_are_heard_in_a_call_between_its_sound() -> None:
    server = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    caller = LeanPeer()
    keys: list[str] = []
    heard: list[bytes] = []
    incoming: list[IncomingAudio] = []

    async def exchange(offer: str) -> str:
        offer = offer.replace("UDP/TLS/RTP/SAVPF 96", "UDP/TLS/RTP/SAVPF 96 110", 1)
        offer = offer.replace("a=rtpmap:96", "a=rtpmap:110 telephone-event/48000\r\na=rtpmap:96", 1)
        await server.setRemoteDescription(RTCSessionDescription(offer, "offer"))
        (transceiver,) = server.getTransceivers()
        incoming.append(IncomingAudio(transceiver, lambda pcm, rate: heard.append(pcm), keys.append, ((110, 48_000),)))
        await server.setLocalDescription(await server.createAnswer())
        assert "a=rtpmap:110 telephone-event/48000" in server.localDescription.sdp
        return str(server.localDescription.sdp)

    await caller.call(exchange)
    incoming[0]._packets.start()
    try:
        await until(lambda: len(heard) > 10)
        sender = caller._sender
        assert sender is not None
        opus, sender._payload_type = sender._payload_type, 110
        for n, code in enumerate((4, 2, 16)):
            for packet in press(code):
                sender.send(packet, caller._number * FRAME_TICKS + n, marker=False)
        sender._payload_type = opus
        before = len(heard)
        await until(lambda: len(heard) > before + 10)
        assert keys == ["4", "2"]
        assert incoming[0].stats.lost == 0
    finally:
        incoming[0]._packets.stop()
        await caller.hang_up()
        await server.close()


async def test_FC_160_keys_pressed_in_a_call_become_events(serve: Any, settings: EdgeSettings) -> None:
    caller = LeanPeer()
    events: list[dict[str, Any]] = []
    channel = caller._peer.createDataChannel("oai-events")
    channel.on("message", lambda message: events.append(json.loads(message)))
    async with serve(manager_of(ScriptedEngine()), settings=settings) as edge, edge.http() as http:

        async def exchange(offer: str) -> str:
            offer = offer.replace("UDP/TLS/RTP/SAVPF 96", "UDP/TLS/RTP/SAVPF 96 110", 1)
            offer = offer.replace("a=rtpmap:96", "a=rtpmap:110 telephone-event/48000\r\na=rtpmap:96", 1)
            sdp = {"content": offer, "headers": {"Content-Type": "application/sdp"}}
            return str((await http.post("/v1/realtime/calls", **sdp)).text)

        await caller.call(exchange)
        try:
            await until(lambda: bool(events))
            sender = caller._sender
            assert sender is not None
            opus, sender._payload_type = sender._payload_type, 110
            for n, code in enumerate((4, 2, 16)):
                for packet in press(code):
                    sender.send(packet, caller._number * FRAME_TICKS + n, marker=False)
            sender._payload_type = opus

            def keys() -> list[str]:
                return [event["event"] for event in events if event["type"] == "input_audio_buffer.dtmf_event_received"]

            await until(lambda: len(keys()) == 2)
            assert keys() == ["4", "2"]
        finally:
            await caller.hang_up()
