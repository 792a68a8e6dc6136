"""``/metrics`` after real conversations: parsed, and held against what the client saw."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import Served

pytestmark = pytest.mark.models

EDGES = (
    ("client", "language_model"),
    ("language_model", "talker"),
    ("language_model", "client"),
    ("talker", "codec"),
    ("codec", "client"),
)


class Scrape:
    """All samples of one look at ``/metrics``."""

    def __init__(self, served: Served) -> None:
        text = httpx2.get(f"{served.url}/metrics").text
        self.values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.values.get((f"duologue_{name}", frozenset(labels.items())), 0.0)


async def test_a_spoken_answer_shows_in_every_family(served: Served, converse: Any) -> None:
    before = Scrape(served)
    async with converse() as talk:
        during = Scrape(served)
        await talk.write("What is the capital of France?")
        response = await talk.respond(max_output_tokens=60)
        sound_s = len(talk.audio_of(response["id"])) / 2 / 24_000
    after = Scrape(served)

    def grown(name: str, **labels: str) -> float:
        return after.value(name, **labels) - before.value(name, **labels)

    assert (before.value("sessions_open") + 1, after.value("sessions_open")) == (
        during.value("sessions_open"),
        before.value("sessions_open"),
    )
    codec = {"stage": "codec", "replica": "0"}
    assert grown("audio_ttfp_s_count", **codec) == 1
    assert grown("audio_duration_s_sum", **codec) == pytest.approx(sound_s, abs=0.001)
    assert 0 < grown("audio_rtf_sum", **codec) < 1
    judged = grown("audio_underrun_s_count", **codec) + grown("audio_skipped_requests_total", reason="single_chunk")
    assert judged == 1
    assert grown("time_to_first_token_s_count", stage="language_model", replica="0") == 1
    reason = "length" if response["status"] == "incomplete" else "completed"
    assert grown("requests_total", finished_reason=reason) == 1
    assert grown("responses_total", status=response["status"]) == 1
    assert grown("e2e_request_latency_s_count", kind="converse") == 1
    for stage in ("language_model", "talker", "codec"):
        assert grown("stage_gen_time_s_count", stage=stage, replica="0") == 1
        assert ("duologue_stage_in_flight", frozenset({"stage": stage, "replica": "0"}.items())) in after.values
        assert after.value("stage_waiting_requests", stage=stage, replica="0") == 0
    for source, target in EDGES:
        for event in ("emitted", "sent", "accepted", *(("produced",) if target != "client" else ())):
            labels = {"from_stage": source, "to_stage": target, "event": event, "clock": "host"}
            assert grown("edge_first_event_s_count", **labels) == 1, labels
    hop = {"from_stage": "codec", "from_replica": "0", "to_stage": "client", "to_replica": ""}
    assert grown("transfer_size_bytes_sum", **hop) == sound_s * 48_000
    assert grown("transfer_tx_s_count", **hop) == grown("transfer_size_bytes_count", **hop)


async def test_a_cancelled_answer_is_a_failure_by_the_client(served: Served, converse: Any) -> None:
    before = Scrape(served)
    async with converse() as talk:
        await talk.write("Tell me a very long story about the sea.")
        await talk.send("response.create")
        await talk.until("response.output_audio.delta")
        await talk.send("response.cancel")
        assert (await talk.until("response.done"))["response"]["status"] == "cancelled"
    after = Scrape(served)
    for name, labels in (
        ("requests_failed_total", {"reason": "client_abort"}),
        ("requests_total", {"finished_reason": "aborted"}),
        ("responses_total", {"status": "cancelled"}),
    ):
        assert after.value(name, **labels) - before.value(name, **labels) == 1, name


async def test_a_client_that_hangs_up_is_counted_as_such(served: Served, converse: Any) -> None:
    before = Scrape(served)
    async with converse(check=False) as talk:
        await talk.write("Tell me a very long story about the sea.")
        await talk.send("response.create")
        await talk.until("response.output_audio.delta")
    async with converse():  # by now the server has seen the other one go
        pass
    after = Scrape(served)
    gone = {"reason": "client_disconnect"}
    assert after.value("requests_failed_total", **gone) - before.value("requests_failed_total", **gone) == 1


async def test_a_spoken_turn_says_how_long_the_answer_took(served: Served, converse: Any, recording: Any) -> None:
    before = Scrape(served)
    async with converse() as talk:
        await talk.update(audio={"input": {"turn_detection": {"type": "server_vad"}}})
        await talk.append(recording("goforward") + bytes(48_000))
        await talk.until("response.output_audio.delta")
        await talk.send("response.cancel")
        await talk.until("response.done")
    after = Scrape(served)
    name = "speech_stopped_to_first_audio_s_count"
    assert after.value(name) - before.value(name) == 1
