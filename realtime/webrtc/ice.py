"""Where a call's media is reached: local addresses, a range of ports, an address before a NAT, STUN and TURN.

aioice 0.13 (which aiortc 1.16 uses) binds every socket to port 0 and knows nothing of NATs that cannot be asked. Its
``Connection`` gathers through one method, ``get_component_candidates``; :func:`gather_by` puts another in its place, on
that one object. Both versions are pinned for this.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import random
import socket
from collections.abc import Iterator
from functools import partial
from typing import Final

from aioice import Candidate, Connection
from aioice.candidate import candidate_foundation, candidate_priority
from aioice.ice import StunProtocol, get_host_addresses, server_reflexive_candidate
from aiortc import RTCConfiguration, RTCIceServer, RTCIceTransport
from aiortc.rtcconfiguration import RTCIceTransportPolicy

from duologue.engine.deploy.config import WebRtcDeploy
from duologue.realtime.ice_servers import account

LOOPBACK: Final = "127.0.0.1"
_RECEIVE_BUFFER: Final = 512 * 1024
_GATHER_TIMEOUT_S: Final = 5


class NoPort(OSError):
    """Every port of the configured range is in use."""


def configuration(settings: WebRtcDeploy) -> RTCConfiguration:
    """What the library is to know. Without servers it must be told so: left alone it asks a public one."""
    accounts = [(server, *account(server, settings.turn_account_s, "duologue")) for server in settings.ice_servers]
    servers = [RTCIceServer(urls=list(server.urls), username=user, credential=word) for server, user, word in accounts]
    policy = RTCIceTransportPolicy.RELAY if settings.relay_only else RTCIceTransportPolicy.ALL
    return RTCConfiguration(iceServers=servers, iceTransportPolicy=policy)


def gather_by(settings: WebRtcDeploy, transport: RTCIceTransport) -> None:
    """Let a transport that has not gathered yet do so by ``settings``."""
    connection: Connection = transport._connection
    connection.get_component_candidates = partial(_gather, settings, connection)  # type: ignore[method-assign]


def host_addresses(settings: WebRtcDeploy) -> list[str]:
    """The local addresses that sockets are bound to: those that are configured, else all; loopback if it is alone."""
    if settings.addresses:
        return list(settings.addresses)
    return get_host_addresses(use_ipv4=True, use_ipv6=True) or [LOOPBACK]


async def _gather(
    settings: WebRtcDeploy, connection: Connection, component: int, addresses: list[str]
) -> list[Candidate]:
    """Candidates of a connection, in the place of ``Connection.get_component_candidates``.

    Raises :class:`NoPort`.
    """
    candidates: list[Candidate] = []
    protocols: list[StunProtocol] = []
    if not settings.relay_only:
        for address in host_addresses(settings):
            if (protocol := await _bound(settings, connection, component, address)) is not None:
                protocols.append(protocol)
                connection._protocols.append(protocol)  # at once, to be closed with it if another address has no port
                candidates.append(protocol.local_candidate)
    candidates += _advertised(settings, candidates)
    if connection.stun_server is not None:
        candidates += await _reflexive(protocols, connection.stun_server)
    # what the class does without host addresses is to ask the TURN server
    relayed = await Connection.get_component_candidates(connection, component, [], _GATHER_TIMEOUT_S)
    return candidates + relayed


def _ports(bounds: tuple[int, int] | None) -> Iterator[int]:
    """Ports to try: any that is free (0), or every one of a range in random order."""
    if bounds is None:
        return iter((0,))
    ports = range(bounds[0], bounds[1] + 1)
    return iter(random.sample(ports, len(ports)))


async def _bound(settings: WebRtcDeploy, connection: Connection, component: int, address: str) -> StunProtocol | None:
    """A socket at a port of the range; None where the address is none of this host's."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in _ports(settings.udp_ports):
        # Bound here and not by the loop, since uvloop does not say why it could not.
        sock = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sock.setblocking(False)
            sock.bind((address, port))
        except OSError as error:
            sock.close()
            if not _in_use(error):
                return None
            continue
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        transport, protocol = await loop.create_datagram_endpoint(lambda: StunProtocol(connection), sock=sock)
        host, bound_port = transport.get_extra_info("sockname")[:2]
        protocol.local_candidate = Candidate(
            foundation=candidate_foundation("host", "udp", host),
            component=component,
            transport="udp",
            priority=candidate_priority(component, "host"),
            host=host,
            port=bound_port,
            type="host",
        )
        return protocol
    raise NoPort(f"All UDP ports of {settings.udp_ports} are in use.")


def _in_use(error: OSError) -> bool:
    return error.errno in (errno.EADDRINUSE, errno.EACCES)


def _advertised(settings: WebRtcDeploy, hosts: list[Candidate]) -> list[Candidate]:
    """The same sockets as they are seen from beyond a NAT that keeps port numbers."""
    if settings.advertise is None:
        return []
    version = ipaddress.ip_address(settings.advertise).version
    return [
        Candidate(
            foundation=candidate_foundation("srflx", "udp", settings.advertise),
            component=host.component,
            transport="udp",
            priority=candidate_priority(host.component, "srflx"),
            host=settings.advertise,
            port=host.port,
            type="srflx",
            related_address=host.host,
            related_port=host.port,
        )
        for host in hosts
        if ipaddress.ip_address(host.host).version == version
    ]


async def _reflexive(protocols: list[StunProtocol], stun_server: tuple[str, int]) -> list[Candidate]:
    """What a STUN server says of the IPv4 sockets; those that get no answer in time are left out."""
    asked = [
        asyncio.create_task(server_reflexive_candidate(protocol, stun_server))
        for protocol in protocols
        if ipaddress.ip_address(protocol.local_candidate.host).version == 4
    ]
    if not asked:
        return []
    try:
        done, _ = await asyncio.wait(asked, timeout=_GATHER_TIMEOUT_S)
    finally:
        for task in asked:
            task.cancel()
    return [task.result()[0] for task in done if task.exception() is None]
