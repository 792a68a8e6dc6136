"""``duologue serve``: bind, answer 503 while the models load, serve, and leave without a trace."""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psutil
import uvloop

from duologue.codecs.noise_suppression import load_noise_suppression
from duologue.engine.deploy import DeployConfig, DeployError, Overrides, load_deploy
from duologue.engine.engine import Engine
from duologue.engine.executors.restarts import WorkerError
from duologue.engine.executors.threads import run_in_thread
from duologue.engine.models import ModelUnavailable, cache_root
from duologue.engine.pipeline import PipelineError
from duologue.realtime import logs, mcp_client
from duologue.realtime.app import create_app
from duologue.realtime.auth import ApiKeys
from duologue.realtime.certificates import CertificateError, fingerprint, self_signed
from duologue.realtime.gateway import EdgeSettings, Gateway
from duologue.realtime.http_server import http_server
from duologue.realtime.models import missing_models, needed_models, optional_model
from duologue.realtime.progress import StartProgress
from duologue.realtime.webrtc_options import WebRtcOptions, laid_over
from duologue.sessions.errors import ProtocolError
from duologue.sessions.manager import SessionManager, settings_from_deploy

logger = logging.getLogger(__name__)

DRAIN_S = 2.5
"""How long running answers may go on after the first signal. With the rest of the shutdown it stays below 5 s."""


class StartError(Exception):
    """The server cannot start; the message is one line for the person who started it."""


@dataclass(frozen=True)
class ServeOptions:
    host: str = "127.0.0.1"
    port: int = 8000
    deploy_config: Path | None = None
    api_keys: tuple[str, ...] = ()
    log_format: logs.LogFormat = "text"
    log_level: str = "info"
    overrides: Overrides | None = None
    log_traces: bool = False
    """Whether each request's first-events are logged, at whatever level."""
    webrtc: WebRtcOptions = field(default_factory=WebRtcOptions)
    demo: bool = True
    """Whether there is a page at ``/``."""
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    """The key, unless it is in the file of the certificate."""
    ssl_self_signed: bool = False
    """Whether a certificate is made where none is given."""


SWITCH_INTERVAL_S = 0.0005


