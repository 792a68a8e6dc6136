"""STUN and TURN servers as clients are told them, with accounts that end by themselves where a TURN server takes such.

Needs no WebRTC library: servers behind a gateway that has none may still be asked for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Sequence

import msgspec

from duologue.engine.deploy.config import IceServer, WebRtcDeploy


class ClientIceServer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of ``iceServers`` in an ``RTCConfiguration`` (WebRTC 1.0, section 4.2.4)."""

    urls: list[str]
    username: str | None = None
    credential: str | None = None


class ClientIceServers(msgspec.Struct, frozen=True):
    """An ``RTCConfiguration``; browsers take it as it is."""

    iceServers: list[ClientIceServer]
    ttl: int
    """Seconds for which the accounts in it are good."""


def account(server: IceServer, ttl_s: float, name: str = "client") -> tuple[str | None, str | None]:
    """User name and password: those that were given, or of the shared secret, good until ``ttl_s`` from now.

    The form is that of ``draft-uberti-behave-turn-rest-00``, which coturn calls ``use-auth-secret``.
    """
    if server.secret is None:
        return server.username, server.credential
    username = f"{int(time.time() + ttl_s)}:{name}"
    digest = hmac.new(server.secret.encode(), username.encode(), hashlib.sha1).digest()
    return username, base64.b64encode(digest).decode()


def for_clients(settings: WebRtcDeploy) -> ClientIceServers:
    """What a client gets: never a password that does not end, unless the deploy file says that it may."""
    servers = [server for server in settings.ice_servers if server.shared]
    entries = [ClientIceServer(server.urls, *account(server, settings.turn_account_s)) for server in servers]
    return ClientIceServers(entries, int(settings.turn_account_s))


def link_headers(servers: Sequence[ClientIceServer]) -> list[str]:
    """A ``Link`` header for each URL, as WHIP has them (RFC 9725, section 4.6)."""
    links = []
    for server in servers:
        parts = ['rel="ice-server"']
        if server.username is not None and server.credential is not None:
            named = {"username": server.username, "credential": server.credential, "credential-type": "password"}
            parts += [f"{name}={json.dumps(value)}" for name, value in named.items()]
        links += [f"<{url}>; {'; '.join(parts)}" for url in server.urls]
    return links
