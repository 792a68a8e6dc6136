"""Blocking work on a thread of its own, awaited on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def run_in_thread(work: Callable[[], T], name: str) -> T:
    """Run ``work`` on a new thread and return its result, leaving no thread behind (as a shared pool would).

    When the caller is cancelled the work runs to its end first: a thread cannot be interrupted.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix=name)
    future = asyncio.get_running_loop().run_in_executor(pool, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
    finally:
        pool.shutdown(wait=True)
