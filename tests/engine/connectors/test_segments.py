"""Segments: one owner unlinks, whatever happens."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripted_stages import block

from duologue.engine.connectors.pieces import PieceTypes
from duologue.engine.connectors.segments import Segments, SharedMemoryError, sweep_dead_runs
from duologue.engine.connectors.shared_memory import SharedMemoryConnector


@pytest.fixture
def ends(tmp_path: Path) -> tuple[SharedMemoryConnector, SharedMemoryConnector]:
    """The gateway's end and that of worker 7."""
    types = PieceTypes(["scripted_stages:Block"])
    ours = Segments(folder=tmp_path)
    return tuple(  # type: ignore[return-value]
        SharedMemoryConnector(types, s, 1000) for s in (ours, Segments(ours.run, 7, tmp_path))
    )


def test_the_reader_unlinks_and_the_memory_lives_on(ends: Any, tmp_path: Path) -> None:
    gateway, worker = ends
    packed = gateway.pack(block(3, 5000)).give_to(7)
    assert packed.data is None
    assert os.listdir(tmp_path) == [packed.segment]
    parcel = worker.receive(packed)
    piece = parcel.open()
    assert os.listdir(tmp_path) == []
    del parcel
    assert piece.values.sum() == 2500
    piece.values[0] = 9  # a private copy: writable, and nobody else's


def test_a_small_piece_needs_no_segment(ends: Any, tmp_path: Path) -> None:
    gateway, worker = ends
    packed = gateway.pack(block(3, 5)).give_to(7)
    assert packed.segment is None
    assert os.listdir(tmp_path) == []
    assert worker.receive(packed).open().number == 3


def test_dropping_a_parcel_unlinks(ends: Any, tmp_path: Path) -> None:
    parcel = ends[0].pack(block(3, 5000))
    assert len(os.listdir(tmp_path)) == 1
    del parcel
    assert os.listdir(tmp_path) == []


def test_two_takers_have_a_name_each_and_do_not_see_each_other_s_writes(ends: Any, tmp_path: Path) -> None:
    gateway, worker = ends
    first = gateway.pack(block(3, 5000))
    second = first.link()
    mine = worker.receive(first.give_to(7)).open()
    assert len(os.listdir(tmp_path)) == 1
    mine.values[:] = 0
    assert second.open().values.sum() == 2500
    assert os.listdir(tmp_path) == []


def test_what_a_dead_worker_owned_is_swept_and_nothing_else(ends: Any, tmp_path: Path) -> None:
    gateway, worker = ends
    made_and_not_sent = worker.pack(block(0, 5000))
    sent_on_to_it = gateway.pack(block(1, 5000)).give_to(7)
    arrived = gateway.receive(worker.pack(block(2, 5000)).give_to(7))
    gone_to_another = gateway.pack(block(3, 5000)).give_to(8)
    assert gateway.segments.sweep(7) == 2
    assert sent_on_to_it.segment not in os.listdir(tmp_path)
    assert arrived.open().number == 2
    assert os.listdir(tmp_path) == [gone_to_another.segment]
    made_and_not_sent._segment.unlink()  # already gone: harmless


def test_the_end_of_the_run_frees_everything_and_lets_nothing_in(ends: Any, tmp_path: Path) -> None:
    gateway, worker = ends
    kept = [gateway.pack(block(0, 5000)), worker.pack(block(0, 5000))]
    other_run = Segments(folder=tmp_path).write([b"x"])
    worker.segments.sweep_run()
    assert os.listdir(tmp_path) == [other_run.name]
    with pytest.raises(SharedMemoryError, match="closed"):
        worker.pack(block(0, 5000))
    del kept


def test_a_full_file_system_is_an_error_that_says_what_to_do_and_leaves_nothing(
    ends: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SharedMemoryError, match=r"is full \(No space left on device\): enlarge it") as caught:
        ends[0].pack(block(0, 5000))
    del caught
    assert os.listdir(tmp_path) == []


HOLDER = """
import os, sys
from pathlib import Path
from duologue.engine.connectors.segments import Segments
segments = Segments(folder=Path(sys.argv[1]))
kept = [segments.write([b"x" * 100]), Segments(segments.run, 3, segments.folder).write([b"y"])]
os.link(kept[0]._segments.folder / kept[0].name, Path(sys.argv[1]) / kept[0].name.replace("-0-", "-9-", 1))
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_gateway_and_its_workers_left_is_swept_and_live_runs_stay(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder, holder.stdin, holder.stdout:
        assert holder.stdout.readline() == "ready\n"
        mine = Segments(folder=tmp_path).write([b"z"])
        stranger = tmp_path / "duologue-cache"
        stranger.write_bytes(b"not a segment")
        assert sweep_dead_runs(tmp_path) == 0, "both runs are live"
        holder.kill()
        psutil.wait_procs([psutil.Process(holder.pid)])
    assert len(os.listdir(tmp_path)) == 5
    assert sweep_dead_runs(tmp_path) == 3
    assert set(os.listdir(tmp_path)) == {mine.name, stranger.name}
    mine.unlink()


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        (lambda ns, pid, started: (ns, pid, started), False),
        (lambda ns, pid, started: (ns, pid, started + 1), True),
        (lambda ns, pid, started: (ns, 2**22 + 1, started), True),
        (lambda ns, pid, started: (ns + 1, 2**22 + 1, started), False),
    ],
    ids=["this process", "its number used before", "no such process", "another container's"],
)
def test_a_run_is_dead_when_its_process_is(tmp_path: Path, change: Any, dead: bool) -> None:
    ours = [int(part) for part in Segments(folder=tmp_path).run.split(".")[:3]]
    name = "duologue-" + ".".join(map(str, change(*ours))) + ".0123abcd-0-0.0"
    (tmp_path / name).write_bytes(b"x")
    assert sweep_dead_runs(tmp_path) == int(dead)


def test_too_little_room_is_told(tmp_path: Path) -> None:
    Segments(folder=tmp_path).check_room(1)
    with pytest.raises(SharedMemoryError, match=r"has \d+ MiB free, and 1048576 MiB are needed: enlarge it"):
        Segments(folder=tmp_path).check_room(2**40)
