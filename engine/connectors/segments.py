"""Segments of shared memory: files in a memory file system, with one owner each.

A segment's name is ``duologue-<run>-<worker>-<number>``. Whoever holds its :class:`Segment` owns it, and unlinks it by
reading it or by dropping it. Sending moves it: the sender renames it to the receiver's number and forgets it. So what
a dead worker leaves can be swept by its number, less what this process holds; and what a dead gateway leaves, by its
run, which every worker does when it loses the gateway. A run is named after the process of its gateway, so that what
nobody was left to sweep is known as dead, and swept, by the next gateway (:func:`sweep_dead_runs`).
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import secrets
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from duologue.engine.connectors.pieces import Buffer

GATEWAY = 0
"""Number of the process that started the workers."""


class SharedMemoryError(RuntimeError):
    """Shared memory cannot be used; the message is one line that says what to do."""


def shared_memory_folder() -> Path:
    """Where segments live: the memory file system where there is one, else the folder for temporary files."""
    folder = Path("/dev/shm")
    return folder if folder.is_dir() else Path(tempfile.gettempdir())


def new_run() -> str:
    """Name of a run of this process: ``<process namespace>.<pid>.<its start time>.<random>``.

    A number of a process is used again and means another one in another container, which may share the memory.
    """
    return f"{_namespace()}.{os.getpid()}.{_started(os.getpid())}.{secrets.token_hex(4)}"


def sweep_dead_runs(folder: Path | None = None) -> int:
    """Unlink what runs have left whose gateway is gone; returns how many segments. Others' and live ones' stay."""
    folder = folder or shared_memory_folder()
    dead: dict[str, bool] = {}
    swept = 0
    for entry in os.scandir(folder):
        kind, _, rest = entry.name.partition("-")
        run = rest.partition("-")[0]
        if kind != "duologue" or not _RUN.fullmatch(run):
            continue
        if run not in dead:
            dead[run] = _is_dead(run)
        if dead[run]:
            try:
                os.unlink(entry.path)
                swept += 1
            except (FileNotFoundError, PermissionError):  # swept by another gateway, or another user's
                pass
    return swept


def _is_dead(run: str) -> bool:
    namespace, pid, started, _ = run.split(".")
    return namespace == _namespace() and started != _started(int(pid))


def _namespace() -> str:
    """Of process numbers; ``0`` where the system has only one."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _started(pid: int) -> str:
    """When that process began; empty if it is gone. On Linux in ticks since the boot, which no change of the clock
    moves, elsewhere in hundredths of a second of the clock."""
    try:
        if sys.platform != "linux":
            return str(round(psutil.Process(pid).create_time() * 100))
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return ""
    return "" if fields[0] in "ZX" else fields[19]  # fields 3 and 22 of proc_pid_stat(5): state, starttime


_RUN: Final = re.compile(r"\d+\.\d+\.\d+\.[0-9a-f]{8}")


class Segments:
    """The segments of one run as one process sees them. Thread-safe."""

    def __init__(self, run: str | None = None, worker: int = GATEWAY, folder: Path | None = None) -> None:
        self.run = run or new_run()
        self.worker = worker
        self.folder = folder or shared_memory_folder()
        self._numbers = itertools.count()
        self._held: set[str] = set()
        self._closed = False
        self._lock = threading.Lock()

    def check_room(self, needed: int) -> None:
        """Raise :class:`SharedMemoryError` unless ``needed`` bytes are free."""
        state = os.statvfs(self.folder)
        free = state.f_bavail * state.f_frsize
        if free < needed:
            raise SharedMemoryError(
                f"Shared memory ({self.folder}) has {free / 2**20:.0f} MiB free, and {needed / 2**20:.0f} MiB are "
                "needed: enlarge it (docker run --shm-size=256m), lower the connector's 'min_free_bytes', or run the "
                "stages with 'executor: inline'."
            )

    def write(self, buffers: Sequence[Buffer]) -> Segment:
        """A new segment with these bytes. Raises :class:`SharedMemoryError` when there is no room."""
        with self._lock:  # after `sweep_run` no new name may appear
            if self._closed:
                raise SharedMemoryError("Shared memory is closed: the gateway is gone.")
            name = self._new_name(self.worker)
            fd = os.open(self.folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        segment = self.hold(name, sum(len(b) for b in buffers))
        try:
            _write_all(fd, buffers)  # `write` reports a full file system; a store into a mapping would be fatal
        except OSError as error:
            raise SharedMemoryError(
                f"Shared memory ({self.folder}) is full ({error.strerror}): enlarge it (docker run --shm-size=256m)."
            ) from error
        finally:
            os.close(fd)
        return segment

    def hold(self, name: str, size: int) -> Segment:
        """Own a segment that was sent to this process."""
        self._held.add(name)
        return Segment(self, name, size)

    def sweep(self, worker: int) -> int:
        """Unlink what belongs to a worker that is gone, unless this process holds it. Returns how many there were."""
        return self._unlink_all(f"duologue-{self.run}-{worker}-")

    def sweep_run(self) -> int:
        """Unlink everything of this run and write nothing more: the process ends."""
        with self._lock:
            self._closed = True
        self._held.clear()
        return self._unlink_all(f"duologue-{self.run}-")

    def _unlink_all(self, prefix: str) -> int:
        names = [entry.name for entry in os.scandir(self.folder) if entry.name.startswith(prefix)]
        gone = [name for name in names if name not in self._held]
        for name in gone:
            (self.folder / name).unlink(missing_ok=True)
        return len(gone)

    def _new_name(self, worker: int) -> str:
        # The last part says who made the name, so that two processes never make the same one.
        return f"duologue-{self.run}-{worker}-{self.worker}.{next(self._numbers)}"


class Segment:
    """One owned segment. Dropping the object unlinks it."""

    __slots__ = ("_segments", "name", "size")

    def __init__(self, segments: Segments, name: str, size: int) -> None:
        self._segments = segments
        self.name = name
        self.size = size

    def read(self) -> memoryview:
        """Map the bytes, copy-on-write, and unlink the name; the memory lives as long as the view. Once only."""
        fd = os.open(self._segments.folder / self.name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(fd, self.size, access=mmap.ACCESS_COPY)
        finally:
            os.close(fd)
        self.unlink()
        return memoryview(mapped)

    def link(self) -> Segment:
        """A second name for the same memory, owned separately, for a second taker."""
        name = self._segments._new_name(self._segments.worker)
        os.link(self._segments.folder / self.name, self._segments.folder / name)
        return self._segments.hold(name, self.size)

    def give_to(self, worker: int) -> str:
        """Make another process the owner; returns the name to tell it."""
        name = self.name
        if not name.startswith(f"duologue-{self._segments.run}-{worker}-"):
            name = self._segments._new_name(worker)
            os.rename(self._segments.folder / self.name, self._segments.folder / name)
        self._forget()
        return name

    def unlink(self) -> None:
        """Free the name. Idempotent."""
        if self.name:
            try:
                os.unlink(self._segments.folder / self.name)
            except FileNotFoundError:
                pass
            self._forget()

    def _forget(self) -> None:
        self._segments._held.discard(self.name)
        self.name = ""

    def __del__(self) -> None:
        self.unlink()


def _write_all(fd: int, buffers: Sequence[Buffer]) -> None:
    for buffer in buffers:
        view = memoryview(buffer)
        while view:
            view = view[os.write(fd, view) :]
