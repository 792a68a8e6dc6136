"""Real sessions over a scripted engine, seen through a WebSocket as JSON."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import websockets
from scripted_engine import TIMEOUT_S, ScriptedEngine
from session_driver import NAMES

from duologue.sessions.config import Limits
from duologue.sessions.manager import ManagerSettings, SessionManager

Event = dict[str, Any]
MESSAGE = {
    "type": "conversation.item.create",
    "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
}


def manager_of(engine: ScriptedEngine, **settings: Any) -> SessionManager:
    defaults = {"limits": Limits(), "speculate": False, **settings}
    return SessionManager(
        engine,  # type: ignore[arg-type]
        ManagerSettings(names=NAMES, model="assistant", voice="heart", instructions="", **defaults),
    )


async def say(connection: Any, *events: Event) -> None:
    for event in events:
        await connection.send(json.dumps(event))


async def hear(connection: Any) -> Event:
    event: Event = json.loads(await asyncio.wait_for(connection.recv(), TIMEOUT_S))
    return event


async def hear_until(connection: Any, kind: str) -> list[Event]:
    """Everything up to and including the next event of that type."""
    heard = [await hear(connection)]
    while heard[-1]["type"] != kind:
        heard.append(await hear(connection))
    return heard


async def close_code(connection: Any) -> int:
    """The code with which the server closes, whatever it says before."""
    async with asyncio.timeout(TIMEOUT_S):
        with suppress(websockets.ConnectionClosedError):
            async for _ in connection:
                pass
    code: int = connection.close_code
    return code


async def settled(condition: Any) -> None:
    """Let the loop run until ``condition()`` holds."""
    for attempt in range(5_000):
        if condition():
            return
        await asyncio.sleep(0 if attempt < 100 else 0.001)
    raise AssertionError("it never came to pass")
