"""``duologue doctor``: which models, extras and devices are usable here."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from duologue.engine.cores import usable_cores
from duologue.engine.deploy import load_deploy
from duologue.engine.models import MODELS, locate
from duologue.realtime.compiled import is_compiled
from duologue.realtime.models import needed_models

Verdict = Literal["ok", "missing", "unused"]
"""``missing`` keeps the default pipeline from running; ``unused`` is something optional that is not there."""

REQUIRED = {
    "onnxruntime": "voice activity, speech synthesis",
    "faster_whisper": "speech recognition",
    "xllamacpp": "language model",
    "hibari": "speech synthesis",
    "soxr": "resampling",
    "uvloop": "event loop",
    "httptools": "HTTP server",
}
EXTRAS = {
    "sounddevice": ("mic", "talk --mic"),
    "livekit.rtc": ("audio", "noise_reduction of a session, which has no effect without it"),
    "openai": ("test", "tests with the OpenAI client"),
}


@dataclass(frozen=True)
class Finding:
    kind: str
    name: str
    verdict: Verdict
    detail: str


def report() -> bool:
    """Print what was found; True if the default pipeline could run now."""
    findings = list(examine())
    table = Table()
    for heading in ("", "name", "usable", "detail"):
        table.add_column(heading, overflow="fold")
    colours: dict[Verdict, str] = {"ok": "green", "missing": "red", "unused": "dim"}
    for finding in findings:
        colour = colours[finding.verdict]
        usable = "yes" if finding.verdict == "ok" else "no"
        table.add_row(finding.kind, finding.name, f"[{colour}]{usable}[/]", escape(finding.detail))
    Console().print(table)
    return all(finding.verdict != "missing" for finding in findings)


def examine() -> Iterator[Finding]:
    """Everything worth knowing before a server is started."""
    yield Finding("system", "python", "ok", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield Finding("system", "sessions", "ok", "compiled" if is_compiled() else "plain Python, not compiled")
    yield from _packages()
    yield from _models()
    yield from _devices()


def _packages() -> Iterator[Finding]:
    for module, purpose in REQUIRED.items():
        problem = _import_problem(module)
        yield Finding("package", module, "missing" if problem else "ok", problem or purpose)
    for module, (extra, purpose) in EXTRAS.items():
        problem = _import_problem(module)
        detail = f"{purpose}; pip install 'duologue[{extra}]' ({problem})" if problem else purpose
        yield Finding("extra", extra, "unused" if problem else "ok", detail)


def _import_problem(module: str) -> str | None:
    """Why a module cannot be imported, in one line; None if it can."""
    try:
        import_module(module)
    except (ImportError, OSError) as error:  # OSError: a shared library that a wrapper needs is not installed
        return str(error).splitlines()[0]
    return None


def _models() -> Iterator[Finding]:
    needed = needed_models(load_deploy())
    for name in MODELS:
        path = locate(name)
        if path is not None:
            yield Finding("model", name, "ok", str(path))
        elif name in needed:
            yield Finding("model", name, "missing", f"run 'duologue models pull {name}' ('duologue serve' does it too)")
        else:
            yield Finding("model", name, "unused", "not needed by the default pipeline")


def _devices() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    cores = usable_cores()
    yield Finding("device", "CPU", "ok", f"{cores} cores, {memory.available / 2**30:.1f} GiB of memory free")
    yield _gpu()
    yield _microphone()


def _gpu() -> Finding:
    import ctranslate2

    count = ctranslate2.get_cuda_device_count()
    detail = f"{count} with CUDA" if count else "none with CUDA; everything runs on the CPU"
    return Finding("device", "GPU", "ok" if count else "unused", detail)


def _microphone() -> Finding:
    problem = _import_problem("sounddevice")
    if problem:
        return Finding("device", "microphone", "unused", "needs the extra 'mic'")
    import sounddevice

    try:
        device = sounddevice.query_devices(kind="input")
    except (sounddevice.PortAudioError, ValueError) as error:
        return Finding("device", "microphone", "unused", str(error))
    return Finding("device", "microphone", "ok", str(device["name"]))
