"""Our media against a stock aiortc peer, over a link that loses, delays and repeats."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import numpy as np
import pytest
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from webrtc_call import Call, ToneTrack, calling, until

from duologue.codecs.pcm import PCM16
from duologue.realtime.bench.webrtc_link import Impairments, LossyLink
from duologue.realtime.webrtc.aiortc_wire import agree_on_opus
from duologue.realtime.webrtc.jitter import JitterStats

RATE = 24_000


def tone(seconds: float, hertz: float = 440.0, level: float = 8000.0) -> bytes:
    at = np.arange(int(seconds * RATE))
    return (level * np.sin(2 * np.pi * hertz * at / RATE)).astype(PCM16).tobytes()


def pitch(samples: np.ndarray, rate: int) -> float:
    return float(np.fft.rfftfreq(len(samples), 1 / rate)[np.abs(np.fft.rfft(samples)).argmax()])


def steepest(samples: np.ndarray) -> float:
    return float(np.abs(np.diff(samples)).max())


async def heard_for(call: Call, seconds: float) -> np.ndarray:
    """What the server hears in the next ``seconds`` of sound."""
    start = len(call.server_pcm())
    await until(lambda: len(call.server_pcm()) >= start + seconds * RATE)
    return call.server_pcm()[start:]


async def test_both_ends_hear_each_other() -> None:
    async with calling() as call:
        call.outgoing.push("r", "i", tone(1.0))
        call.outgoing.finish("r")
        await until(lambda: ("stopped", "r", 0) in call.listener.events)
        assert pitch(await heard_for(call, 1.0), RATE) == pytest.approx(220, abs=5)
        await until(lambda: len(call.peer_pcm()) > 48_000)
        heard = call.peer_pcm()
        assert np.abs(heard).max() > 6000
        assert pitch(heard, 48_000) == pytest.approx(440, abs=5)
        assert call.listener.played == {"i": RATE}
        assert call.listener.events == [("started", "r", 0), ("stopped", "r", 0)]


async def test_FC_147_one_lost_packet_costs_no_hold_afterwards() -> None:
    async with calling() as call:
        await heard_for(call, 0.5)
        call.link.to_answerer.drop_next = 1
        await heard_for(call, 1.0)
        stats = call.incoming.stats
        assert stats.lost == 1
        held = stats.held_s
        after = await heard_for(call, 1.0)
        assert call.incoming.stats.held_s - held < 0.1
        assert steepest(after) < 1.5 * 2 * np.pi * 220 / RATE * 8000


async def test_what_the_link_is_to_lose_is_sound_and_not_the_report_that_comes_before_it() -> None:
    passed: list[bytes] = []
    report, sound = bytes([128, 200]) + bytes(26), bytes([128, 96]) + bytes(40)
    async with LossyLink() as link:
        link.to_answerer.drop_next = 1
        link._answerer_side.send = lambda data, counts, record: passed.append(data)  # type: ignore[method-assign]
        for data in (report, sound, sound):
            link.pass_on(link._offerer_side, data)
    assert passed == [report, sound]


async def test_FC_156_five_percent_of_loss_are_concealed_without_a_click() -> None:
    async with calling(seed=3) as call:
        clean = await heard_for(call, 1.0)
        call.link.to_answerer.loss = 0.05
        lossy = await heard_for(call, 4.0)
        assert call.incoming.stats.lost > 3
        # A gap that is left or cut out of this tone is a step of up to 16,000.
        assert steepest(lossy) < 4 * steepest(clean)
        # Most of it is there: a hole is filled with what it is taken for.
        assert np.abs(lossy).mean() > 0.7 * np.abs(clean).mean()


async def test_jitter_and_repeats_are_put_right() -> None:
    async with calling(seed=5) as call:
        call.link.to_answerer = Impairments(jitter_s=0.040, duplicates=0.1)
        call.link.record = True
        await heard_for(call, 2.0)
        clean_steps = 2 * np.pi * 220 / RATE * 8000
        assert steepest(await heard_for(call, 2.0)) < 4 * clean_steps
        arrivals = call.link.counts_to_answerer.arrivals
        numbers = [int.from_bytes(head[2:4], "big") for _, head in arrivals if is_rtp(head)]
        highest = [0, *itertools.accumulate(((n - numbers[0]) & 0xFFFF for n in numbers), max)]
        overtaken = sum((n - numbers[0]) & 0xFFFF < most for n, most in zip(numbers, highest, strict=False))
        assert overtaken > 20
        # What comes too late is what this machine adds to the link's 40 ms, and what came before they were known.
        assert call.incoming.stats.lost < overtaken / 2


async def test_FC_107_a_fast_microphone_is_followed() -> None:
    async with calling(ToneTrack(ppm=2000)) as call:
        await heard_for(call, 3.0)
        stats = call.incoming.stats
        assert (stats.lost, stats.silence_ticks) == (0, 0)


async def test_FC_124_two_calls_keep_their_own_time() -> None:
    async with calling() as first:
        first.outgoing.push("r", "i", tone(2.0))
        await heard_for(first, 0.4)
        async with calling() as second:
            second.outgoing.push("r", "i", tone(1.0))
            second.outgoing.finish("r")
            first.outgoing.finish("r")
            await until(lambda: ("stopped", "r", 0) in second.listener.events)
            assert second.listener.played == {"i": RATE}
            second.outgoing.clear()
        await until(lambda: ("stopped", "r", 0) in first.listener.events)
        assert first.listener.played == {"i": 2 * RATE}


async def test_an_interruption_is_heard_at_once_and_does_not_click() -> None:
    async with calling() as call:
        call.outgoing.push("r", "i", tone(10.0))
        await until(lambda: call.listener.played.get("i", 0) > RATE // 2)
        call.outgoing.clear()
        (event,) = [event for event in call.listener.events if event[0] == "cleared"]
        played = call.listener.played["i"]
        assert event[2] == played < RATE
        await until(lambda: call.outgoing._resting)
        await until(lambda: np.abs(call.peer_heard[-1][1].to_ndarray()).max() < 100)
        heard = call.peer_pcm()
        assert steepest(heard) < 1.5 * 2 * np.pi * 440 / 48_000 * 8000
        loud = np.flatnonzero(np.abs(heard) > 200)
        # All of what was counted, then a frame that fades out over 10 ms (and what the codec's filters smear).
        assert played / RATE - 0.01 <= (loud[-1] - loud[0]) / 48_000 <= played / RATE + 0.025


async def test_silence_costs_a_packet_now_and_then_and_time_goes_on_in_it() -> None:
    async with calling() as call:
        await until(lambda: call.outgoing._resting)
        call.link.record = True
        sent = call.link.counts_to_offerer.passed
        await asyncio.sleep(1.2)
        assert call.link.counts_to_offerer.passed - sent < 10
        began = time.monotonic()
        call.outgoing.push("r", "i", tone(0.5))
        call.outgoing.finish("r")
        assert call.listener.played["i"] == RATE // 50
        await until(lambda: ("stopped", "r", 0) in call.listener.events)
        assert time.monotonic() - began < 1.5
        times = [frame.pts for _, frame in call.peer_heard]
        assert times == sorted(times)
        sound = [
            (at, int.from_bytes(head[4:8], "big")) for at, head in call.link.counts_to_offerer.arrivals if is_rtp(head)
        ]
        ticks = (sound[-1][1] - sound[0][1]) & 0xFFFFFFFF
        assert ticks / 48_000 == pytest.approx(sound[-1][0] - sound[0][0], abs=0.1)


def is_rtp(head: bytes) -> bool:
    return not 192 <= head[1] <= 223


async def test_reports_tell_each_side_what_the_other_lost() -> None:
    async with calling(seed=8) as call:
        losing = random.Random(1)
        for impairments in (call.link.to_answerer, call.link.to_offerer):
            impairments.drop_if = lambda data: is_rtp(data) and losing.random() < 0.3
        call.outgoing.push("r", "i", tone(30.0))

        async def lost(end: RTCPeerConnection) -> int:
            reports = (await end.getSenders()[0].getStats()).values()
            return max((report.packetsLost for report in reports if report.type == "remote-inbound-rtp"), default=0)

        async def sent_by_server() -> int:
            reports = (await call.peer.getReceivers()[0].getStats()).values()
            return max((report.packetsSent for report in reports if report.type == "remote-outbound-rtp"), default=0)

        async with asyncio.timeout(20):
            while not (await lost(call.peer) and await lost(call.server)):  # noqa: ASYNC110 - aiortc tells nobody
                await asyncio.sleep(0.1)
            while not call.outgoing._expected_loss:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            while await sent_by_server() < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def test_a_stalled_event_loop_catches_up_and_then_is_on_time() -> None:
    async with calling() as call:
        call.outgoing.push("r", "i", tone(5.0))
        await until(lambda: call.listener.played.get("i", 0) > 0)
        before = call.listener.played["i"]
        time.sleep(0.09)  # noqa: ASYNC251 - the stall
        await asyncio.sleep(0.03)
        assert call.listener.played["i"] - before >= 4 * 480
        time.sleep(0.5)  # noqa: ASYNC251 - a stall that is too long to catch up
        before = call.listener.played["i"]
        await asyncio.sleep(0.01)
        assert call.listener.played["i"] - before <= 7 * 480


async def test_hanging_up_ends_the_microphone() -> None:
    async with calling() as call:
        await call.peer.close()
        await until(lambda: call.incoming._track.readyState == "ended")


async def test_an_offer_without_opus_is_refused() -> None:
    offerer, answerer = (RTCPeerConnection(RTCConfiguration(iceServers=[])) for _ in range(2))
    offerer.addTrack(ToneTrack())
    await offerer.setLocalDescription(await offerer.createOffer())
    lines = offerer.localDescription.sdp.replace("UDP/TLS/RTP/SAVPF 96 9 0 8", "UDP/TLS/RTP/SAVPF 0 8").splitlines()
    sdp = "\r\n".join(line for line in lines if "opus" not in line and "G722" not in line) + "\r\n"
    await answerer.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
    with pytest.raises(ValueError, match="Opus"):
        agree_on_opus(answerer.getTransceivers()[0])
    await offerer.close()
    await answerer.close()


async def test_the_answer_asks_for_correction() -> None:
    async with calling() as call:
        assert "useinbandfec=1" in call.server.localDescription.sdp
        assert "PCMU" not in call.server.localDescription.sdp
        assert isinstance(call.incoming.stats, JitterStats)
