"""A bad network on loopback between two WebRTC ends: loses, delays, reorders or repeats datagrams, or skews time.

Each end is told the link's address in place of the other's; the link passes on what it gets, from the address by which
the receiver knows the sender.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, field
from typing import Any

_CANDIDATE = re.compile(r"^a=candidate:(?P<head>\S+ 1 udp \d+) (?P<host>\S+) (?P<port>\d+) typ host.*$", re.MULTILINE)


@dataclass
class Impairments:
    """What happens to the datagrams of one direction. May be changed at any time."""

    loss: float = 0.0
    """Share that is lost, 0 to 1."""
    jitter_s: float = 0.0
    """Each is late by something between nothing and this, evenly spread, so that they overtake each other."""
    duplicates: float = 0.0
    """Share that comes twice."""
    skew: float = 0.0
    """Seconds by which each second is stretched: 0.0002 is a sender whose clock is 200 ppm slow."""
    drop_next: int = 0
    """So many packets of sound or video (RTP, not RTCP) are lost, whatever else."""
    drop_if: Any = None
    """``drop_if(data)``: lost if true."""


@dataclass
class LinkCounts:
    """What happened in one direction."""

    passed: int = 0
    lost: int = 0
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)
    """Time (``loop.time()``) and first twelve bytes of each datagram that was passed on, if ``LossyLink.record``."""


class LossyLink:
    """Both directions of a link, as an async context manager. Only media (RTP, RTCP) suffers, never the set-up."""

    def __init__(self, seed: int = 0) -> None:
        self.to_answerer = Impairments()
        self.to_offerer = Impairments()
        self.counts_to_answerer = LinkCounts()
        self.counts_to_offerer = LinkCounts()
        self.record = False
        self._rng = random.Random(seed)
        self._offerer_side = _Side(self)
        self._answerer_side = _Side(self)

    async def __aenter__(self) -> LossyLink:
        loop = asyncio.get_running_loop()
        for side in (self._offerer_side, self._answerer_side):
            await loop.create_datagram_endpoint(lambda side=side: side, local_addr=("127.0.0.1", 0))
        self._began = loop.time()
        return self

    async def __aexit__(self, *error: object) -> None:
        for side in (self._offerer_side, self._answerer_side):
            if side.transport is not None:
                side.transport.close()

    def offer(self, sdp: str) -> str:
        """The offer as the answerer gets it."""
        return self._through(sdp, self._offerer_side, self._answerer_side)

    def answer(self, sdp: str) -> str:
        """The answer as the offerer gets it."""
        return self._through(sdp, self._answerer_side, self._offerer_side)

    def _through(self, sdp: str, own: _Side, other: _Side) -> str:
        """``sdp`` with one candidate: the ``other`` side's socket in place of the end that is on its ``own``."""
        found = [match for match in _CANDIDATE.finditer(sdp) if ":" not in match["host"]]
        if not found:
            raise ValueError("sdp: no IPv4 host candidate")
        keep = next((match for match in found if match["host"] == "127.0.0.1"), found[0])
        own.peer = (keep["host"], int(keep["port"]))
        host, port = other.transport.get_extra_info("sockname")
        # Several lines say the same candidate once per section; the bundle needs it in the first.
        lines = [line for line in sdp.splitlines() if not line.startswith("a=candidate:")]
        first = next(number for number, line in enumerate(lines) if line.startswith("m="))
        lines.insert(first + 2, f"a=candidate:{keep['head']} {host} {port} typ host")
        return "\r\n".join(lines) + "\r\n"

    def pass_on(self, side: _Side, data: bytes) -> None:
        """A datagram came in at ``side``."""
        to_answerer = side is self._offerer_side
        other = self._answerer_side if to_answerer else self._offerer_side
        impairments = self.to_answerer if to_answerer else self.to_offerer
        counts = self.counts_to_answerer if to_answerer else self.counts_to_offerer
        self._deliver(other, data, impairments, counts)

    def _deliver(self, other: _Side, data: bytes, impairments: Impairments, counts: LinkCounts) -> None:
        loop = asyncio.get_running_loop()
        if not data or data[0] < 128:
            other.send(data, counts, record=False)
            return
        if impairments.drop_next and not _is_rtcp(data):
            impairments.drop_next -= 1
            counts.lost += 1
            return
        if impairments.drop_if is not None and impairments.drop_if(data):
            counts.lost += 1
            return
        if self._rng.random() < impairments.loss:
            counts.lost += 1
            return
        copies = 2 if self._rng.random() < impairments.duplicates else 1
        for _ in range(copies):
            delay = self._rng.random() * impairments.jitter_s + (loop.time() - self._began) * impairments.skew
            if delay > 0:
                loop.call_later(delay, other.send, data, counts, self.record)
            else:
                other.send(data, counts, self.record)


def _is_rtcp(data: bytes) -> bool:
    """On a port that both share, by the packet's type (RFC 5761, section 4)."""
    return len(data) > 1 and 192 <= data[1] <= 223


class _Side(asyncio.DatagramProtocol):
    """The link's socket towards one end."""

    def __init__(self, link: LossyLink) -> None:
        self._link = link
        self.transport: Any = None
        self.peer: tuple[str, int] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.peer = address[:2]
        self._link.pass_on(self, data)

    def send(self, data: bytes, counts: LinkCounts, record: bool) -> None:
        """Give a datagram to the end on this side."""
        if self.peer is None or self.transport is None or self.transport.is_closing():
            return
        counts.passed += 1
        if record:
            counts.arrivals.append((asyncio.get_running_loop().time(), data[:12]))
        self.transport.sendto(data, self.peer)
