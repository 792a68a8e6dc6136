"""The parts of ``duologue bench webrtc``, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from duologue.realtime.bench.webrtc_av import AvReport, run_av
from duologue.realtime.bench.webrtc_load import LoadReport, run_load
from duologue.realtime.bench.webrtc_lossy import LossyRow, run_lossy
from duologue.realtime.bench.webrtc_voice import VoiceReport, run_voice_lines


@dataclass(frozen=True)
class WebRtcOptions:
    """``part``: ``all``, ``load``, ``link``, ``voice`` or ``av``; the rest as the command says."""

    part: str = "all"
    calls: int = 6
    seconds: float = 6.0
    ramp: bool = True
    turns: int = 15
    seed: int = 1
    minutes: float = 1.0
    media_workers: int = 0


class WebRtcReport(msgspec.Struct, frozen=True):
    """None: that part was left out."""

    load: LoadReport | None
    link: list[LossyRow] | None
    voice: VoiceReport | None
    av: AvReport | None


async def run_webrtc(options: WebRtcOptions, on_phase: Callable[[str], None] = lambda text: None) -> WebRtcReport:
    """Measure. Raises ``ServerUnreachable`` if a server of the run does not start."""

    def wanted(part: str) -> bool:
        return options.part in ("all", part)

    def row(done: LossyRow) -> None:
        on_phase(f"link with {done.loss:.0%} loss and {done.jitter_ms} ms jitter: done")

    load = link = voice = av = None
    if wanted("voice"):
        on_phase(f"{options.turns} turns over each transport")
        voice = await run_voice_lines(options.turns)
    if wanted("av"):
        on_phase(f"sound and picture for {options.minutes:g} minutes")
        av = await run_av(options.minutes)
    if wanted("link"):
        on_phase("links")
        link = await run_lossy(options.seconds, options.seed, row)
    if wanted("load"):
        load = await run_load(options.calls, options.seconds, options.ramp, options.media_workers, on_phase)
    return WebRtcReport(load, link, voice, av)
