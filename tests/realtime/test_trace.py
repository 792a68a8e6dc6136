"""``duologue trace``: one request's first-events, from a run of its own or from a server's log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import websockets
from served import server
from typer.testing import CliRunner

from duologue.engine.edge_trace import EdgeTrace
from duologue.engine.metering import RequestTrace
from duologue.realtime.cli import app
from duologue.realtime.logs import JsonFormatter
from duologue.realtime.trace import TraceError, from_log


def line(request_id: str, **edge: Any) -> str:
    """A line of the log as the server writes it."""
    trace = RequestTrace(
        "r",
        "s",
        "converse",
        "completed",
        None,
        100.0,
        (EdgeTrace("a", "client", **edge),),
        {"a 0": 0.5},
        {"a 0": 101.0},
    )
    trace = msgspec.structs.replace(trace, request_id=request_id)
    record = logging.makeLogRecord({"msg": "trace", "name": "duologue.trace", "trace": msgspec.to_builtins(trace)})
    return JsonFormatter().format(record)


def run(*arguments: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, ["trace", *arguments], input=stdin)


def test_the_log_is_searched_for_one_request_or_the_last() -> None:
    lines = ["not of the log", '{"message": "no trace"}', line("one"), line("two"), '{"trace": {"request_id": 5}}']
    assert from_log(lines).request_id == "two"
    assert from_log(lines, "one").request_id == "one"
    with pytest.raises(TraceError, match="no trace of request 'three'"):
        from_log(lines, "three")
    with pytest.raises(TraceError, match="--log-traces"):
        from_log(lines[:2])


def test_times_are_shown_on_one_clock_and_those_of_another_host_by_its_name() -> None:
    logged = line("far", emitted=3.0, sent=100.25, accepted=None, source_clock="node-7")
    shown = run("--log", "-", stdin=logged)
    assert shown.exit_code == 0, shown.output
    (row,) = [row for row in shown.output.splitlines() if "client" in row]
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == ["a", "client", "node-7", "250.0", "-", "-"]
    asked = json.loads(run("--log", "-", "--json", stdin=logged).stdout)
    assert (asked["request_id"], asked["edges"][0]["emitted"], asked["edges"][0]["source_clock"]) == (
        "far",
        3.0,
        "node-7",
    )


def test_a_log_without_the_request_is_one_clear_line(tmp_path: Path) -> None:
    for arguments in (("--log", str(tmp_path / "nowhere")), ("--log", "-", "--request", "x")):
        done = run(*arguments, stdin="")
        assert done.exit_code == 1
        (said,) = done.stderr.strip().splitlines()
        assert said.startswith("duologue trace: ")


@pytest.mark.models
def test_a_request_of_its_own_has_every_event_in_order() -> None:
    done = run("Say yes.", "--json")
    assert done.exit_code == 0, done.output
    trace = msgspec.json.decode(done.stdout, type=RequestTrace)
    assert [(edge.source, edge.target) for edge in trace.edges] == [
        ("client", "language_model"),
        ("language_model", "talker"),
        ("talker", "codec"),
        ("language_model", "client"),
        ("codec", "client"),
    ]
    for edge in trace.edges:
        times = [edge.since(trace.opened, event) for event in ("emitted", "sent", "accepted")]
        if edge.target != "client":
            times.append(edge.since(trace.opened, "produced"))
        assert None not in times
        assert times == sorted(times)  # type: ignore[type-var]
    assert set(trace.released) == set(trace.busy_s)
    assert set(trace.busy_s) == {"language_model 0", "talker 0", "codec 0"}


@pytest.mark.models
async def test_a_server_logs_the_trace_of_each_request(tmp_path: Path) -> None:
    with server(tmp_path, "--log-format", "json", "--log-traces", "--log-level", "warning") as served:
        async with websockets.connect(served.ws) as connection:
            for event in (
                {"type": "session.update", "session": {"type": "realtime", "output_modalities": ["text"]}},
                {
                    "type": "conversation.item.create",
                    "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
                },
                {"type": "response.create", "response": {"max_output_tokens": 8}},
            ):
                await connection.send(json.dumps(event))
            while json.loads(await connection.recv())["type"] != "response.done":
                pass
        assert httpx2.get(f"{served.url}/health").status_code == 200
        assert served.stop()[0] == 0
    trace = from_log(served.errors.read_text().splitlines())
    assert (trace.kind, trace.failure) == ("converse", None)
    assert {(edge.source, edge.target) for edge in trace.edges} == {
        ("client", "language_model"),
        ("language_model", "client"),
    }
