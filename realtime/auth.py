"""Who may connect: one check of API keys for HTTP and WebSocket alike.

A key may come as ``Authorization: Bearer``, as ``X-API-Key``, as the query parameter ``api_key``, or as the subprotocol
``openai-insecure-api-key.<key>``, since browsers cannot set headers on a WebSocket.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from duologue.realtime.client_secrets import PREFIX, ClientSecrets
from duologue.realtime.http_errors import error_response

SUBPROTOCOL = "realtime"
"""The subprotocol that is selected when a client offers it."""

SECRET_PATHS = ("/v1/realtime",)
"""Paths that a client secret opens; minting another is not among them."""

SCOPE_SECRET = "duologue.client_secret"
"""Where in a connection's scope the client secret stands that it came with."""

_KEY_SUBPROTOCOL = "openai-insecure-api-key."


class ApiKeys:
    """The keys that are accepted; with none, everybody is."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = tuple(key.encode() for key in keys)

    @property
    def required(self) -> bool:
        return bool(self._keys)

    def accept(self, offered: Iterable[str]) -> bool:
        """Whether one of the offered keys is right. Compares in constant time, each offer with each key."""
        if not self._keys:
            return True
        matches = [hmac.compare_digest(offer.encode(), key) for offer in offered for key in self._keys]
        return any(matches)


def offered_keys(connection: HTTPConnection) -> list[str]:
    """Every key in a request, wherever it stands."""
    offered = []
    scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        offered.append(credentials.strip())
    if "x-api-key" in connection.headers:
        offered.append(connection.headers["x-api-key"])
    offered += connection.query_params.getlist("api_key")
    for name in connection.scope.get("subprotocols", ()):
        if name.startswith(_KEY_SUBPROTOCOL):
            offered.append(name.removeprefix(_KEY_SUBPROTOCOL))
    return offered


class KeyMiddleware:
    """Answers 401 to a request or an upgrade without a right key, before anything else sees it."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, secrets: ClientSecrets, open_paths: Collection[str] = ()) -> None:
        self._app = app
        self._keys = keys
        self._secrets = secrets
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in self._open_paths:
            return await self._app(scope, receive, send)
        connection = HTTPConnection(scope)
        offered = offered_keys(connection)
        secret, stale = None, False
        if scope["path"] in SECRET_PATHS:
            secret = self._secrets.find(offered)
            # refused even where no key is asked for: the session would not be the one that was configured
            stale = secret is None and any(key.startswith(PREFIX) for key in offered)
        if secret is not None or (self._keys.accept(offered) and not stale):
            return await self._app({**scope, SCOPE_SECRET: secret}, receive, send)
        message = "Incorrect API key provided." if offered else "No API key provided: send 'Authorization: Bearer KEY'."
        response = error_response(401, message, "unauthorized", headers={"WWW-Authenticate": "Bearer"})
        if scope["type"] == "websocket":
            return await WebSocket(scope, receive, send).send_denial_response(response)
        return await response(scope, receive, send)
