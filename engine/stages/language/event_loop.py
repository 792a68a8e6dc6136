"""Backends whose library is asynchronous: an event loop on a thread of its own, requests to be cancelled."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import aclosing
from typing import Any, Final, TypeVar

from duologue.engine.requests import EngineRequest
from duologue.engine.stage import Stage, StageContext

T = TypeVar("T")

AHEAD: Final = 64
"""Pieces that the library may be ahead of the worker; then its stream is read no further."""
_END: Final = object()


class Call:
    """What belongs to one request: the task on the event loop that works for it."""

    def __init__(self) -> None:
        self.task: Future[None] | None = None


class AsyncBackend(Stage):
    """A stage with an event loop of its own, which lives from ``load`` to ``close``."""

    _loop: asyncio.AbstractEventLoop | None = None

    def load(self) -> None:
        """Start the loop."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=type(self).__name__, daemon=True)
        self._thread.start()

    def start(self, request: EngineRequest) -> Call:
        """See :class:`Call`."""
        return Call()

    def interrupt(self, state: Call) -> None:
        """Cancel the request's task; a worker that waits for its next piece goes on at once."""
        if state.task is not None:
            state.task.cancel()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine on the loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def pieces(self, source: AsyncGenerator[T, None], call: Call, context: StageContext) -> Iterator[T]:
        """What ``source`` yields, on the worker's thread. Ends early, with ``source`` closed, when the request is
        aborted or the iterator is closed. Raises what ``source`` raises."""
        loop = self._loop
        assert loop is not None
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        room = asyncio.Semaphore(AHEAD)

        async def pump() -> None:
            async with aclosing(source):
                async for piece in source:
                    await room.acquire()
                    arrived.put(piece)

        call.task = task = asyncio.run_coroutine_threadsafe(pump(), loop)
        task.add_done_callback(lambda _: arrived.put(_END))
        try:
            if context.aborted:  # perhaps before there was a task to cancel
                return
            while (piece := arrived.get()) is not _END:
                loop.call_soon_threadsafe(room.release)
                yield piece
            try:
                task.result()
            except CancelledError:
                return
        finally:
            task.cancel()
            call.task = None

    def close(self) -> None:
        """Cancel what runs and end the loop."""
        loop, self._loop = self._loop, None
        if loop is None:
            return

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await loop.shutdown_asyncgens()

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()
