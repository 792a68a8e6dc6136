"""Judges: the local one's arithmetic, the http one against a real server, verdicts kept until something changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from duologue.realtime.bench.fdb.judge import (
    HttpJudge,
    JudgeError,
    LocalJudge,
    Overheard,
    Verdicts,
    overlap,
    parse_score,
    tokens,
)


def heard(event: str = "stop it", noisy: str = "", clean: str = "") -> Overheard:
    return Overheard(event, "in", noisy, "in", clean)


def test_tokens_and_their_overlap():
    assert tokens("It IS a “red cup” 好吗 42x") == ["it", "is", "a", "red", "cup", "好", "吗", "42x"]
    assert overlap("The cup is red", "It is a red cup.") == 0.75
    assert overlap("", "x") == 0.0


def test_the_local_judge_is_arithmetic():
    judge = LocalJudge()
    assert judge.rate("c", "what colour is the cup", "the cup is red").score == 3.0
    assert judge.behaviour(heard()) == "C_UNKNOWN"
    assert judge.behaviour(heard(noisy="once upon a time there", clean="once upon a time")) == "C_RESUME"
    assert judge.behaviour(heard("why is the sky blue", "the sky is blue because", "a train")) == "C_RESPOND"
    assert judge.behaviour(heard("why is the sky blue", "pardon me", "a train")) == "C_UNCERTAIN_HANDLING"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"score": 4}', 4.0),
        ('Well: ```json\n{"score": 3.5, "why": "x"}\n```', 3.5),
        ("4", 4.0),
        ('{"score": 17}', 5.0),
        ("-2", 0.0),
        ("8/10", 5.0),
        ("garbage", None),
        ('{"score": "bad 0.3"}', 0.3),
    ],
)
def test_ratings_are_read_wherever_they_are(text: str, score: float | None):
    assert parse_score(text) == score


class Endpoint:
    """An OpenAI-style server with prepared answers; an int is a status to fail with."""

    def __init__(self) -> None:
        self.answers: list[str | int] = []
        self.requests: list[tuple[dict, dict]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append((body, dict(self.headers)))
                answer = outer.answers.pop(0)
                if isinstance(answer, int):
                    self.send_error(answer)
                    return
                reply = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield endpoint
    endpoint.server.shutdown()
    thread.join()
    endpoint.server.server_close()


def test_an_http_judge_asks_and_is_asked_again(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JUDGE_API_KEY", "secret")
    endpoint.answers = [500, "no idea", '{"score": 4}', '{"label": "C_RESUME"}']
    judge = HttpJudge(endpoint.url, "m", backoff_s=0)
    rating = judge.rate("before", "over it", "answer")
    assert (rating.score, rating.unparsed) == (4.0, 1)
    assert judge.behaviour(heard()) == "C_RESUME"
    body, headers = endpoint.requests[0]
    assert (body["model"], body["temperature"], body["max_tokens"], body["stream"]) == ("m", 0, 512, False)
    assert "over it" in body["messages"][1]["content"]
    assert headers["Authorization"] == "Bearer secret"


def test_an_http_judge_that_does_not_answer_is_an_error(endpoint: Endpoint):
    endpoint.answers = [500, 500, 500]
    with pytest.raises(JudgeError, match="gave no answer"):
        HttpJudge(endpoint.url, "m", backoff_s=0).rate("a", "b", "c")


def test_a_verdict_is_kept_until_judge_or_words_change(endpoint: Endpoint, tmp_path: Path):
    endpoint.answers = ['{"score": 1}', '{"score": 2}', '{"score": 3}']
    first = Verdicts(HttpJudge(endpoint.url, "m"))
    assert first.rating(tmp_path, "a", "b", "c").rating.score == 1
    assert first.rating(tmp_path, "a", "b", "c").rating.score == 1
    assert Verdicts(None).rating(tmp_path, "a", "b", "c").rating.score == 1
    assert Verdicts(None).rating(tmp_path, "a", "b", "other") is None
    assert first.rating(tmp_path, "a", "b", "other").rating.score == 2
    assert Verdicts(HttpJudge(endpoint.url, "m2")).rating(tmp_path, "a", "b", "other").rating.score == 3
    assert len(endpoint.requests) == 3
    assert "secret" not in (tmp_path / "judge.json").read_text()
