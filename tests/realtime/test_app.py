"""The HTTP surface besides the WebSocket."""

from __future__ import annotations

from typing import Any

from duologue.realtime.websocket import WebSocketTransport


async def idle(transport: WebSocketTransport, model: str | None) -> None:
    await transport.receive()


async def test_health_follows_the_engine_and_the_drain(serve: Any) -> None:
    async with serve(idle) as edge, edge.http() as http:
        assert ((await http.get("/health")).status_code, (await http.get("/health")).json()["status"]) == (200, "ok")
        edge.engine.ready = False
        answer = await http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "not_ready")
        assert answer.json()["stages"] == {"language_model": "loading"}
        edge.engine.ready = True
        edge.gateway.draining = True
        answer = await http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")


async def test_models_are_listed_with_what_they_can_do(serve: Any) -> None:
    async with serve(idle) as edge, edge.http() as http:
        listing = (await http.get("/v1/models")).json()
        assert listing["object"] == "list"
        (model,) = listing["data"]
        assert (model["id"], model["object"], model["owned_by"]) == ("tiny", "model", "duologue")
        assert model["aliases"] == ["default", "gpt-realtime"]
        assert model["capabilities"]["audio_out"] is True
        assert model["voices"] == ["heart"]
        assert (await http.get("/v1/models/gpt-realtime")).json() == model
        missing = await http.get("/v1/models/gpt-9")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert "tiny" in missing.json()["error"]["message"]


async def test_metrics_show_what_was_refused_and_the_rooms_below(serve: Any) -> None:
    def refused(text: str) -> float:
        values = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(REFUSED)]
        return float(values[0]) if values else 0.0

    async with serve(idle) as edge, edge.http() as http:
        before = refused((await http.get("/metrics")).text)
        async with edge.connect("?model=gpt-9"):
            pass
        text = (await http.get("/metrics")).text
        assert refused(text) == before + 1
        for name in ("duologue_sessions_open", "duologue_requests_total", "process_resident_memory_bytes"):
            assert name in text


REFUSED = 'duologue_connections_refused_total{reason="model_not_found"}'


async def test_errors_are_json_in_openai_shape(serve: Any) -> None:
    async with serve(idle) as edge, edge.http() as http:
        for answer, status, code in (
            (await http.get("/nothing"), 404, "not_found"),
            (await http.post("/health"), 405, "method_not_allowed"),
        ):
            assert answer.status_code == status
            error = answer.json()["error"]
            assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, None)
        edge.engine.health = None  # type: ignore[method-assign]
        answer = await http.get("/health")
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
