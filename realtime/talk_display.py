"""What ``duologue talk`` shows: a line that moves while it talks, and the report at the end."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from duologue.realtime.bench.measures import PARTS
from duologue.realtime.talk_session import Progress, TalkReport


class LiveDisplay:
    """Shows the state of a talk on standard error while it runs."""

    def __init__(self) -> None:
        self._live = Live(console=Console(stderr=True), refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, progress: Progress) -> None:
        spoken = min(progress.position_s, progress.recording_s)
        conversation = progress.conversation
        state = "answering" if conversation.response_open else "hearing" if conversation.speech_open else "listening"
        text = Text(f"{spoken:5.1f} / {progress.recording_s:.1f} s  {state}")
        for turn in conversation.turns.values():
            text.append(f"\n  heard     {turn.transcript or '...'}")
            for response in conversation.responses_to(turn.item_id):
                text.append(f"\n  answered  {response.text}", style="green")
        self._live.update(text)


def print_report(report: TalkReport, out: Path | None, console: Console | None = None) -> None:
    """Print every turn with its times."""
    console = console or Console()
    if not report.turns:
        console.print("No speech was heard.")
    for number, turn in enumerate(report.turns, 1):
        console.print(f"[bold]turn {number}[/bold]")
        console.print("  heard     ", Text(turn.heard if turn.heard is not None else "(no transcript)"), sep="")
        said = Text(turn.answered or "(nothing)", style="green")
        console.print(
            "  answered  ", said, f"  [{turn.status or 'no response'}, {turn.answer_s:.1f} s]", sep="", markup=False
        )
        if turn.split is not None:
            console.print(_times(turn.split))
    for error in report.server_errors:
        console.print(Text(f"server error {error}", style="yellow"))
    if out is not None:
        console.print(Text(f"answers written to {out}"))


def _times(split: object) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    names = ["v2v", *PARTS]
    for name in names:
        table.add_column("voice to voice, ms" if name == "v2v" else name.replace("_", " "), justify="right")
    values = [getattr(split, f"{name}_ms") for name in names]
    table.add_row(*("not measured" if value is None else f"{value:.0f}" for value in values))
    return table
