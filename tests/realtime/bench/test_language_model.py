"""``duologue bench language-model``: the prompts are what it says they are; no speed is asserted."""

from __future__ import annotations

import msgspec
import pytest
from typer.testing import CliRunner

from duologue.engine.models import pull
from duologue.realtime.bench.cli import app
from duologue.realtime.bench.language_model import LanguageModelReport, deploy_for, measure_backend


@pytest.mark.models
async def test_warm_turns_are_cached_and_cold_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.realtime.bench.language_model.ANSWER_TOKENS", 6)
    monkeypatch.setattr("duologue.realtime.bench.language_model.TOGETHER_TOKENS", 3)
    pull("smollm2-135m-instruct")
    report = await measure_backend(deploy_for("llamacpp", "smollm2-135m-instruct"), 3, 1, [1, 3])
    assert [(turn.number, turn.kind) for turn in report.turns] == [(1, "turn"), (2, "barge-in"), (3, "speculation")]
    first, barge_in, speculation = report.turns
    assert first.cached_tokens < 20  # what the template puts before the instructions
    for turn, before in ((barge_in, first), (speculation, barge_in)):
        assert turn.warm.n == turn.cold.n == 1
        assert before.prompt_tokens - 2 <= turn.cached_tokens < turn.prompt_tokens
    assert report.tokens_per_second.unit == "tokens/s"
    assert [(part.callers, part.output_tokens) for part in report.together] == [(1, 3), (3, 9)]
    assert all(part.first_token.n == part.callers and part.tokens_per_second.n == 1 for part in report.together)


def test_json_is_one_object_that_reads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def measured(deploys: list[object], turns: int, repeats: int, callers: list[int]) -> LanguageModelReport:
        asked.append((len(deploys), turns, repeats, callers))
        return LanguageModelReport([])

    monkeypatch.setattr("duologue.realtime.bench.language_model_command.run_language_models", measured)
    options = ["--backend", "llamacpp", "--turns", "4", "--callers", "1", "--callers", "8", "--json"]
    outcome = CliRunner().invoke(app, ["language-model", *options])
    assert outcome.exit_code == 0, outcome.output
    assert msgspec.json.decode(outcome.stdout, type=LanguageModelReport) == LanguageModelReport([])
    assert asked == [(1, 4, 3, [1, 8])]


def test_an_unknown_backend_is_said_so() -> None:
    outcome = CliRunner().invoke(app, ["language-model", "--backend", "gpt"])
    assert outcome.exit_code == 1
    assert "unknown backend 'gpt'" in outcome.output
