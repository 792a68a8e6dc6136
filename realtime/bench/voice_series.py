"""Several runs of ``duologue bench voice`` one after the other: numbers of callers, silence windows, the baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from duologue.realtime.bench.utterances import Utterance
from duologue.realtime.bench.voice_report import REPORT, BenchReport
from duologue.realtime.bench.voice_run import VoiceOptions, run_voice

SERIES_SCHEMA = "duologue.bench.voice-series/1"


class SeriesRun(msgspec.Struct, frozen=True):
    name: str
    report: BenchReport


class Series(msgspec.Struct, frozen=True):
    """What was measured, in the order in which it was."""

    runs: list[SeriesRun]
    schema: str = SERIES_SCHEMA


def plan_series(
    options: VoiceOptions, sessions: Sequence[int], windows_ms: Sequence[int], *, baseline: bool
) -> Iterator[tuple[str, VoiceOptions]]:
    """A name and the options of each run. The baseline comes right after the run that it is compared with.

    Raises ``ValueError`` for a baseline on a server that is not ours to start.
    """
    if baseline and options.url is not None:
        raise ValueError("the baseline needs a server that is started for the run; leave out --url")
    for window_ms in windows_ms:
        for callers in sessions:
            for without in (False, True) if baseline else (False,):
                name = f"{callers}-callers-{window_ms}-ms{'-baseline' if without else ''}"
                settings = replace(options.settings, silence_ms=window_ms)
                yield (
                    name,
                    replace(options, out=options.out / name, sessions=callers, settings=settings, baseline=without),
                )


async def run_series(
    runs: Sequence[tuple[str, VoiceOptions]],
    *,
    on_said: Callable[[Utterance], None] = lambda utterance: None,
    on_phase: Callable[[str], None] = lambda text: None,
) -> Series:
    """Run one after the other. A run whose folder holds its report already is not made again, so that a series that
    was broken off goes on where it stopped.

    Raises as :func:`run_voice` does.
    """
    done = []
    for name, options in runs:
        written = options.out / REPORT
        if written.exists():
            report = msgspec.json.decode(written.read_bytes(), type=BenchReport)
        else:
            report = await run_voice(
                options, on_said=on_said, on_phase=lambda text, name=name: on_phase(f"{name}: {text}")
            )
        done.append(SeriesRun(name, report))
    return Series(done)