def share_interpreter() -> None:
    """Let a thread have the interpreter within half a millisecond of wanting it.

    Python's own 5 ms are several times what a step of voice activity takes, and the event loop wants the interpreter
    back after each; so does a stage's thread.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def settle() -> None:
    """Leave everything that has been made by now out of garbage collections. Called once the server is ready.

    Nearly all of it lasts as long as the process; to look through it stops the event loop for 30 ms.
    """
    gc.collect()
    gc.freeze()


def run(options: ServeOptions) -> None:
    """Serve until SIGINT or SIGTERM. Raises ``StartError`` if that cannot begin."""
    logs.configure(options.log_format, options.log_level, options.log_traces)
    try:
        deploy = laid_over(load_deploy(options.deploy_config, overrides=options.overrides), options.webrtc)
        engine = Engine(deploy)
    except (DeployError, PipelineError, ModelUnavailable) as error:
        raise StartError(str(error)) from error
    options = _with_certificate(options)
    listener = listen(options.host, options.port)
    share_interpreter()
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop, debug=options.log_level == "debug") as runner:
        runner.get_loop().slow_callback_duration = 0.05
        runner.run(_serve(options, deploy, engine, listener))


def _with_certificate(options: ServeOptions) -> ServeOptions:
    """``options`` with a certificate if one is to be made. Raises ``StartError`` for one that cannot be used."""
    try:
        if options.ssl_self_signed:
            return replace(options, ssl_certfile=self_signed(cache_root() / "certificates"))
        if options.ssl_certfile is not None:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                options.ssl_certfile, options.ssl_keyfile
            )
    except (CertificateError, OSError) as error:  # ssl.SSLError is an OSError
        raise StartError(f"The certificate cannot be used: {error}") from error
    return options


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ``StartError`` that says what is wrong with the address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=512)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"Port {port} on {host} is already in use. Choose another with --port.") from error
        raise StartError(f"Cannot listen on {host}, port {port}: {error.strerror or error}.") from error


async def _serve(options: ServeOptions, deploy: DeployConfig, engine: Engine, listener: socket.socket) -> None:
    stop, hurry = _watch_signals()
    try:
        engine.check_arguments()
        settings = settings_from_deploy(deploy, engine.served_names(), engine.pipeline.capabilities)
    except ProtocolError as error:
        raise StartError(f"{deploy.file}: {error.message}") from error
    except DeployError as error:
        raise StartError(str(error)) from error
    gateway = Gateway(engine, settings.names, EdgeSettings.of(deploy))
    server = http_server(
        create_app(gateway, ApiKeys(options.api_keys), options.demo),
        certificate=options.ssl_certfile,
        private_key=options.ssl_keyfile,
    )
    http = asyncio.create_task(server.serve([listener]), name="http server")
    _say_where(options, listener)
    started = time.monotonic()
    try:
        if not await _finished_before(stop, _start(gateway, engine, deploy)):
            return
        # Only now: what a model can do may be written in files that have just been fetched.
        settings = settings_from_deploy(deploy, engine.served_names(), engine.pipeline.capabilities)
        make_suppressor = await run_in_thread(load_noise_suppression, "noise-suppression-load")
        settings = replace(settings, make_suppressor=make_suppressor)
        tool_servers = mcp_client.McpServers if mcp_client.installed() else None
        manager = SessionManager(engine, settings, tool_servers=tool_servers)
        gateway.open(manager)
        settle()
        _say(f"duologue ready {_address(options, listener, 'ws')}/v1/realtime after {time.monotonic() - started:.1f} s")
        await stop.wait()
        gateway.draining = True
        logger.info("draining %d sessions", manager.open_sessions)
        if not await _finished_before(hurry, manager.drain(DRAIN_S)):
            await manager.drain(0)
    finally:
        await gateway.close()
        server.should_exit = True
        server.force_exit = hurry.is_set()
        await http
        await engine.close()


async def _start(gateway: Gateway, engine: Engine, deploy: DeployConfig) -> None:
    """Start the processes for calls, then load. Raises ``StartError``."""
    try:
        await gateway.start_media()
    except (WorkerError, OSError) as error:
        raise StartError(f"The media workers could not be started: {error}") from error
    except ProtocolError as error:
        raise StartError(f"webrtc.media_workers: {error.message}") from error
    await _load(engine, deploy)


async def _load(engine: Engine, deploy: DeployConfig) -> None:
    """Fetch the models that are missing, then load every stage. Raises ``StartError``."""
    try:
        with StartProgress() as progress:
            for name in missing_models(needed_models(deploy)):
                try:
                    await _in_thread_of_its_own(partial(progress.pull, name))
                except ModelUnavailable as error:
                    if name != optional_model(deploy):
                        raise
                    logger.warning("going on without it: %s", error)
            await engine.start(progress.stage_moved)
    except (ModelUnavailable, DeployError) as error:
        raise StartError(str(error)) from error
    except Exception as error:
        logger.debug("loading failed", exc_info=True)
        raise StartError(f"The models could not be loaded: {type(error).__name__}: {error}") from error


async def _in_thread_of_its_own(download: Callable[[], object]) -> None:
    """Run a download on a daemon thread: it cannot be interrupted, and must not keep a stopped server alive.

    When cancelled, what the download has started (an installer) is ended.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error else done.set_result(None)

    def run() -> None:
        error: BaseException | None = None
        try:
            download()
        except BaseException as raised:  # noqa: BLE001 - handed to whoever waits
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="model download", daemon=True).start()
    try:
        await done
    except asyncio.CancelledError:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        raise


async def _finished_before(event: asyncio.Event, work: Awaitable[None]) -> bool:
    """Run ``work`` unless ``event`` comes first, which cancels it. Raises what ``work`` raises."""
    task = asyncio.ensure_future(work)
    interrupted = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for unfinished in (task, interrupted):
            unfinished.cancel()
        await asyncio.gather(task, interrupted, return_exceptions=True)


def _watch_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Events for the first and for the second SIGINT or SIGTERM."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def received() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, received)
    return stop, hurry


# -- words to the person who started it --------------------------------------------------------------------------------


def _address(options: ServeOptions, listener: socket.socket, scheme: str) -> str:
    """``scheme`` is the plain one, ``http`` or ``ws``."""
    host, port = listener.getsockname()[:2]
    scheme += "s" if options.ssl_certfile else ""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _say_where(options: ServeOptions, listener: socket.socket) -> None:
    address = _address(options, listener, "http")
    page = "in a browser: /, " if options.demo else ""
    _say(f"Listening on {address} ({page}health: /health, models: /v1/models, metrics: /metrics)")
    if options.ssl_self_signed and options.ssl_certfile is not None:
        print(
            "The certificate is this machine's own: browsers warn once. Its SHA-256 fingerprint is "
            f"{fingerprint(options.ssl_certfile)}.",
            file=sys.stderr,
            flush=True,
        )
    if not options.api_keys and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        print(
            "warning: anyone who can reach this address may use the server; set --api-key or DUOLOGUE_API_KEY.",
            file=sys.stderr,
            flush=True,
        )


def _say(line: str) -> None:
    print(line, flush=True)
