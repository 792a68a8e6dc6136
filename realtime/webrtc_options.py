"""Options of ``serve`` about the media of WebRTC calls, laid over the deploy file."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

if TYPE_CHECKING:
    from duologue.engine.deploy.config import DeployConfig, IceServer, WebRtcDeploy

MOST_MEDIA_WORKERS: Final = 64
CORES_PER_WORKER: Final = 4
MOST_OF_AUTO: Final = 2
"""A worker and the gateway are about equally busy with the same calls: to two of them the gateway cannot give more."""

AdvertiseAddress = Annotated[
    str | None,
    typer.Option(
        metavar="IP",
        help="Address under which clients reach this host for WebRTC media, where a NAT or a container maps it.",
    ),
]
UdpPorts = Annotated[
    str | None, typer.Option(metavar="FIRST-LAST", help="UDP ports for WebRTC media. Unset: any that is free.")
]
IceServers = Annotated[
    list[str] | None,
    typer.Option(
        "--ice-server",
        metavar="URL",
        help="STUN or TURN server (repeatable): stun:HOST:PORT, or turn:HOST:PORT?transport=udp with its account as "
        "'turn:...,USER,PASSWORD'.",
    ),
]
MediaWorkers = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto", help="Processes for the media of WebRTC calls; 0: the server's own. Unset: by its cores."
    ),
]


@dataclass(frozen=True)
class WebRtcOptions:
    """As they were given; None or empty: as in the deploy file."""

    advertise: str | None = None
    udp_ports: str | None = None
    ice_servers: Sequence[str] = ()
    media_workers: str | None = None


def laid_over(deploy: DeployConfig, options: WebRtcOptions) -> DeployConfig:
    """``deploy`` with the options that were given. Raises ``DeployError`` that names the option."""
    from msgspec.structs import replace

    from duologue.engine.deploy.config import DeployError

    webrtc = deploy.webrtc
    try:
        if options.advertise is not None:
            webrtc = replace(webrtc, advertise=_address(options.advertise))
        if options.udp_ports is not None:
            webrtc = replace(webrtc, udp_ports=_ports(options.udp_ports))
        if options.ice_servers:
            webrtc = replace(webrtc, ice_servers=[_server(text) for text in options.ice_servers])
        if options.media_workers is not None:
            webrtc = replace(webrtc, media_workers=_workers(options.media_workers))
    except ValueError as error:
        raise DeployError(str(error)) from error
    return replace(deploy, webrtc=webrtc)


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise ValueError(f"--advertise-address: '{text}' is no IP address.") from error


def _ports(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last <= 65_535:
        raise ValueError(f"--udp-ports: '{text}' is no range of ports, as 40000-40100 is.")
    return first, last


def _workers(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not re.fullmatch(r"\d{1,2}", text) or int(text) > MOST_MEDIA_WORKERS:
        raise ValueError(f"--media-workers: '{text}' is neither 'auto' nor a number up to {MOST_MEDIA_WORKERS}.")
    return int(text)


def media_worker_count(settings: WebRtcDeploy, cores: int | None = None) -> int:
    """How many media workers there are to be. ``cores``: that this process may use, if not those it finds."""
    if settings.media_workers != "auto":
        return settings.media_workers
    from duologue.engine.cores import usable_cores

    return min((cores or usable_cores()) // CORES_PER_WORKER, MOST_OF_AUTO)


def _server(text: str) -> IceServer:
    url, _, account = text.partition(",")
    username, _, credential = account.partition(",")
    if not re.fullmatch(r"(stun|turns?):[^,\s]+", url) or (account and not credential):
        shown = url if account else text
        raise ValueError(f"--ice-server: '{shown}' is not 'stun:HOST:PORT' or 'turn:HOST:PORT,USER,PASSWORD'.")
    from duologue.engine.deploy.config import IceServer

    return IceServer(urls=[url], username=username or None, credential=credential or None)
