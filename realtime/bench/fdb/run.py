"""Running ``duologue bench full-duplex``: the replays, several at once, and the files they leave."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from duologue.codecs.wav import WavError, write_wav
from duologue.realtime.bench.clock import SAMPLE_RATE, Clock, MonotonicClock
from duologue.realtime.bench.fdb.artifacts import WordSource, log_folder, make, read_input, write_json
from duologue.realtime.bench.fdb.dataset import COPIED, REFERENCE_FILE, TURNS_FILE, Sample, SampleSet, Task, load_sets
from duologue.realtime.bench.fdb.ledger import check
from duologue.realtime.bench.fdb.runner import Replay, ReplaySettings
from duologue.realtime.bench.server_process import own_server
from duologue.realtime.bench.voice_run import machine
from duologue.realtime.client import ClientError, RealtimeClient
from duologue.realtime.event_log import AUDIO_FILE, EventLog, load_entries

RUN_FILE: Final = "run.json"
SENT_FILE: Final = "sent.wav"
"""What the microphone heard of a sample with an echo."""
RUN_SCHEMA: Final = "duologue.fdb.run/1"


class FdbOptions(msgspec.Struct, frozen=True):
    """What to run; see ``duologue bench full-duplex --help``."""

    root: Path
    out: Path
    tasks: tuple[Task, ...] = ()
    url: str | None = None
    """``None`` starts a server of our own."""
    model: str | None = None
    api_key: str | None = None
    num: int | None = None
    """So many samples of each set; all if ``None``."""
    concurrency: int = 1
    deploy_config: Path | None = None
    reference: Path | None = None
    words: WordSource = "server"
    resume: bool = False
    """Go on with the run in ``out``: what was replayed well is kept."""
    settings: ReplaySettings = ReplaySettings()


class RunSet(msgspec.Struct, frozen=True):
    """A set of the run. Its samples lie in the run's folder of that name."""

    name: str
    task: Task
    samples: list[str]
    excluded: dict[str, str]
    """Folders that could not be replayed, with the reason."""


class RunInfo(msgspec.Struct, frozen=True):
    """Conditions of a run, written before the first replay."""

    url: str
    own_server: bool
    model: str | None
    concurrency: int
    words: WordSource
    settings: ReplaySettings
    sets: list[RunSet]
    machine: dict[str, Any]
    schema: str = RUN_SCHEMA


class Job(msgspec.Struct, frozen=True):
    """One replay: an input of a sample."""

    sample: Sample
    stem: str
    folder: Path
    """Where its files go."""


async def run_fdb(
    options: FdbOptions,
    *,
    on_total: Callable[[int], None] = lambda count: None,
    on_done: Callable[[Job], None] = lambda job: None,
    on_phase: Callable[[str], None] = lambda text: None,
    clock: Clock | None = None,
) -> RunInfo:
    """Replay every sample and write its outputs; scores are made afterwards.

    Raises :class:`~duologue.realtime.client.ClientError` if there is no server, ``ValueError`` for a set or options
    that make no sense. A replay that fails is in its sample's ``result.json`` and stops nothing.
    """
    sets = load_sets(options.root, options.tasks)
    jobs = [job for item in sets for job in _jobs(item, options)]
    if not jobs:
        problems = {f"{s.folder}: {s.problem}" for item in sets for s in item.samples if s.problem}
        raise ValueError(f"nothing to replay in {options.root}; {'; '.join(sorted(problems)[:3])}")
    on_total(len(jobs))
    options.out.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        url = options.url
        if url is None:
            on_phase("starting a server")
            server = await stack.enter_async_context(own_server(options.deploy_config, options.out / "server.log"))
            url = server.url
        info = _run_info(options, url, sets)
        if options.resume:
            _check_same_run(read_run(options.out), info)
        write_json(options.out / RUN_FILE, info)
        for item in sets:
            await asyncio.to_thread(_copy_annotations, item, options)
        on_phase(f"{options.concurrency} at once, {url}")
        waiting = []
        for job in jobs:
            if options.resume and await asyncio.to_thread(_replayed_well, job):
                on_done(job)
            else:
                waiting.append(job)
        await _replay_all(options, url, waiting, on_done, clock or MonotonicClock())
    on_phase("writing outputs")
    await asyncio.to_thread(write_outputs, options.out, info)
    return info


def write_outputs(run: Path, info: RunInfo) -> None:
    """Make every sample's outputs from its logs."""
    for item in info.sets:
        for sample in item.samples:
            make(run / item.name / sample, info.settings, info.words)


