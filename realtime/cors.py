"""Cross-origin requests: a page from anywhere may place a call, and nothing else."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

PATHS = ("/v1/realtime/calls", "/v1/realtime", "/v1/realtime/ice_servers")
HEADERS = ("authorization", "content-type", "openai-beta", "x-openai-agents-sdk")
REJOIN_HEADER = "x-duologue-rejoin"
"""Where the answer to an offer has the token with which a new peer connection joins the same call."""


class CallCors:
    """CORS for the paths that take an offer, and for what one needs to make it.

    Outside the check of keys: a preflight has none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._cross_origin = CORSMiddleware(
            app,
            allow_origins=["*"],
            allow_methods=["GET", "POST"],
            allow_headers=HEADERS,
            expose_headers=["Location", "Link", REJOIN_HEADER],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        offered = scope["type"] == "http" and (scope["path"] in PATHS or scope["path"].endswith("/rejoin"))
        await (self._cross_origin if offered else self._app)(scope, receive, send)
