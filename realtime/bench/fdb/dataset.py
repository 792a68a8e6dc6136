"""Folders in the layout of Full-Duplex-Bench (v1 and v1.5): which samples there are, and what is known about them.

A *set* is a folder of one task; each sample is a folder in it, with ``input.wav`` and annotations. A *collection* is
a folder of sets with a ``sets.json`` that names the task of each; ``bench synth full-duplex`` writes one. Upstream's
files may hold more than is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec

from duologue.realtime.bench.clock import SAMPLE_RATE
from duologue.realtime.bench.fdb.formulas import Span

Task = Literal["pause", "turn_taking", "backchannel", "interruption", "overlap", "echo", "noise"]
TASKS: Final[tuple[Task, ...]] = get_args(Task)
"""The tasks of v1, ``overlap`` for all of v1.5, and two of ours."""

SETS_FILE: Final = "sets.json"
REFERENCE_FILE: Final = "reference.json"
TURNS_FILE: Final = "turns.json"
PARTS_FILE: Final = "parts.json"
ANNOTATIONS: Final[dict[Task, str]] = {
    "pause": "pause.json",
    "turn_taking": "turn_taking.json",
    "interruption": "interrupt.json",
    "overlap": "metadata.json",
    "echo": "echo.json",
    "noise": TURNS_FILE,
}
"""The file without which a sample of the task means nothing. Backchannels need none."""
COPIED: Final = (*ANNOTATIONS.values(), "transcription.json", PARTS_FILE)
STEMS: Final = ("", "clean_")
"""``input.wav`` and, for overlaps, ``clean_input.wav``: the same without the event."""


class AnnotationError(ValueError):
    """A file that is missing or does not say what it must; names the file and what is wrong."""


class Stretch(msgspec.Struct, frozen=True):
    timestamp: tuple[float, float]


class TurnEnd(msgspec.Struct, frozen=True):
    timestamp: Annotated[list[float], msgspec.Meta(min_length=1)]
    """The end of the user's turn, and what upstream keeps behind it."""


class Interrupt(msgspec.Struct, frozen=True):
    timestamp: tuple[float, float]
    context: str = ""
    interrupt: str = ""


class Overlap(msgspec.Struct, frozen=True):
    timestamps: tuple[float, float]
    context_text: str = ""
    current_turn_text: str = ""


class Echo(msgspec.Struct, frozen=True):
    """What of the answer's own sound comes back through the microphone."""

    gain_db: float
    delay_ms: int
    timestamps: tuple[float, float] | None = None
    """When the user speaks over the answer, if ever."""


class SpokenTurn(msgspec.Struct, frozen=True):
    """A turn of the user: from its first to its last speech sample, in seconds."""

    start: float
    end: float
    pauses: list[Span] = []


class Turns(msgspec.Struct, frozen=True):
    turns: list[SpokenTurn]
    duration: float


class Part(msgspec.Struct, frozen=True):
    """Something in a recording of ours, from its first audible sample to the one after the last, at 24 kHz."""

    kind: Literal["turn", "event", "noise"]
    source: str
    name: str
    words: str
    start_sample: int
    end_sample: int
    gain_db: float = 0.0

    @property
    def span(self) -> tuple[float, float]:
        return self.start_sample / SAMPLE_RATE, self.end_sample / SAMPLE_RATE


class Annotation(msgspec.Struct, frozen=True):
    """What a sample's files say; ``None`` where the task has no such thing."""

    pauses: list[Span] = []
    turn_end: float | None = None
    event: Span | None = None
    """The interruption or the overlap."""
    context: str = ""
    event_text: str = ""
    echo: Echo | None = None
    turns: list[Span] | None = None
    """Ground truth of when the user speaks, where the set has it."""


class Sample(msgspec.Struct, frozen=True):
    """One folder of a set. ``problem`` says why it cannot be used."""

    id: str
    folder: Path
    annotation: Annotation = Annotation()
    problem: str | None = None

    @property
    def stems(self) -> list[str]:
        """The inputs that are there, by what stands before ``input.wav``."""
        return [stem for stem in STEMS if (self.folder / f"{stem}input.wav").is_file()]


