"""The backend ``openai``: against llama.cpp's own server, and against a scripted endpoint that misbehaves."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pictures import coloured

from duologue.engine.models import ModelUnavailable, pull
from duologue.engine.requests import ChatMessage, Converse, ImagePart, NamedTool, TextDelta, Tool, ToolCallDelta, Usage
from duologue.engine.stage import NotSupported, StageFinish
from duologue.engine.stages.language.openai import EndpointError, OpenAILanguageModel

SYSTEM = ChatMessage(role="system", text="You are a helpful assistant. Keep your answers short and simple.")
CHATML_TOOLS = Path(__file__).parent / "chatml_tools.jinja"
KEY = "a key of the test"


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", text=text)


def text_of(pieces: list[Any]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))


def usage_of(pieces: list[Any]) -> Usage:
    reports = [piece for piece in pieces if isinstance(piece, Usage)]
    return Usage(**{name: sum(getattr(report, name) for report in reports) for name in Usage.__struct_fields__})


# -- llama.cpp's server ------------------------------------------------------------------------------------------------


@contextmanager
def llamacpp_server(mmproj: Path | None = None) -> Iterator[str]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(pull("smollm2-135m-instruct"))
    params.chat_template = CHATML_TOOLS.read_text(encoding="utf-8")
    if mmproj is not None:
        params.mmproj.path = str(mmproj)
    params.n_parallel, params.n_ctx = 2, 2048
    params.n_batch = params.n_ubatch = 64
    params.fit_params = False
    params.verbosity = -1
    params.api_keys = [KEY]
    params.ui = False
    params.port = 0
    server = xllamacpp.Server(params)
    request = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
    server.handle_chat_completions(request, lambda _: False)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture(scope="module")
def llamacpp_url() -> Iterator[str]:
    with llamacpp_server() as url:
        yield url


@pytest.fixture
def endpoint(llamacpp_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAILanguageModel]:
    monkeypatch.setenv("LLAMA_KEY", KEY)
    stage = OpenAILanguageModel("smollm2", llamacpp_url, "LLAMA_KEY", timeout_s=120, sampling={"temperature": 0.0})
    stage.load()
    stage.warm_up()
    yield stage
    stage.close()


@pytest.mark.models
def test_a_real_server_answers_in_pieces_and_counts_what_it_had_cached(
    endpoint: OpenAILanguageModel, run_stage: Callable[..., list[Any]]
) -> None:
    messages = [SYSTEM, user("What is the capital of France?")]
    first = run_stage(endpoint, Converse(messages=tuple(messages), seed=1))
    assert "Paris" in text_of(first)
    assert len(first) > 4
    messages += [ChatMessage(role="assistant", text=text_of(first)), user("And of Spain?")]
    second = usage_of(run_stage(endpoint, Converse(messages=tuple(messages), seed=1)))
    assert second.cached_tokens >= usage_of(first).input_tokens - 1
    assert second.input_tokens > second.cached_tokens
    assert second.output_tokens > 0


@pytest.mark.models
def test_a_real_server_is_cut_at_the_callers_limit(
    endpoint: OpenAILanguageModel, run_stage: Callable[..., list[Any]]
) -> None:
    pieces = run_stage(endpoint, Converse(messages=(user("Tell me a long story."),), max_output_tokens=7))
    assert usage_of(pieces).output_tokens == 7
    assert pieces[-1] == StageFinish(reason="length")


@pytest.mark.models
def test_a_real_server_calls_a_tool(
    endpoint: OpenAILanguageModel, run_stage: Callable[..., list[Any]], asks_for_weather: Callable[[], Converse]
) -> None:
    calls = [piece for piece in run_stage(endpoint, asks_for_weather()) if isinstance(piece, ToolCallDelta)]
    assert {(call.call_id, call.name) for call in calls} == {("0", "weather")}
    assert json.loads("".join(call.arguments for call in calls)) == {"city": "Rome"}
    assert len(calls) > 3


@pytest.mark.models
def test_a_conversation_too_long_for_a_real_server_is_cut_and_answered(
    endpoint: OpenAILanguageModel, run_stage: Callable[..., list[Any]]
) -> None:
    messages = [SYSTEM, user("word " * 3000), ChatMessage(role="assistant", text="Yes."), user("And now?")]
    assert text_of(run_stage(endpoint, Converse(messages=tuple(messages), max_output_tokens=5)))


@pytest.mark.models
def test_a_real_server_sees_pictures(
    projectors: Path, run_stage: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a projector of random weights: each picture means something else to it."""
    monkeypatch.setenv("LLAMA_KEY", KEY)
    red = ImagePart(data=coloured((250, 20, 30)), media_type="image/png")
    blue = ImagePart(data=coloured((0, 40, 250), "JPEG"), media_type="image/jpeg")
    with llamacpp_server(projectors / "llava.gguf") as url:
        stage = OpenAILanguageModel("smollm2", url, "LLAMA_KEY", images=True, timeout_s=120)
        stage.load()
        try:
            messages = [ChatMessage.of_parts("user", parts) for parts in (("what",), (red, "what"), (blue, "what"))]
            answers = [
                run_stage(stage, Converse(messages=(message,), temperature=0.0, max_output_tokens=12))
                for message in messages
            ]
            broken = ChatMessage.of_parts("user", [ImagePart(data=b"no picture", media_type="image/png")])
            with pytest.raises(EndpointError, match="load image"):
                run_stage(stage, Converse(messages=(broken,)))
        finally:
            stage.close()
    assert len(set(map(text_of, answers))) == 3
    plain, *seen = (usage_of(answer).input_tokens for answer in answers)
    assert seen == [plain + 16] * 2, "one token for each patch"


