"""Who may connect: one check of API keys for HTTP and WebSocket alike.

A key may come as ``Authorization: Bearer``, as ``X-API-Key``, as the query parameter ``api_key``, or as the subprotocol
``openai-insecure-api-key.<key>``, since browsers cannot set headers on a WebSocket.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Iterable

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from duologue.realtime.client_secrets import PREFIX, ClientSecrets
from duologue.realtime.http_errors import error_response
from duologue.realtime.resume import Resumables

SUBPROTOCOL = "realtime"
"""The subprotocol that is selected when a client offers it."""

SECRET_PATHS = ("/v1/realtime", "/v1/realtime/calls", "/v1/realtime/translations", "/v1/realtime/ice_servers")
"""Paths that a client secret opens; minting another is not among them, nor is joining somebody's call."""

SCOPE_SECRET = "duologue.client_secret"
"""Where in a connection's scope the client secret stands that it came with."""

_KEY_SUBPROTOCOL = "openai-insecure-api-key."


OpensCall = Callable[[str, Iterable[str]], bool]
"""Whether one of the keys offered is the token of a call, given by its id."""


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

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        secrets: ClientSecrets,
        resumables: Resumables,
        open_paths: Collection[str] = (),
        opens_call: OpensCall = lambda call_id, offered: False,
    ) -> None:
        self._app = app
        self._keys = keys
        self._secrets = secrets
        self._resumables = resumables
        self._open_paths = frozenset(open_paths)
        self._opens_call = opens_call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in self._open_paths:
            return await self._app(scope, receive, send)
        connection = HTTPConnection(scope)
        offered = offered_keys(connection)
        secret = None
        if scope["path"] in SECRET_PATHS and "call_id" not in connection.query_params:
            secret = self._secrets.find(offered)
        # A secret that opens nothing here is refused even where no key is asked for: whoever holds it was to have a
        # session of one configuration, and no more.
        useless = secret is None and scope["path"] in SECRET_PATHS and any(key.startswith(PREFIX) for key in offered)
        by_token = self._resumes(connection) or self._rejoins(scope["path"], offered)
        if secret is not None or (self._keys.accept(offered) and not useless) or by_token:
            return await self._app({**scope, SCOPE_SECRET: secret}, receive, send)
        message = "Incorrect API key provided." if offered else "No API key provided: send 'Authorization: Bearer KEY'."
        response = error_response(401, message, "unauthorized", headers={"WWW-Authenticate": "Bearer"})
        if scope["type"] == "websocket":
            return await WebSocket(scope, receive, send).send_denial_response(response)
        return await response(scope, receive, send)

    def _rejoins(self, path: str, offered: Iterable[str]) -> bool:
        """Whether a request shows the token of the call that it wants to join again."""
        match path.split("/"):
            case ["", "v1", "realtime", "calls", call_id, "rejoin"]:
                return self._opens_call(call_id, offered)
        return False

    def _resumes(self, connection: HTTPConnection) -> bool:
        """Whether a connection shows the token of a session that waits for it: the session outlives its secret."""
        token = connection.query_params.get("resume")
        return connection.scope["path"] == "/v1/realtime" and token is not None and token in self._resumables