class SampleSet(msgspec.Struct, frozen=True):
    """The samples of one task, in order, with those that cannot be used."""

    name: str
    task: Task
    root: Path
    samples: list[Sample]

    @property
    def usable(self) -> list[Sample]:
        return [sample for sample in self.samples if sample.problem is None]


class NamedSet(msgspec.Struct, frozen=True):
    """A line of ``sets.json``: a folder and its task."""

    name: str
    task: Task


T = TypeVar("T")


def load_sets(root: Path, tasks: Sequence[Task]) -> list[SampleSet]:
    """The sets under ``root``: all of a collection, or only those of ``tasks``; or ``root`` itself, being one.

    Raises :class:`AnnotationError`.
    """
    listing = root / SETS_FILE
    if listing.is_file():
        named = read_json(listing, list[NamedSet])
        chosen = [item for item in named if not tasks or item.task in tasks]
        if not chosen:
            raise AnnotationError(f"{listing}: no set of the task {', '.join(tasks)}")
        return [load_set(root / item.name, item.task) for item in chosen]
    if len(tasks) != 1:
        raise AnnotationError(f"{root} has no {SETS_FILE}, so name its one task (--task: {', '.join(TASKS)})")
    return [load_set(root, tasks[0])]


def load_set(root: Path, task: Task) -> SampleSet:
    """One set; samples that cannot be used are in it with the reason. Raises :class:`AnnotationError` if empty."""
    if not root.is_dir():
        raise AnnotationError(f"{root}: no such folder")
    folders = sorted((path for path in root.iterdir() if path.is_dir()), key=lambda path: in_order(path.name))
    samples = [_load_sample(folder, task) for folder in folders]
    if not samples:
        raise AnnotationError(f"{root}: no samples in it")
    return SampleSet(root.name, task, root, samples)


def in_order(name: str) -> tuple[int, str]:
    """Sorts numbered folders by number, others after them by name."""
    return (int(name), "") if name.isdigit() else (10**9, name)


def _load_sample(folder: Path, task: Task) -> Sample:
    if not any((folder / f"{stem}input.wav").is_file() for stem in STEMS[:1]):
        return Sample(folder.name, folder, problem="input.wav is missing")
    try:
        return Sample(folder.name, folder, load_annotation(folder, task))
    except AnnotationError as error:
        return Sample(folder.name, folder, problem=str(error))


def load_annotation(folder: Path, task: Task) -> Annotation:
    """What is known about a sample of the task. Raises :class:`AnnotationError`."""
    needed = ANNOTATIONS.get(task)
    if needed is not None and not (folder / needed).is_file():
        raise AnnotationError(f"{needed} is missing")
    turns = None
    if (folder / TURNS_FILE).is_file():
        turns = [(turn.start, turn.end) for turn in read_json(folder / TURNS_FILE, Turns).turns]
    known: dict[str, Any] = {"turns": turns}
    match task:
        case "pause":
            known["pauses"] = [item.timestamp for item in read_json(folder / "pause.json", list[Stretch])]
        case "turn_taking":
            known["turn_end"] = _first(folder / "turn_taking.json", TurnEnd).timestamp[0]
        case "interruption":
            row = _first(folder / "interrupt.json", Interrupt)
            known |= {"event": row.timestamp, "context": row.context, "event_text": row.interrupt}
        case "overlap":
            overlap = read_json(folder / "metadata.json", Overlap)
            known |= {"event": overlap.timestamps, "context": overlap.context_text}
            known["event_text"] = overlap.current_turn_text
        case "echo":
            echo = read_json(folder / "echo.json", Echo)
            known |= {"echo": echo, "event": echo.timestamps}
    return Annotation(**known)


def _first(path: Path, kind: type[T]) -> T:
    rows = read_json(path, list[kind])  # type: ignore[valid-type]
    if not rows:
        raise AnnotationError(f"{path.name}: an entry with a timestamp expected")
    return rows[0]


def read_json(path: Path, kind: type[T]) -> T:
    """A JSON file of a known shape. Raises :class:`AnnotationError` naming file and field, ``OSError``."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise AnnotationError(f"{path.name}: {error}") from None
