"""One picture per sample: what the user said, what was heard of the answer, voice activity, and the events in between.

Drawn with matplotlib (extra ``bench``), which is imported only here and only when a picture is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duologue.engine.voice_activity import SAMPLE_RATE as SPEECH_RATE
from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.conversation import SeenResponse
from duologue.realtime.bench.fdb.artifacts import Heard, log_folder, read_input
from duologue.realtime.bench.fdb.dataset import PARTS_FILE, Annotation, Part, Task, load_annotation, read_json
from duologue.realtime.bench.fdb.formulas import Span
from duologue.realtime.bench.fdb.run import SENT_FILE, RunInfo
from duologue.realtime.bench.fdb.score import SCORES_FILE, SampleScore, SetScores, Sounds
from duologue.realtime.bench.fdb.speech import FRAME_S, SpeechRule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE: Final = "timeline.png"
MISSING: Final = "timelines need matplotlib: pip install 'duologue[bench]' (the run goes on without them)"

USER, OURS, EVENT, CUT, QUIET = "#2166ac", "#1b7837", "#e08214", "#b2182b", "#666666"
ECHO: Final = "#b0b0b0"
COLUMNS: Final = 1600
"""Steps of a drawn waveform: more than the picture has pixels."""
INCHES_PER_S: Final = 0.9
MARGIN_INCHES: Final = 1.7
CHARACTERS_PER_INCH: Final = 15.5
EVENT_ROWS: Final = (
    "speech_started",
    "speech_stopped",
    "transcript",
    "response.created",
    "first text",
    "first audio",
    "response.done",
    "truncate sent",
)


class View(NamedTuple):
    """How much time a picture shows, and how wide."""

    seconds: float
    inches_per_s: float


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def draw_run(run: Path, info: RunInfo, sounds: Sounds, on_done: Callable[[], None] = lambda: None) -> None:
    """A picture for every sample of a run that was replayed."""
    for item in info.sets:
        scores = read_json(run / item.name / SCORES_FILE, SetScores)
        by_id = {sample.id: sample for sample in scores.samples}
        for sample in item.samples:
            folder = run / item.name / sample
            if log_folder(folder, "").is_dir() and (folder / "output.wav").is_file():
                heard = Heard(folder, "", info.settings)
                title = f"{item.name} / {sample}    {_headline(by_id.get(sample), scores.reasons.get(sample))}"
                draw(folder, item.task, heard, sounds, title)
            on_done()


def draw(folder: Path, task: Task, heard: Heard, sounds: Sounds, title: str) -> Path:
    """Draw one sample into its folder. The left edge is the first sample of the input, the right edge its last."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    annotation = load_annotation(folder, task)
    user, ours = read_input(folder / "input.wav"), read_input(folder / "output.wav")
    seconds = len(user) / SAMPLE_RATE
    width = min(30.0, max(11.0, MARGIN_INCHES + seconds * INCHES_PER_S))
    figure = Figure(figsize=(width, 7.2), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    view = View(seconds, (width - MARGIN_INCHES) / seconds)
    lanes = figure.subplots(4, 1, sharex=True, gridspec_kw={"height_ratios": [1.25, 1.25, 0.9, 1.6]})
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    _user_lane(lanes[0], folder, user, annotation, view)
    _our_lane(lanes[1], ours, heard, view)
    sent = folder / SENT_FILE
    sent = sent if sent.is_file() else folder / "input.wav"
    _activity_lane(lanes[2], read_input(sent, SPEECH_RATE), heard, sounds, seconds)
    _event_lane(lanes[3], heard, seconds)
    for lane in lanes:
        _grid(lane, seconds)
    lanes[-1].set_xlabel("seconds on the input clock")
    path = folder / PICTURE
    figure.savefig(path)
    return path


def _spoken(folder: Path) -> list[Part]:
    path = folder / PARTS_FILE
    return read_json(path, list[Part]) if path.is_file() else []


# -- lanes -------------------------------------------------------------------------------------------------------------


def _user_lane(lane: Axes, folder: Path, audio: NDArray[np.float32], annotation: Annotation, view: View) -> None:
    spoken = _spoken(folder)
    sent = read_input(folder / SENT_FILE) if (folder / SENT_FILE).is_file() else None
    if sent is not None:
        _wave(lane, sent, ECHO, "", _peak(sent))
    peak = _peak(audio) if sent is None else _peak(sent)
    _wave(lane, audio, USER, "user" if sent is None else "user\n(grey: with echo)", peak)
    for start, end in annotation.turns or ():
        lane.axvspan(start, end, color=USER, alpha=0.10, lw=0)
    for part in spoken:
        if part.kind == "turn" and part.span != annotation.event:
            _label(lane, part.span, part.words, USER, view)
    for pause in annotation.pauses:
        _mark(lane, pause, "pause", view)
    if annotation.event:
        said = next((part.words for part in spoken if part.span == annotation.event), annotation.event_text)
        _mark(lane, annotation.event, said or "event", view)
    if annotation.turn_end is not None:
        lane.axvline(annotation.turn_end, color=EVENT, lw=1.2)
        _label(lane, (annotation.turn_end, view.seconds), "end of turn", EVENT, view, at=0.02)


def _our_lane(lane: Axes, audio: NDArray[np.float32], heard: Heard, view: View) -> None:
    _wave(lane, audio, OURS, "duologue", _peak(audio))
    player = heard.playback.player
    for response in heard.conversation.responses.values():
        segments = player.of_response(response.response_id)
        if not segments or segments[0].start_s >= view.seconds:
            continue
        span = (segments[0].start_s, min(segments[-1].end_s, view.seconds))
        lane.axvspan(*span, color=OURS, alpha=0.10, lw=0)
        _label(lane, span, response.text, OURS, view)
        if player.late_samples.get(response.response_id) is not None and span[1] < view.seconds:
            lane.axvline(span[1], color=CUT, lw=1.4)
            _label(lane, (span[1], view.seconds), "cut", CUT, view, at=0.02)


def _activity_lane(lane: Axes, audio: NDArray[np.float32], heard: Heard, sounds: Sounds, seconds: float) -> None:
    probabilities = sounds.frames(audio)
    times = (np.arange(len(probabilities)) + 0.5) * FRAME_S
    lane.plot(times, probabilities, color=QUIET, lw=0.9)
    lane.axhline(SpeechRule().threshold, color=QUIET, lw=0.6, ls=":")
    for start, end in heard.server_speech(seconds):
        lane.axvspan(start, min(end, seconds), ymin=0.80, ymax=0.93, color=USER, alpha=0.75, lw=0)
    lane.set_ylim(0, 1.35)
    lane.set_yticks([0, 0.5, 1])
    lane.tick_params(axis="y", labelsize=7)
    _name(lane, "voice activity\n(bar: server's turns)")


def _event_lane(lane: Axes, heard: Heard, seconds: float) -> None:
    rows = {name: len(EVENT_ROWS) - 1 - index for index, name in enumerate(EVENT_ROWS)}
    for name, time, colour in _events(heard):
        if 0 <= time <= seconds:
            lane.plot([time], [rows[name]], marker="|", ms=11, mew=2.0, color=colour)
    lane.set_ylim(-0.6, len(EVENT_ROWS) - 0.4)
    lane.set_yticks(list(rows.values()), list(rows), fontsize=8)
    lane.set_axisbelow(True)
    lane.grid(axis="y", color="#dddddd", lw=0.5)


def _events(heard: Heard) -> Iterator[tuple[str, float, str]]:
    """Row, time of arrival (or of sending) and colour of everything that is marked."""
    for turn in heard.conversation.turns.values():
        if turn.audio_start_ms is not None:
            yield "speech_started", turn.started_s, USER
        if turn.stopped_s is not None:
            yield "speech_stopped", turn.stopped_s, USER
        if turn.transcribed_s is not None:
            yield "transcript", turn.transcribed_s, USER
    for response in heard.conversation.responses.values():
        yield from _response_events(response)
    for entry in heard.entries:
        if entry.dir == "c2s" and entry.event.get("type") == "conversation.item.truncate":
            yield "truncate sent", entry.t_s, CUT


def _response_events(response: SeenResponse) -> Iterator[tuple[str, float, str]]:
    yield "response.created", response.created_s, OURS
    if response.first_text_s is not None:
        yield "first text", response.first_text_s, OURS
    if response.first_audio_s is not None:
        yield "first audio", response.first_audio_s, OURS
    if response.done_s is not None:
        yield "response.done", response.done_s, OURS if response.status == "completed" else CUT


# -- how they are drawn ------------------------------------------------------------------------------------------------


def _peak(audio: NDArray[np.float32]) -> float:
    return max(float(np.abs(audio).max(initial=0.0)), 0.05)


def _wave(lane: Axes, audio: NDArray[np.float32], colour: str, name: str, peak: float) -> None:
    """Lowest and highest sample of each step; ``peak`` is as large as the lane allows."""
    step = max(1, len(audio) // COLUMNS)
    steps = audio[: len(audio) // step * step].reshape(-1, step)
    times = (np.arange(len(steps)) + 0.5) * step / SAMPLE_RATE
    lane.fill_between(times, steps.min(axis=1) / peak, steps.max(axis=1) / peak, color=colour, lw=0)
    lane.axhline(0, color=colour, lw=0.5)
    lane.set_ylim(-1.1, 1.75)
    lane.set_yticks([])
    _name(lane, name)


def _name(lane: Axes, text: str) -> None:
    lane.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=9)


def _mark(lane: Axes, span: Span, text: str, view: View) -> None:
    lane.axvspan(*span, facecolor="none", edgecolor=EVENT, hatch="///", alpha=0.35, lw=0)
    lane.axvspan(*span, fill=False, edgecolor=EVENT, lw=1.0)
    _label(lane, span, text, EVENT, view)


def _label(lane: Axes, span: Span, text: str, colour: str, view: View, at: float = 0.86) -> None:
    """As much of a text as has room over ``span`` (a few letters at least); at the right edge it ends there."""
    room = max(8, int((span[1] - span[0]) * view.inches_per_s * CHARACTERS_PER_INCH))
    text = text if len(text) <= room else text[: room - 1].rstrip() + "…"
    ends_outside = span[0] + (len(text) + 2) / CHARACTERS_PER_INCH / view.inches_per_s > view.seconds
    lane.text(
        view.seconds if ends_outside else span[0],
        at,
        f" {text} ",
        color=colour,
        fontsize=8,
        transform=lane.get_xaxis_transform(),
        ha="right" if ends_outside else "left",
        bbox={"facecolor": "white", "alpha": 0.75, "pad": 1.0, "lw": 0},
    )


def _grid(lane: Axes, seconds: float) -> None:
    lane.set_xlim(0, seconds)
    lane.grid(axis="x", color="#dddddd", lw=0.5)
    lane.set_axisbelow(True)
    for side in ("top", "right"):
        lane.spines[side].set_visible(False)
    ticks: Any = np.arange(0, seconds + 1e-9, 1 if seconds <= 40 else 5)
    lane.set_xticks(ticks)


def _headline(score: SampleScore | None, reason: str | None) -> str:
    if score is None:
        return f"not scored: {reason or 'failed'}"
    figures: Sequence[tuple[str, str]] = (
        ("TOR", "" if score.tor is None else str(score.tor)),
        ("latency", "" if score.latency_s is None else f"{score.latency_s:.2f} s"),
        ("stop", ", ".join(f"{end - start:.2f} s" for start, end in score.stop or ())),
        ("response", ", ".join(f"{end - start:.2f} s" for start, end in score.response or ())),
        ("backchannels/s", "" if score.frequency is None else f"{score.frequency:.3f}"),
        ("JSD", "" if score.jsd is None else f"{score.jsd:.3f}"),
        ("false starts", "" if score.false_starts is None else str(len(score.false_starts))),
        ("behaviour", score.behaviour or ""),
    )
    return "    ".join(f"{name} {value}" for name, value in figures if value)