@pytest.mark.models
def test_a_wrong_key_stops_the_start(llamacpp_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_KEY", "wrong")
    stage = OpenAILanguageModel("smollm2", llamacpp_url, "LLAMA_KEY")
    stage.load()
    try:
        with pytest.raises(EndpointError, match="refused the key"):
            list(stage.run(_first(stage)))
    finally:
        stage.close()


async def _first(stage: OpenAILanguageModel) -> list[Any]:
    return [chunk async for chunk in stage._stream(Converse(messages=(user("Hi."),)), (user("Hi."),), 2)]


# -- an endpoint that does as it is told -------------------------------------------------------------------------------


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    body = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": choices, **more}
    return f"data: {json.dumps(body)}\n\n".encode()


DONE = b"data: [DONE]\n\n"
HELLO = [chunk({"role": "assistant", "content": "Hello."}), chunk({}, "stop"), DONE]


class Scripted(http.server.ThreadingHTTPServer):
    """Answers each request by the next item of ``script``: a status, or the chunks of a stream."""

    daemon_threads = False  # waited for when the server closes

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.hung_up = threading.Event()
        self.reached = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        step = self.server.script.pop(0)
        if isinstance(step, tuple):
            status, headers, error = step
            body = json.dumps({"error": error}).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            return
        if step == "silence":
            self._wait_for_hang_up()
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in step:
            if piece == "drop":
                self.close_connection = True
                self.connection.close()
                return
            if piece == "wait":
                self._wait_for_hang_up()
                return
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            except ConnectionError:  # before everything was said
                self.server.hung_up.set()
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")

    def _wait_for_hang_up(self) -> None:
        self.server.reached.set()
        self.connection.settimeout(20)
        try:
            if not self.connection.recv(1):
                self.server.hung_up.set()
        except ConnectionResetError:
            self.server.hung_up.set()
        self.close_connection = True


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def stage_at(server: Scripted) -> Iterator[Callable[..., OpenAILanguageModel]]:
    stages: list[OpenAILanguageModel] = []

    def make(**arguments: Any) -> OpenAILanguageModel:
        stages.append(OpenAILanguageModel("m", **{"base_url": server.url, "timeout_s": 20.0, **arguments}))
        stages[-1].load()
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


ASK = Converse(messages=(user("Hi."),))
Ask = Callable[..., list[Any]]
StageAt = Callable[..., OpenAILanguageModel]


@pytest.mark.parametrize(
    ("script", "kind", "requests"),
    [
        ((401, {}, {"message": "no"}), "unauthorized", 1),
        ((404, {}, {"message": "no such model"}), "not_found", 1),
        ((422, {}, {"message": "bad field"}), "refused", 1),
        ((429, {"retry-after": "60"}, {"message": "slow down"}), "rate_limited", 1),
        ((429, {"retry-after": "0"}, {"message": "slow down"}), "rate_limited", 3),
        ((503, {"retry-after": "0"}, {"message": "later"}), "server_error", 3),
        ([chunk({"content": "Hel"}), "drop"], "broken_off", 1),
        ([chunk({"content": "Hel"})], "broken_off", 1),
        ([chunk({"content": "Hel"}), b'data: {"choices": [{"de\n\n'], "malformed", 1),
        ([b"data: [1, 2]\n\n"], "malformed", 1),
        ([chunk({"content": "Hel"}), b'data: {"error": {"message": "out of memory"}}\n\n'], "server_error", 1),
    ],
)
def test_what_goes_wrong_has_a_name(
    server: Scripted, stage_at: StageAt, run_stage: Ask, script: Any, kind: str, requests: int
) -> None:
    server.script = [script] * 3
    with pytest.raises(EndpointError) as raised:
        run_stage(stage_at(), ASK)
    assert raised.value.kind == kind
    assert len(server.requests) == requests


def test_nobody_there_is_said_so(stage_at: StageAt, run_stage: Ask) -> None:
    stage = stage_at(base_url="http://127.0.0.1:9/v1", retries=0)
    with pytest.raises(EndpointError, match="cannot be reached"):
        run_stage(stage, ASK)
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        stage.warm_up()


def test_silence_ends_in_time(server: Scripted, stage_at: StageAt, run_stage: Ask) -> None:
    server.script = ["silence"]
    with pytest.raises(EndpointError) as raised:
        run_stage(stage_at(timeout_s=0.2, retries=0), ASK)
    assert raised.value.kind == "timed_out"


def test_it_tries_again_before_the_first_token(server: Scripted, stage_at: StageAt, run_stage: Ask) -> None:
    server.script = [(503, {"retry-after": "0"}, {}), HELLO]
    assert text_of(run_stage(stage_at(), ASK)) == "Hello."


def test_calls_come_in_fragments_and_side_by_side(server: Scripted, stage_at: StageAt, run_stage: Ask) -> None:
    def call(index: int, arguments: str, name: str | None = None) -> bytes:
        head = {"id": f"c{index}", "type": "function"} if name else {}
        return chunk({"tool_calls": [{"index": index, **head, "function": {"name": name, "arguments": arguments}}]})

    usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    details = {"prompt_tokens_details": {"cached_tokens": 8, "image_tokens": 5}}
    server.script = [
        [
            chunk({"role": "assistant", "content": None}),
            call(0, "", "weather"),
            call(0, '{"ci'),
            call(1, '{"a":', "other"),
            call(0, 'ty":1}'),
            call(1, "2}"),
            chunk({}, "tool_calls"),
            chunk(usage={**usage, **details}),
            DONE,
        ]
    ]
    tool = Tool(name="weather")
    piece = Converse(
        messages=ASK.messages, tools=(tool,), tool_choice=NamedTool(name="weather"), parallel_tool_calls=False
    )
    pieces = run_stage(stage_at(), piece)
    calls = [(p.call_id, p.name, p.arguments) for p in pieces if isinstance(p, ToolCallDelta)]
    assert "".join(a for i, _, a in calls if i == "0") == '{"city":1}'
    assert "".join(a for i, _, a in calls if i == "1") == '{"a":2}'
    assert {(i, n) for i, n, _ in calls} == {("0", "weather"), ("1", "other")}
    assert usage_of(pieces) == Usage(input_tokens=9, cached_tokens=8, image_input_tokens=5, output_tokens=4)
    (sent,) = server.requests
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert (sent["parallel_tool_calls"], sent["stream_options"]) == (False, {"include_usage": True})


def test_settings_and_pictures_reach_the_endpoint(
    server: Scripted, stage_at: StageAt, run_stage: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    server.script = [HELLO]
    picture = ImagePart(data=b"\x89PNG", media_type="image/png", detail="low")
    message = ChatMessage.of_parts("user", ["What is", picture])
    stage = stage_at(
        api_key_env="MY_KEY", images=True, sampling={"temperature": 0.5, "top_k": 3}, extra_body={"cache_salt": "x"}
    )
    run_stage(stage, Converse(messages=(message,), temperature=0.0, seed=-1, reasoning_effort="low"))
    (sent,) = server.requests
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert sent["messages"][0]["content"] == [
        {"type": "text", "text": "What is"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw==", "detail": "low"}},
    ]
    assert (sent["temperature"], sent["top_k"], sent["cache_salt"]) == (0.0, 3, "x")
    assert (sent["seed"], sent["reasoning_effort"]) == (2**32 - 1, "low")
    with pytest.raises(NotSupported, match="takes no pictures"):
        run_stage(stage_at(), Converse(messages=(message,)))


def test_a_loop_is_stopped_with_all_that_was_said(server: Scripted, stage_at: StageAt, run_stage: Ask) -> None:
    said = [chunk({"content": "I do not know. "}) for _ in range(100)]
    server.script = [[*said, "wait"]]
    pieces = run_stage(stage_at(), ASK)
    assert pieces[-1] == StageFinish(reason="length")
    assert text_of(pieces) == "I do not know. " * 14
    assert server.hung_up.wait(10)


@pytest.mark.parametrize("script", ["silence", [chunk({"content": "Hello"}), "wait"]], ids=["before", "within"])
def test_an_abort_closes_the_stream_at_once(
    server: Scripted, stage_at: StageAt, recorder: Callable[..., Any], script: Any
) -> None:
    server.script = [script]
    stage = stage_at()
    context = recorder(ASK)
    state = stage.start(context.request)
    worker = threading.Thread(target=stage.process, args=(state, ASK, context))
    worker.start()
    assert server.reached.wait(10)
    context.aborted = True
    stage.interrupt(state)
    worker.join(10)
    assert not worker.is_alive()
    assert server.hung_up.wait(10)
    assert not any(isinstance(piece, StageFinish) for piece in context.pieces)


def test_an_abort_before_the_work_begins_asks_for_nothing(
    server: Scripted, stage_at: StageAt, recorder: Callable[..., Any]
) -> None:
    stage, context = stage_at(), recorder(ASK)
    state = stage.start(context.request)
    context.aborted = True
    stage.interrupt(state)
    stage.process(state, ASK, context)
    assert context.pieces == []
