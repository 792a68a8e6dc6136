"""@openai/agents, the JavaScript agents client, over WebRTC in Chromium: only its URL changed.

Its page comes from another origin than the server, as an application's would.
"""

from __future__ import annotations

import json
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from npm_packages import node_modules
from playwright.async_api import Browser, Page
from served import Served

HERE = Path(__file__).resolve().parent
PATIENCE_MS = 90_000
STORY = "Tell me a very long story about a dragon, with many details."

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="session")]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a page that uses the client's own bundle for browsers."""
    folder = tmp_path_factory.mktemp("application")
    packages = node_modules(HERE.parent / "conformance" / "agents_js")
    (folder / "bundle").symlink_to(packages / "@openai" / "agents-realtime" / "dist" / "bundle")
    shutil.copy(HERE / "agents.html", folder / "index.html")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def client_secret(served: Served) -> str:
    """A key for a browser, as an application's server asks for one."""
    request = urllib.request.Request(
        f"{served.url}/v1/realtime/client_secrets",
        data=json.dumps({"session": {"type": "realtime"}}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["value"]


async def until(page: Page, condition: str, arg: Any = None) -> None:
    await page.wait_for_function(condition, arg=arg, timeout=PATIENCE_MS)


EVENTS = "type => agents.seen.events.filter((event) => event.type === type)"
HAS = "([type, count]) => agents.seen.events.filter((event) => event.type === type).length >= count"
CUT = "({ response }) => response.status_details?.reason === 'turn_detected'"


async def test_agents_js_speaks_over_webrtc_is_answered_and_interrupts(
    served: Served, application: str, browser: Browser
) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    await page.goto(application)
    await until(page, "() => window.agents !== undefined")
    await page.evaluate(
        "([url, key]) => agents.connect(url, key)", [f"{served.url}/v1/realtime/calls", client_secret(served)]
    )
    assert await page.evaluate("() => agents.seen.connectedMs") < 5000 or not said

    # The microphone speaks, is transcribed and answered audibly.
    transcribed = "conversation.item.input_audio_transcription.completed"
    await until(page, HAS, [transcribed, 1])
    assert "young" in (await page.evaluate(EVENTS, transcribed))[0]["transcript"].lower()
    await until(page, HAS, ["output_audio_buffer.started", 1])
    await page.wait_for_function("async () => (await agents.heard()) > 0.001", timeout=PATIENCE_MS)

    # It speaks again while a story is told.
    await page.evaluate("story => agents.seen.session.sendMessage(story)", STORY)
    await until(page, f"() => ({EVENTS})('response.done').some({CUT})")
    history = await page.evaluate("() => agents.seen.session.history")
    assert {item["role"] for item in history if item["type"] == "message"} == {"user", "assistant"}
    assert await page.evaluate("() => agents.seen.ignored") == []
    assert await page.evaluate("() => agents.seen.errors") == []
    assert said == []
    await page.evaluate("() => agents.seen.session.close()")
    await context.close()