def read_run(run: Path) -> RunInfo:
    """Raises ``OSError`` or ``msgspec.DecodeError`` if it is not a run's folder."""
    return msgspec.json.decode((run / RUN_FILE).read_bytes(), type=RunInfo)


def _check_same_run(before: RunInfo, now: RunInfo) -> None:
    """Raises ``ValueError`` if the conditions of a run that is resumed are not those it was begun with."""

    def conditions(info: RunInfo) -> RunInfo:
        url = "" if info.own_server else info.url  # a server of our own gets another port
        return msgspec.structs.replace(info, url=url, concurrency=0, machine={})

    a, b = conditions(before), conditions(now)
    for field in RunInfo.__struct_fields__:
        if getattr(a, field) != getattr(b, field):
            raise ValueError(f"the run cannot be resumed: {field} is not what it was")


def _replayed_well(job: Job) -> bool:
    folder = log_folder(job.folder, job.stem)
    # The sound is written after the events.
    return (folder / AUDIO_FILE).is_file() and not check(load_entries(folder)).failures


def chosen(item: SampleSet, num: int | None) -> list[Sample]:
    return item.usable if num is None else item.usable[:num]


def _jobs(item: SampleSet, options: FdbOptions) -> Iterator[Job]:
    for sample in chosen(item, options.num):
        stems = sample.stems if item.task == "overlap" else [""]
        for stem in stems:
            yield Job(sample, stem, options.out / item.name / sample.id)


def _run_info(options: FdbOptions, url: str, sets: list[SampleSet]) -> RunInfo:
    return RunInfo(
        url=url,
        own_server=options.url is None,
        model=options.model,
        concurrency=options.concurrency,
        words=options.words,
        settings=options.settings,
        sets=[
            RunSet(
                item.name,
                item.task,
                [sample.id for sample in chosen(item, options.num)],
                {sample.id: sample.problem for sample in item.samples if sample.problem},
            )
            for item in sets
        ],
        machine=machine(),
    )


def _copy_annotations(item: SampleSet, options: FdbOptions) -> None:
    """A run's folder is complete: inputs and annotations lie beside the outputs, as the published tools expect them."""
    folder = options.out / item.name
    folder.mkdir(parents=True, exist_ok=True)
    reference = options.reference or item.root / REFERENCE_FILE
    if item.task == "backchannel" and reference.is_file():
        shutil.copyfile(reference, folder / REFERENCE_FILE)
    for sample in chosen(item, options.num):
        target = folder / sample.id
        target.mkdir(exist_ok=True)
        for name in {*COPIED, TURNS_FILE}:
            if (sample.folder / name).is_file():
                shutil.copyfile(sample.folder / name, target / name)


async def _replay_all(
    options: FdbOptions, url: str, jobs: list[Job], on_done: Callable[[Job], None], clock: Clock
) -> None:
    waiting = iter(jobs)

    async def worker() -> None:
        for job in waiting:
            await _replay(options, url, job, clock)
            on_done(job)

    async with asyncio.TaskGroup() as workers:
        for index in range(min(options.concurrency, len(jobs))):
            workers.create_task(worker(), name=f"replay-{index}")


async def _replay(options: FdbOptions, url: str, job: Job, clock: Clock) -> None:
    """One connection from dialling to hanging up; its log is written whatever happens."""
    log = EventLog()
    name = f"{job.stem}input.wav"
    replay: Replay | None = None
    over = False
    try:
        await asyncio.to_thread(shutil.copyfile, job.sample.folder / name, job.folder / name)
        samples = await asyncio.to_thread(read_input, job.folder / name)
        client = await RealtimeClient.connect(
            url, model=options.model, api_key=options.api_key, log=log, clock=clock.now
        )
        async with client:
            replay = Replay(client, samples, clock, options.settings, job.sample.annotation.echo)
            await replay.run()
        over = True
    except (ClientError, WavError) as error:
        log.note({"type": "connection.lost", "message": str(error)}, clock.now())
        over = True
    finally:
        if not over:
            log.note({"type": "connection.lost", "message": "the run was ended"}, clock.now())
        await asyncio.to_thread(log.save, log_folder(job.folder, job.stem))
        if replay is not None and replay.recording.sent:
            await asyncio.to_thread(write_wav, job.folder / SENT_FILE, bytes(replay.recording.sent), SAMPLE_RATE)
