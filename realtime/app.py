"""The HTTP surface: health, models, metrics and the Realtime WebSocket behind one check of keys."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from duologue.realtime import metrics
from duologue.realtime.auth import ApiKeys, KeyMiddleware
from duologue.realtime.call_routes import (
    accept_call,
    create_beta_call,
    create_call,
    hang_up_call,
    list_ice_servers,
    refer_call,
    reject_call,
    rejoin_call,
)
from duologue.realtime.cors import CallCors
from duologue.realtime.demo_routes import demo_routes
from duologue.realtime.endpoint import realtime_endpoint, translation_endpoint
from duologue.realtime.gateway import Gateway
from duologue.realtime.http_errors import error_response
from duologue.realtime.secret_routes import (
    create_client_secret,
    create_session,
    create_transcription_session,
    create_translation_secret,
)
from duologue.realtime.telephony import endpoint as telephony
from duologue.sessions.errors import ProtocolError

logger = logging.getLogger(__name__)

OPEN_PATHS = ("/health", telephony.PATH)
"""Paths that need no key: a load balancer's probe has none, and a telephony provider brings it in a message."""


def create_app(gateway: Gateway, keys: ApiKeys, demo: bool = True) -> Starlette:
    """The ASGI application. It may be served before the gateway is open: until then it answers 503.

    ``demo``: whether there is a page at ``/``.
    """
    page = demo_routes() if demo else []
    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", list_models),
            Route("/v1/models/{model}", show_model),
            Route("/metrics", show_metrics),
            Route("/v1/realtime/client_secrets", create_client_secret, methods=["POST"]),
            Route("/v1/realtime/translations/client_secrets", create_translation_secret, methods=["POST"]),
            Route("/v1/realtime/sessions", create_session, methods=["POST"]),
            Route("/v1/realtime/transcription_sessions", create_transcription_session, methods=["POST"]),
            Route("/v1/realtime/ice_servers", list_ice_servers),
            Route("/v1/realtime/calls", create_call, methods=["POST"]),
            Route("/v1/realtime/calls/{call_id}/accept", accept_call, methods=["POST"]),
            Route("/v1/realtime/calls/{call_id}/reject", reject_call, methods=["POST"]),
            Route("/v1/realtime/calls/{call_id}/hangup", hang_up_call, methods=["POST"]),
            Route("/v1/realtime/calls/{call_id}/refer", refer_call, methods=["POST"]),
            Route("/v1/realtime/calls/{call_id}/rejoin", rejoin_call, methods=["POST"]),
            Route("/v1/realtime", create_beta_call, methods=["POST"]),
            WebSocketRoute("/v1/realtime", realtime_endpoint),
            WebSocketRoute("/v1/realtime/translations", translation_endpoint),
            WebSocketRoute(telephony.PATH, telephony.media_stream_endpoint),
            *page,
        ],
        middleware=[
            Middleware(CallCors),
            Middleware(
                KeyMiddleware,
                keys=keys,
                secrets=gateway.secrets,
                resumables=gateway.resumables,
                opens_call=gateway.opens_call,
                open_paths=(*OPEN_PATHS, *(route.path for route in page)),
            ),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _server_error},
    )
    app.state.gateway = gateway
    app.state.keys = keys
    return app


async def health(request: Request) -> Response:
    """200 once every stage is loaded and warm, while sessions and calls are let in; else 503. Both say how each stage
    and each media worker is."""
    gateway: Gateway = request.app.state.gateway
    state, workers = gateway.engine.health(), gateway.media_workers()
    ready = state.ready and (not workers or any(worker.state == "ready" for worker in workers))
    status = "draining" if gateway.draining else "ok" if ready else "not_ready"
    body: dict[str, object] = {"status": status, "stages": state.stages}
    if workers:
        body["media_workers"] = {str(worker.index): worker.state for worker in workers}
    return JSONResponse(body, status_code=200 if status == "ok" else 503)


async def list_models(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    served = sorted(set(gateway.names.models.values()))
    return JSONResponse({"object": "list", "data": [_model(gateway, name) for name in served]})


async def show_model(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    try:
        served = gateway.names.resolve("models", request.path_params["model"], "model")
    except ProtocolError as error:
        return error_response(404, error.message, "model_not_found", "model")
    return JSONResponse(_model(gateway, served))


async def show_metrics(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    metrics.av_delay_difference.set(gateway.av_delay_difference_s)
    for worker in gateway.media_workers():
        metrics.media_worker_calls.labels(str(worker.index)).set(worker.calls)
    metrics.event_loop_tasks.set(len(asyncio.all_tasks()))
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def _model(gateway: Gateway, served: str) -> dict[str, object]:
    """A model as OpenAI lists it, and what it can do."""
    names, pipeline = gateway.names, gateway.engine.pipeline
    return {
        "id": served,
        "object": "model",
        "created": 0,
        "owned_by": "duologue",
        "aliases": sorted(alias for alias, target in names.models.items() if target == served and alias != served),
        "pipeline": pipeline.name,
        "stages": [stage.name for stage in pipeline.stages],
        "capabilities": dataclasses.asdict(pipeline.capabilities),
        "voices": sorted(set(names.voices.values())),
        "transcription_models": sorted(set(names.transcription_models.values())),
    }


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    message = f"{request.method} {request.url.path}: {error.detail}"
    code = codes.get(error.status_code, "http_error")
    return error_response(error.status_code, message, code, headers=dict(error.headers or {}))


async def _server_error(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(500, "The server failed to answer this request.", "duologue.internal_error")
