"""Stages of one replica each under an orchestrator, started and closed again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from duologue.engine.executors.base import Replica
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.pipeline import PipelineConfig, StageConfig


@asynccontextmanager
async def running(
    name: str,
    stages: Sequence[tuple[StageConfig, Replica]],
    kind: type[Orchestrator] = Orchestrator,
) -> AsyncIterator[Orchestrator]:
    """The stages, in order, loaded and warm. Whatever happens, they are closed at the end."""
    pipeline = PipelineConfig(name, tuple(config for config, _ in stages))
    orchestrator = kind(pipeline, {config.stage_id: [replica] for config, replica in stages})
    try:
        for _, replica in stages:
            await replica.load()
            await replica.warm_up()
        orchestrator.start()
        yield orchestrator
    finally:
        await orchestrator.close()
        await asyncio.gather(*(replica.close() for _, replica in stages))
