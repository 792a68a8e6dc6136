"""The ``duologue`` command. Heavy modules are imported by the command that needs them, so that ``--help`` is quick."""

from __future__ import annotations

import importlib
import os
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from duologue.realtime.deploy_options import MODEL_HELP, AsyncChunk, Speculation, StageOverrides, overrides_of
from duologue.realtime.webrtc_options import AdvertiseAddress, IceServers, MediaWorkers, UdpPorts, WebRtcOptions

COMMANDS_ELSEWHERE = {
    "talk": "duologue.realtime.talk:talk",
    "bench": "duologue.realtime.bench.cli:app",
    "deploy": "duologue.realtime.deploy_commands:app",
    "trace": "duologue.realtime.trace:trace",
}
"""Commands in modules of their own (a function, or a Typer with sub-commands), imported when they are asked for."""


class LazyGroup(TyperGroup):
    """A group whose commands in ``COMMANDS_ELSEWHERE`` are imported on use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *COMMANDS_ELSEWHERE]

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in COMMANDS_ELSEWHERE:
            return super().get_command(ctx, name)
        module, _, attribute = COMMANDS_ELSEWHERE[name].partition(":")
        target = getattr(importlib.import_module(module), attribute)
        if isinstance(target, typer.Typer):
            command = typer.main.get_command(target)
        else:
            alone = typer.Typer(add_completion=False)
            alone.command(name)(target)
            command = typer.main.get_command(alone)
        command.name = name
        return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="Live, two-way conversation with models over the OpenAI Realtime protocol.",
)
models_app = typer.Typer(no_args_is_help=True, help="The models behind the default pipeline.")
app.add_typer(models_app, name="models")


def fail(message: object, code: int = 1) -> typer.Exit:
    """Print one line to standard error; to be raised."""
    typer.echo(f"duologue: {message}", err=True)
    return typer.Exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"duologue {installed_version('duologue')}")
        raise typer.Exit


@app.callback()
def duologue(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP, show_default=False)] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    deploy_config: Annotated[
        Path | None, typer.Option(help="Deploy file; without it the packaged default serves the embedded models.")
    ] = None,
    stage_overrides: StageOverrides = None,
    async_chunk: AsyncChunk = None,
    speculation: Speculation = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Accept this key (repeatable; also DUOLOGUE_API_KEY). Without keys everybody is let in."),
    ] = None,
    log_format: Annotated[Literal["json", "text"], typer.Option(help="Format of the log on standard error.")] = "text",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Least level logged.")
    ] = "info",
    log_traces: Annotated[
        bool, typer.Option("--log-traces", help="Log where the time of each request went (see 'duologue trace').")
    ] = False,
    demo: Annotated[bool, typer.Option("--demo/--no-demo", help="Whether there is a page at /.")] = True,
    ssl_self_signed: Annotated[
        bool, typer.Option("--ssl-self-signed", help="Serve https with a certificate of this machine's own making.")
    ] = False,
    ssl_certfile: Annotated[Path | None, typer.Option(help="Serve https with this certificate (PEM).")] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(help="Its key, if that is in another file.")] = None,
    advertise_address: AdvertiseAddress = None,
    udp_ports: UdpPorts = None,
    ice_server: IceServers = None,
    media_workers: MediaWorkers = None,
) -> None:
    """Serve conversations at /v1/realtime; fetches the models it misses first."""
    from duologue.engine.stages.threads import keep_blas_to_one_thread

    keep_blas_to_one_thread()
    from duologue.engine.deploy import DeployError
    from duologue.realtime.serve import ServeOptions, StartError, run

    keys = [*(api_key or ()), *filter(None, [os.environ.get("DUOLOGUE_API_KEY")])]
    if any(not key.strip() for key in keys):
        raise fail("--api-key is empty; leave it out to let everybody in.")
    if ssl_keyfile is not None and ssl_certfile is None:
        raise fail("--ssl-keyfile is of no use without --ssl-certfile.")
    if ssl_self_signed and ssl_certfile is not None:
        raise fail("--ssl-self-signed and --ssl-certfile exclude each other.")
    try:
        over = overrides_of(model, stage_overrides, async_chunk, speculation)
        webrtc = WebRtcOptions(advertise_address, udp_ports, ice_server or (), media_workers)
        run(
            ServeOptions(
                host,
                port,
                deploy_config,
                tuple(keys),
                log_format,
                log_level,
                over,
                log_traces,
                webrtc=webrtc,
                demo=demo,
                ssl_certfile=ssl_certfile,
                ssl_keyfile=ssl_keyfile,
                ssl_self_signed=ssl_self_signed,
            )
        )
    except (StartError, DeployError) as error:
        raise fail(error) from None


@models_app.command("pull")
def pull(
    name: Annotated[
        str | None, typer.Argument(help="Logical name; without it, all that the default pipeline needs.")
    ] = None,
) -> None:
    """Fetch models into the cache, checked against their pinned digests."""
    from duologue.engine.models import ModelUnavailable
    from duologue.realtime.models import pull_models

    try:
        pull_models(name)
    except ModelUnavailable as error:
        raise fail(error) from None


@models_app.command("list")
def list_models() -> None:
    """Show the known models: licence, size, source, and whether they are there."""
    from duologue.realtime.models import show_models

    show_models()


@app.command()
def doctor() -> None:
    """Say which models, extras and devices are usable; exit code 1 if the default pipeline could not run now."""
    from duologue.realtime.doctor import report

    if not report():
        raise typer.Exit(1)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
