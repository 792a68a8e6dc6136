"""Watching and running a server from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from duologue.realtime.bench.caller import CallerSettings
from duologue.realtime.bench.cpu_clock import cpu_seconds
from duologue.realtime.bench.server_process import ServerSample, ServerWatch, own_server
from duologue.realtime.bench.voice_report import RunInfo, _server_use
from duologue.realtime.client import ServerUnreachable


def test_a_watch_sees_time_spent_and_memory():
    watch = ServerWatch(os.getpid())
    watch.take("run_start")
    while os.times().user + os.times().system - watch.samples[0].cpu_s < 0.05:
        sum(range(10_000))
    watch.take("run_end")
    first, last = watch.samples
    assert last.cpu_s - first.cpu_s >= 0.03
    assert last.rss_bytes > 10_000_000


def test_time_is_seen_much_finer_than_the_ticks_of_the_system():
    process = psutil.Process()
    before = cpu_seconds(process)
    spent = time.process_time()
    while time.process_time() - spent < 0.002:
        pass
    assert 0.002 <= cpu_seconds(process) - before < 0.01


def test_a_process_that_is_gone_has_no_time():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(ended.pid)
    ended.wait()
    with pytest.raises(psutil.NoSuchProcess):
        cpu_seconds(process)


def test_use_is_taken_between_the_marks_and_memory_over_all_samples():
    samples = [
        ServerSample("idle_start", 10.0, 5.0, 100),
        ServerSample("idle_end", 15.0, 5.05, 100),
        ServerSample("run_start", 16.0, 6.0, 100, 3.0),
        ServerSample("sample", 17.0, 6.5, 900, 3.1),
        ServerSample("run_end", 26.0, 8.0, 200, 3.25),
    ]
    info = RunInfo("ws://x", True, 2, 0, 0, 0, None, {}, CallerSettings(), [], 4.5, {})
    use = _server_use(info, samples, session_s=20.0)
    assert (use.idle_cpu_share, use.cpu_s_per_session_s, use.rss_max_bytes, use.ready_s) == (0.01, 0.1, 900, 4.5)
    assert use.stolen_share == 0.025
    unknown = [msgspec.structs.replace(sample, stolen_s=None) for sample in samples]
    assert _server_use(info, unknown, session_s=20.0).stolen_share is None


def test_what_the_host_takes_is_read_where_the_system_tells_it() -> None:
    watch = ServerWatch(os.getpid())
    watch.take("sample")
    assert (watch.samples[0].stolen_s is not None) == sys.platform.startswith("linux")


async def test_a_server_that_cannot_start_is_told_in_its_own_words(tmp_path: Path):
    """What `duologue serve` says of a wrong deploy file is tested where it is made; here: that it is passed on."""
    program = "import sys; print('loading', file=sys.stderr); sys.exit('duologue: ' + ' '.join(sys.argv[1:]))"
    with pytest.raises(ServerUnreachable, match=r"duologue: serve --port 0 --deploy-config \S+/deploy\.yaml \(log: "):
        async with own_server(tmp_path / "deploy.yaml", tmp_path / "server.log", program=program):
            pass


async def test_a_server_is_there_once_it_says_so_and_is_interrupted_at_the_end(tmp_path: Path):
    program = """
import signal, sys
print("Listening on x", flush=True)
print("duologue ready ws://127.0.0.1:1/v1/realtime and more", flush=True)
print(signal.sigwait([signal.SIGINT]).name, file=sys.stderr)
"""
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])"
    async with own_server(None, tmp_path / "server.log", program=block + program) as server:
        assert server.url == "ws://127.0.0.1:1/v1/realtime"
        assert psutil.pid_exists(server.pid)
    assert not psutil.pid_exists(server.pid)
    assert (tmp_path / "server.log").read_text() == "SIGINT\n"
