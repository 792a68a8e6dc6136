"""One check of keys: every place a key may stand, on HTTP and on the WebSocket."""

from __future__ import annotations

from typing import Any

import pytest
import websockets

from duologue.realtime.auth import ApiKeys
from duologue.realtime.websocket import WebSocketTransport

KEY = "sekrit-1"


def ways(key: str) -> dict[str, dict[str, Any]]:
    """How a key may be sent over a WebSocket: arguments of ``Edge.connect``."""
    return {
        "bearer": {"additional_headers": {"Authorization": f"Bearer {key}"}},
        "bearer in small letters": {"additional_headers": {"Authorization": f"bearer {key}"}},
        "header": {"additional_headers": {"X-API-Key": key}},
        "query": {"query": f"?api_key={key}"},
        "subprotocol": {"subprotocols": ["realtime", f"openai-insecure-api-key.{key}", "openai-agents-sdk.0.14.3"]},
    }


async def idle(transport: WebSocketTransport, model: str | None) -> None:
    while await transport.receive() is not None:
        pass


@pytest.mark.parametrize("way", ways(KEY))
async def test_fc_170_a_key_works_wherever_it_stands(serve: Any, way: str) -> None:
    async with serve(idle, keys=["another", KEY]) as edge, edge.connect(**ways(KEY)[way]) as socket:
        assert socket.subprotocol == ("realtime" if way == "subprotocol" else None)
        assert (await socket.ping()) is not None


@pytest.mark.parametrize("way", [*ways("wrong"), "none"])
async def test_fc_170_a_wrong_or_missing_key_is_refused_before_the_upgrade(serve: Any, way: str) -> None:
    async with serve(idle, keys=[KEY]) as edge:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await edge.connect(**ways("wrong").get(way, {}))
        assert refused.value.response.status_code == 401
        assert b'"type":"invalid_request_error"' in refused.value.response.body
        assert edge.sessions.served == []


@pytest.mark.parametrize("way", ["bearer", "header", "query"])
async def test_fc_170_http_uses_the_same_check(serve: Any, way: str) -> None:
    def request(key: str) -> dict[str, Any]:
        arguments = ways(key)[way]
        return {"headers": arguments.get("additional_headers"), "url": "/v1/models" + arguments.get("query", "")}

    async with serve(idle, keys=[KEY]) as edge, edge.http() as http:
        assert (await http.get(**request(KEY))).status_code == 200
        answer = await http.get(**request("wrong"))
        assert answer.status_code == 401
        assert set(answer.json()["error"]) == {"message", "type", "code", "param"}
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/health")).status_code == 200


async def test_without_keys_everybody_is_let_in(serve: Any) -> None:
    async with serve(idle) as edge, edge.connect(), edge.http() as http:
        assert (await http.get("/v1/models")).status_code == 200


def test_keys_that_are_not_ascii_are_compared_too() -> None:
    keys = ApiKeys(["schlüssel"])
    assert keys.accept(["schlüssel"])
    assert not keys.accept(["schlussel", ""])
    assert not keys.accept([])
