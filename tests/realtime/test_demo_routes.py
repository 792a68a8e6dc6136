"""The page's files over HTTP."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from duologue.realtime.app import create_app
from duologue.realtime.auth import ApiKeys
from duologue.realtime.websocket import WebSocketTransport


async def idle(transport: WebSocketTransport, model: str | None) -> None:
    await transport.receive()


async def test_the_page_needs_no_key_and_is_of_the_right_type(serve: Any) -> None:
    async with serve(idle, keys=["sekrit"]) as edge, edge.http() as client:
        page = await client.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert (await client.get("/v1/models")).status_code == 401
        kinds = {"js/app.js": "text/javascript; charset=utf-8", "style.css": "text/css; charset=utf-8"}
        for name, kind in {**kinds, "icon.svg": "image/svg+xml"}.items():
            answer = await client.get(f"/demo/{name}")
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert (await client.get("/favicon.ico")).headers["content-type"] == "image/svg+xml"


async def test_a_file_that_has_not_changed_is_not_sent_again(serve: Any) -> None:
    async with serve(idle) as edge, edge.http() as client:
        first = await client.get("/demo/style.css")
        again = await client.get("/demo/style.css", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        other = await client.get("/demo/style.css", headers={"If-None-Match": '"other"'})
        assert other.status_code == 200


async def test_the_policy_lets_the_page_load_nothing_from_elsewhere(serve: Any) -> None:
    async with serve(idle) as edge, edge.http() as client:
        policy = (await client.get("/")).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http:" not in policy


async def test_nothing_outside_the_page_is_served(serve: Any) -> None:
    async with serve(idle) as edge, edge.http() as client:
        for path in ("/demo/", "/demo/__init__.py", "/demo/%2e%2e/app.py", "/demo/js/../../setup.py", "/demo/py.typed"):
            assert (await client.get(path)).status_code == 404


async def test_without_the_demo_there_is_no_page(serve: Any) -> None:
    async with serve(idle) as edge:
        paths = {getattr(route, "path", "") for route in create_app(edge.gateway, ApiKeys(()), demo=False).routes}
    assert "/v1/realtime" in paths
    assert not any(path == "/" or path.startswith("/demo/") for path in paths)


def test_every_file_that_the_page_names_exists() -> None:
    page = files("duologue.web_demo")
    for name in re.findall(r'(?:src|href)="demo/([^"]+)"', (page / "index.html").read_text()):
        assert (page / name).is_file(), name
    for module in (page / "js").iterdir():
        for name in re.findall(r"from '\./([^']+)'", module.read_text()):
            assert (page / "js" / name).is_file(), (module.name, name)
