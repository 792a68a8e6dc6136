"""Time to the first token of a conversation's turns: with what was read before still cached, and read anew.

Each turn is asked twice. *Warm*: in its session, as a caller would. *Cold*: the same messages in a new session, after
one line that no prompt has begun with before, so that no cache can know any of it. The barge-in's turn has the last
answer cut to its first half; the speculation's turn is asked for what was said so far and aborted at the first token
before it is asked in full.

Then so many callers as asked for open their conversations at once, to see what a shared batch writes in a second.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from duologue.engine.deploy import DeployConfig, StageDeploy
from duologue.engine.executors.build import StageBuild
from duologue.engine.executors.inline import InlineReplica
from duologue.engine.orchestrator import Orchestrator
from duologue.engine.pipeline import PipelineConfig, StageConfig, get_pipeline, stage_target
from duologue.engine.requests import ChatMessage, Converse, EngineRequest, Finished, TextDelta
from duologue.realtime.bench.summary import Metric, metric

INSTRUCTIONS: Final = (
    "You are a helpful assistant on the telephone. Keep your answers short and simple, one or two sentences. "
    "Say when you do not know something. Never read out lists, addresses or markup."
)
SAID: Final = (
    "Hello, could you tell me something about the city of Lisbon?",
    "Which season would you recommend for a visit, and why?",
    "What could I do there on a rainy afternoon with two children?",
    "Is there a dish that I should not miss?",
    "How would I get from the airport to the old town?",
    "Please remind me what you said about the season.",
    "And which day trip would you suggest?",
    "Thank you, what is the best thing about the place?",
)
ANSWER_TOKENS: Final = 32
TOGETHER_TOKENS: Final = 128
"""Of each answer when several callers ask at once: long enough that writing outweighs the reading of prompts."""

Kind = Literal["turn", "barge-in", "speculation"]


class Turn(msgspec.Struct, frozen=True):
    """One place in the conversation, over all repetitions."""

    number: int
    kind: Kind
    prompt_tokens: int
    """Of the last repetition, warm; None is never told from 0 by endpoints that do not count."""
    cached_tokens: int
    warm: Metric
    cold: Metric


class Together(msgspec.Struct, frozen=True):
    """Callers who ask at the same moment, each a conversation of its own."""

    callers: int
    output_tokens: int
    """Of all answers, in the last repetition."""
    tokens_per_second: Metric
    """Of all callers in sum, the reading of their prompts included."""
    first_token: Metric


class BackendReport(msgspec.Struct, frozen=True):
    backend: str
    model: str
    turns: list[Turn]
    tokens_per_second: Metric
    """Of the warm answers, after their first token."""
    together: list[Together] = []


class LanguageModelReport(msgspec.Struct, frozen=True):
    backends: list[BackendReport]


class _Timing(msgspec.Struct, frozen=True):
    text: str
    first_s: float | None
    per_second: float | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int


async def run_language_models(
    deploys: list[DeployConfig], turns: int, repeats: int, callers: Sequence[int] = ()
) -> LanguageModelReport:
    """Measure the language-model stage of each deployment, one after another, inline."""
    return LanguageModelReport([await measure_backend(deploy, turns, repeats, callers) for deploy in deploys])


def deploy_for(backend: str, model: str) -> DeployConfig:
    """The assistant with another language model."""
    stage = StageDeploy(
        stage_id=_language_model("assistant").stage_id, engine_args={"backend": backend, "model": model}
    )
    return DeployConfig(pipeline="assistant", stages=[stage])


async def measure_backend(deploy: DeployConfig, turns: int, repeats: int, callers: Sequence[int] = ()) -> BackendReport:
    """``repeats`` conversations of ``turns`` turns; the last two are a barge-in's and a speculation's. Then as many
    callers at once as each of ``callers`` says, as often."""
    config = _language_model(deploy.pipeline)
    given = deploy.stage(config.stage_id).engine_args
    kinds: list[Kind] = ["turn"] * max(1, turns - 2) + ["barge-in", "speculation"]
    warm: list[list[_Timing]] = [[] for _ in kinds]
    cold: list[list[_Timing]] = [[] for _ in kinds]
    async with _stage(config, deploy, max((2, *callers))) as orchestrator:
        for _ in range(repeats):
            await _converse(orchestrator, kinds, warm, cold)
        together = [await _measure_together(orchestrator, number, repeats) for number in callers]
    measured = [
        Turn(
            number=number + 1,
            kind=kind,
            prompt_tokens=warm[number][-1].input_tokens,
            cached_tokens=warm[number][-1].cached_tokens,
            warm=_first_token(warm[number]),
            cold=_first_token(cold[number]),
        )
        for number, kind in enumerate(kinds)
    ]
    speeds = [timing.per_second for timings in warm for timing in timings]
    return BackendReport(
        backend=str(given.get("backend", "llamacpp")),
        model=str(given.get("model", config.model)),
        turns=measured,
        tokens_per_second=metric(speeds, "tokens/s", "(text deltas - 1) / (last - first text delta)"),
        together=together,
    )


async def _converse(
    orchestrator: Orchestrator, kinds: list[Kind], warm: list[list[_Timing]], cold: list[list[_Timing]]
) -> None:
    session = uuid.uuid4().hex
    # One that no other session shares, or the first turn would be warm as well.
    messages = [ChatMessage(role="system", text=f"Call {session}. {INSTRUCTIONS}")]
    for number, kind in enumerate(kinds):
        said = SAID[number % len(SAID)]
        if kind == "barge-in":
            heard = messages[-1].text[: len(messages[-1].text) // 2]
            messages[-1] = replace(messages[-1], text=heard.rstrip() or "Well")
        if kind == "speculation":
            part = ChatMessage(role="user", text=said[: len(said) // 2])
            await _ask(orchestrator, session, [*messages, part], abort=True)
        messages.append(ChatMessage(role="user", text=said))
        answered = await _ask(orchestrator, session, messages)
        warm[number].append(answered)
        stranger = uuid.uuid4().hex
        head = replace(messages[0], text=messages[0].text.replace(session, stranger))
        cold[number].append(await _ask(orchestrator, stranger, [head, *messages[1:]], abort=True))
        messages.append(ChatMessage(role="assistant", text=answered.text or "Yes."))


async def _measure_together(orchestrator: Orchestrator, callers: int, repeats: int) -> Together:
    """``repeats`` rounds of first turns that no cache knows, asked by ``callers`` callers at once."""
    first: list[_Timing] = []
    rates: list[float | None] = []
    written = 0
    for _ in range(repeats):
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_call(orchestrator, SAID[n % len(SAID)])) for n in range(callers)]
        took = time.monotonic() - began
        answers = [task.result() for task in asked]
        written = sum(answer.output_tokens for answer in answers)
        first += answers
        rates.append(written / took)
    per_second = metric(rates, "tokens/s", "output tokens of all callers / (last end - first request opened)")
    return Together(callers, written, per_second, _first_token(first))


async def _call(orchestrator: Orchestrator, said: str) -> _Timing:
    session = uuid.uuid4().hex
    messages = [
        ChatMessage(role="system", text=f"Call {session}. {INSTRUCTIONS}"),
        ChatMessage(role="user", text=said),
    ]
    return await _ask(orchestrator, session, messages, most=TOGETHER_TOKENS)


async def _ask(
    orchestrator: Orchestrator,
    session: str,
    messages: list[ChatMessage],
    abort: bool = False,
    most: int | None = None,
) -> _Timing:
    """Ask, and read to the end or to the first token."""
    payload = Converse(
        messages=tuple(messages),
        modalities=("text",),
        max_output_tokens=most or ANSWER_TOKENS,
        temperature=0.0,
        seed=1,
    )
    request = EngineRequest(request_id=uuid.uuid4().hex, session_id=session, payload=payload, timeout_s=600)
    texts: list[str] = []
    times: list[float] = []
    finished: Finished | None = None
    began = time.monotonic()
    stream = orchestrator.open(request)
    async with stream:
        async for delta in stream:
            if isinstance(delta, TextDelta):
                texts.append(delta.text)
                times.append(time.monotonic())
                if abort:
                    stream.abort()
            elif isinstance(delta, Finished):
                finished = delta
    await orchestrator.idle()
    if finished is not None and finished.reason == "failed":
        raise RuntimeError(finished.error)
    usage = finished.usage if finished is not None else Finished(reason="aborted").usage
    return _Timing(
        text="".join(texts),
        first_s=times[0] - began if times else None,
        per_second=(len(times) - 1) / (times[-1] - times[0]) if len(times) > 4 and times[-1] > times[0] else None,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
    )


def _first_token(timings: list[_Timing]) -> Metric:
    times = [None if timing.first_s is None else timing.first_s * 1000 for timing in timings]
    return metric(times, "ms", "first text delta - request opened, time.monotonic")


def _language_model(pipeline: str) -> StageConfig:
    stage = get_pipeline(pipeline).entry_for(Converse)
    if stage is None:
        raise ValueError(f"pipeline '{pipeline}' has no stage that takes a conversation")
    return stage


@asynccontextmanager
async def _stage(config: StageConfig, deploy: DeployConfig, requests: int) -> AsyncIterator[Orchestrator]:
    """The language-model stage alone, for so many requests at once, started, and closed again."""
    placed = deploy.stage(config.stage_id)
    given: dict[str, Any] = dict(placed.engine_args)
    arch = config.arch_of(given.pop("backend", None))
    offered: dict[str, Any] = {"max_num_seqs": requests}
    if arch == config.model_arch:
        offered["model"] = config.model
    if placed.sampling:
        given["sampling"] = placed.sampling
    replica = InlineReplica(config.name, StageBuild(stage_target(arch), given, offered), requests)
    alone = dataclasses.replace(config, input_sources=(), final_output=True, final_output_type="text")
    orchestrator = Orchestrator(PipelineConfig("bench-language-model", (alone,)), {config.stage_id: [replica]})
    try:
        await replica.load()
        await replica.warm_up()
        orchestrator.start()
        yield orchestrator
    finally:
        await orchestrator.close()
        await asyncio.shield(replica.close())
