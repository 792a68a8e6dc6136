"""``duologue talk``: speak to a server, by recording or by microphone, and see what was heard, answered, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duologue.realtime.bench.measures import PARTS, TOTAL

if TYPE_CHECKING:
    from duologue.realtime.bench.caller import CallerSettings
    from duologue.realtime.client import ClientError
    from duologue.realtime.talk_session import TalkReport

DEFAULT_URL = "ws://127.0.0.1:8000/v1/realtime"


def talk(
    recording: Annotated[Path | None, typer.Argument(help="WAV file to be spoken.", show_default=False)] = None,
    url: Annotated[str, typer.Option(help="Server to talk to.")] = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Model name to ask for; default: the server's own.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="DUOLOGUE_API_KEY", help="Bearer key.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write all answers to this WAV file (24 kHz).")] = None,
    log: Annotated[Path | None, typer.Option(help="Write the raw event log and received audio to this folder.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")
    ] = False,
    silence_ms: Annotated[int, typer.Option(min=0, help="Silence that ends a turn (server_vad).")] = 500,
    instructions: Annotated[str | None, typer.Option(help="Instructions; default: the server's own.")] = None,
    mic: Annotated[bool, typer.Option("--mic", help="Talk through microphone and loudspeaker until Ctrl-C.")] = False,
    cancel_echo: Annotated[
        bool, typer.Option("--cancel-echo", help="With --mic, without headphones: the server is to cancel the echo.")
    ] = False,
) -> None:
    from duologue.realtime.bench.caller import CallerSettings
    from duologue.realtime.client import ClientError

    settings = CallerSettings(silence_ms=silence_ms, instructions=instructions, max_output_tokens=None)
    if mic:
        _talk_by_microphone(url, model, api_key, settings, cancel_echo=cancel_echo)
        return
    if recording is None:
        raise _fail("name a WAV file, or use --mic")
    try:
        report = _talk_recording(recording, url, model, api_key, settings, log, show=not json)
    except ClientError as error:
        raise _fail(_with_hint(error)) from error
    except (OSError, ValueError) as error:  # WavError is a ValueError
        raise _fail(str(error)) from error
    _deliver(report, out, json)
    if not report.complete:
        raise _fail("the server closed the connection or did not finish in time")


# The definitions of the times stand in one place only.
talk.__doc__ = (
    "Stream a recording in real time, or talk yourself with --mic, and print what was heard and answered.\n\n"
    f"Printed per turn, in milliseconds: voice to voice ({TOTAL}) and its parts: "
    + "; ".join(f"{name.replace('_', ' ')} ({formula})" for name, formula in PARTS.items())
    + "."
)


def _talk_recording(
    recording: Path,
    url: str,
    model: str | None,
    api_key: str | None,
    settings: CallerSettings,
    log: Path | None,
    *,
    show: bool,
) -> TalkReport:
    from duologue.realtime.talk_session import talk_recording

    if not show:
        return asyncio.run(talk_recording(recording, url, settings, model=model, api_key=api_key, log_folder=log))
    from duologue.realtime.talk_display import LiveDisplay

    with LiveDisplay() as display:
        return asyncio.run(
            talk_recording(recording, url, settings, model=model, api_key=api_key, log_folder=log, watch=display.show)
        )


def _deliver(report: TalkReport, out: Path | None, as_json: bool) -> None:
    import msgspec

    from duologue.codecs.wav import write_wav
    from duologue.engine.requests import OUTPUT_SAMPLE_RATE
    from duologue.realtime.talk_display import print_report

    if out is not None:
        write_wav(out, report.audio, OUTPUT_SAMPLE_RATE)
    if as_json:
        typer.echo(msgspec.json.encode(report.summary()).decode())
    else:
        print_report(report, out)


def _talk_by_microphone(
    url: str, model: str | None, api_key: str | None, settings: CallerSettings, *, cancel_echo: bool
) -> None:
    from duologue.realtime.client import ClientError
    from duologue.realtime.microphone import SoundUnavailable, talk_by_microphone

    try:
        conversation = talk_by_microphone(
            url, settings, model=model, api_key=api_key, say=typer.echo, cancel_echo=cancel_echo
        )
        asyncio.run(conversation)
    except SoundUnavailable as error:
        raise _fail(str(error)) from error
    except ClientError as error:
        raise _fail(_with_hint(error)) from error
    except KeyboardInterrupt:
        typer.echo("")


def _with_hint(error: ClientError) -> str:
    from duologue.realtime.client import ServerUnreachable

    return f"{error} Start one with: duologue serve" if isinstance(error, ServerUnreachable) else str(error)


def _fail(text: str) -> typer.Exit:
    """Print one line to standard error; to be raised."""
    typer.echo(f"duologue talk: {text}", err=True)
    return typer.Exit(1)
