"""What the page shows and can be told, against a server in this process whose model follows a script."""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args, get_type_hints

import pytest
from chromium import FAKE_DEVICES, INSECURE_HOST, chromium
from demo_page import PATIENCE_MS, DemoPage, demo_page
from playwright.async_api import Browser, Route, expect
from scripted_server import DONE, KEY, ScriptedServer, answer, scripted_server

from duologue.engine.requests import (
    Converse,
    Delta,
    EngineRequest,
    TextDelta,
    ToolCallDelta,
    Transcribe,
    TranscriptDelta,
)
from duologue.sessions.config import RealtimeSession

from .conftest import OpenPage

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNAUTHORISED = "error: Failed to load resource: the server responded with a status of 401 (Unauthorized)"


def page_of(server: ScriptedServer, key: str = KEY) -> str:
    return f"http://{server.address}/#key={key}"


async def started(demo: DemoPage, transport: str = "websocket") -> None:
    await demo.start(transport)
    await demo.mute(True)


# -- settings ----------------------------------------------------------------------------------------------------------

SETTINGS: list[tuple[str, Any, Any]] = [
    # path of the control, what is put in, what the session then has (as the server confirmed it)
    ("audio.output.speed", "1.25", 1.25),
    ("output_modalities", "text", ["text"]),
    ("audio.input.turn_detection.threshold", "0.65", 0.65),
    ("audio.input.turn_detection.silence_duration_ms", "300", 300),
    ("audio.input.turn_detection.prefix_padding_ms", "100", 100),
    ("audio.input.turn_detection.idle_timeout_ms", "6000", 6000),
    ("audio.input.turn_detection.create_response", False, False),
    ("audio.input.turn_detection.interrupt_response", False, False),
    ("interruption", "adaptive", {"mode": "adaptive", "min_duration_ms": 800, "min_words": 0}),
    ("interruption.min_duration_ms", "600", 600),
    ("interruption.min_words", "2", 2),
    ("interruption.acknowledgements", "aye, mm", ["aye", "mm"]),
    ("interruption.acknowledgements", "", None),
    ("interruption", "", None),
    ("audio.input.echo_cancellation", True, {"delay_ms": 0}),
    ("audio.input.echo_cancellation.delay_ms", "80", 80),
    ("audio.output.first_chunk_ms", "40", 40),
    ("pacing", True, {"lead_ms": 300}),
    ("pacing.lead_ms", "500", 500),
    ("audio.input.transcription", "whisper-1", {"model": "whisper-1", "delay": "low"}),
    ("audio.input.transcription.language", "en", "en"),
    ("audio.input.transcription.prompt", "Novels.", "Novels."),
    ("audio.input.transcription.keywords", "Dashwood, Norland", ["Dashwood", "Norland"]),
    ("audio.input.transcription.delay", "high", "high"),
    ("audio.input.noise_reduction.type", "far_field", "far_field"),
    ("instructions", "Answer in verse.", "Answer in verse."),
    ("max_output_tokens", "64", 64),
    ("tool_choice", "none", "none"),
    ("parallel_tool_calls", True, True),
    ("truncation", "retention_ratio", {"type": "retention_ratio", "retention_ratio": 0.8}),
    ("audio.input.format", "audio/pcmu", {"type": "audio/pcmu"}),
    ("audio.output.format", "audio/pcma", {"type": "audio/pcma"}),
    ("audio.input.turn_detection", "semantic_vad", None),
    ("audio.input.turn_detection.eagerness", "high", "high"),
    ("audio.input.turn_detection", "", None),
]


async def test_every_setting_goes_to_the_server_and_back(scripted: ScriptedServer, open_page: OpenPage) -> None:
    async with open_page(page_of(scripted)) as demo:
        await started(demo)
        await demo.page.click("#tab-settings")
        for path, put, expected in SETTINGS:
            updates = len(await demo.events("session.updated"))
            control = demo.page.locator(f"#set-{path.removesuffix('.type').replace('.', '-')}")
            if isinstance(put, bool):
                await control.set_checked(put)
            elif await control.evaluate("one => one.tagName") == "SELECT":
                await control.select_option(put)
            else:
                await control.fill(put)
                await control.blur()
            await demo.until_event("session.updated", updates + 1)
            if path == "audio.input.turn_detection":
                kind = (await at(demo, path) or {}).get("type", "")
                assert kind == put
            else:
                assert await at(demo, path) == expected, path
            error = demo.page.locator(f"#set-{path.removesuffix('.type').replace('.', '-')}-error")
            assert await error.inner_text() == ""
        assert await demo.events("error") == []
        await expect(demo.page.locator("#talk")).to_be_visible()  # turns are ended by hand now


async def test_every_field_of_a_session_has_a_control(scripted: ScriptedServer, open_page: OpenPage) -> None:
    async with open_page(page_of(scripted)) as demo:
        ids = "() => [...document.querySelectorAll('[id^=set-]')].map(({ id }) => id)"
        controls = set(await demo.page.evaluate(ids))
    # Set by the server, on a panel of their own, or of use only to clients that are programs.
    elsewhere = {"id", "object", "expires_at", "model", "tools", "extensions"}
    elsewhere |= {"prompt.version", "prompt.variables", "truncation.retention_ratio", "truncation.token_limits"}
    elsewhere |= {"tracing.workflow_name", "tracing.group_id", "tracing.metadata", "tool_choice"}
    for path in leaves(RealtimeSession):
        if any(path == one or path.startswith(f"{one}.") for one in elsewhere):
            continue
        # What only tells one kind of an object from another is chosen with the object.
        path = path.removesuffix(".type").removesuffix(".model").removesuffix(".rate")
        assert f"set-{path.replace('.', '-')}" in controls


def leaves(shape: Any, path: str = "") -> list[str]:
    """The paths of the fields of a session that hold no other fields."""
    structs = [one for one in get_args(shape) or (shape,) if hasattr(one, "__struct_fields__")]
    if not structs:
        return [path]
    within = [
        leaf
        for struct in structs
        for name, kind in get_type_hints(struct).items()
        if name in struct.__struct_fields__
        for leaf in leaves(kind, f"{path}.{name}".lstrip("."))
    ]
    return list(dict.fromkeys(within)) or [path]


async def at(demo: DemoPage, path: str) -> Any:
    value: Any = await demo.session()
    for name in path.split("."):
        value = value.get(name) if value is not None else None
    return value


async def test_a_refused_setting_is_explained_at_its_control(scripted: ScriptedServer, open_page: OpenPage) -> None:
    async with open_page(page_of(scripted)) as demo:
        await started(demo)
        await demo.page.click("#tab-settings")
        control = demo.page.locator("#set-audio-input-turn_detection-idle_timeout_ms")
        await control.fill("17")
        await control.blur()
        error = demo.page.locator("#set-audio-input-turn_detection-idle_timeout_ms-error")
        await expect(error).to_contain_text("5000")
        await expect(control).to_have_attribute("aria-invalid", "true")
        await expect(control).to_have_value("")  # what is in force
        await demo.page.fill("#set-json", '{"nonsense": 1}')
        await demo.page.click("text=Update the session")
        await expect(demo.page.locator("#set-json-error")).to_contain_text("nonsense")
        await expect(demo.page.locator("#problem")).to_be_hidden()


async def test_settings_from_before_the_conversation_are_used_in_it(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    async with open_page(page_of(scripted)) as demo:
        await demo.page.click("#tab-settings")
        await demo.page.fill("#set-instructions", "Be a pirate.")
        await demo.page.locator("#set-instructions").blur()
        await demo.page.locator("#set-audio-input-turn_detection").select_option("semantic_vad")
        await started(demo)
        await demo.until_event("session.updated")
        session = await demo.session()
        assert session["instructions"] == "Be a pirate."
        assert session["audio"]["input"]["turn_detection"]["type"] == "semantic_vad"
        assert session["audio"]["input"]["transcription"]["model"]


# -- text, tools, events -----------------------------------------------------------------------------------------------


async def test_typed_words_are_answered_and_latencies_split(scripted: ScriptedServer, open_page: OpenPage) -> None:
    async with open_page(page_of(scripted)) as demo:
        await started(demo)
        await demo.say("Good evening")
        assert await demo.said("you") == "Good evening"
        assert await demo.said("bot") == "You said: Good evening"
        announced = demo.page.locator("#announcer")
        await expect(announced).to_have_text("Assistant: You said: Good evening")
        await expect(demo.page.locator("#panel-latency tbody tr")).to_have_count(1)


def reads_along(request: EngineRequest) -> list[Delta]:
    """Understands the whole sentence as soon as there is any sound of it."""
    if isinstance(request.payload, Transcribe):
        return [TranscriptDelta(text="He was not an ill disposed young man.", end_sample=1), DONE]
    return answer(request)


async def test_words_of_both_sides_are_shown_while_they_are_said(open_page: OpenPage) -> None:
    # A recogniser's last two words are not believed while there may be more.
    said_already = """() =>
      document.querySelector('#transcript .you.partial .words')?.textContent === 'He was not an ill disposed'
      && !demo.inspector.events.some(({ type }) => type === 'input_audio_buffer.speech_stopped')"""
    async with scripted_server(reads_along) as server, open_page(page_of(server)) as demo:
        await demo.start("websocket")
        await demo.page.wait_for_function(said_already, timeout=PATIENCE_MS)
        await demo.until_event("input_audio_buffer.speech_stopped")
        await demo.mute(True)
        assert await demo.said("you") == "He was not an ill disposed young man."
        await demo.said("bot")
        await demo.say("Tell me a story")
        await expect(demo.page.locator("#transcript .bot.partial .words")).to_have_text("Once upon a time")


async def test_a_story_is_interrupted_by_its_button_and_cut_to_what_was_heard(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    async with open_page(page_of(scripted)) as demo:
        await started(demo)
        await demo.say("Tell me a story")
        await demo.until_mood("speaking")
        await demo.page.click("#interrupt")
        cut = await demo.until_event("conversation.item.truncated")
        assert 0 <= cut["audio_end_ms"] < 4000
        done = await demo.until_event("response.done")
        assert done["response"]["status"] == "cancelled"
        await expect(demo.page.locator("#transcript .bot .tag")).to_contain_text("interrupted")
        await demo.until_mood("listening")
        await demo.say("And now?")
        assert await demo.said("bot", 1) == "You said: And now?"


def paints(request: EngineRequest) -> list[Delta]:
    """Calls the page's tools."""
    payload = request.payload
    if isinstance(payload, Converse) and payload.messages[-1].role == "user" and payload.tools:
        names = {tool.name for tool in payload.tools}
        assert names == {"set_page_colour", "get_time"}
        colour = ToolCallDelta(call_id="0", name="set_page_colour", arguments='{"colour": "teal"}')
        time = ToolCallDelta(call_id="1", name="get_time", arguments='{"time_zone": "Nowhere/Else"}')
        return [colour, time, DONE]
    if isinstance(payload, Converse) and payload.messages[-1].role == "tool":
        return [TextDelta(text="Done."), DONE]
    return answer(request)


async def test_the_page_answers_the_functions_that_the_model_calls(open_page: OpenPage) -> None:
    async with scripted_server(paints) as server, open_page(page_of(server)) as demo:
        await demo.page.click("#tab-tools")
        await demo.page.get_by_label("set_page_colour").check()
        await demo.page.get_by_label("get_time").check()
        await started(demo)
        await demo.say("Paint it teal and tell me the time")
        assert await demo.said("bot", 0) == "Done."
        assert await demo.page.evaluate("() => document.documentElement.dataset.hue") == "teal"
        outputs = {
            event["item"]["output"]
            for event in await demo.events("conversation.item.create")
            if event["item"]["type"] == "function_call_output"
        }
        assert "The page is teal now." in outputs
        assert any(output.startswith("Error: ") for output in outputs)  # there is no such time zone
        assert len(await demo.events("response.create")) == 2


async def test_the_inspector_finds_opens_and_saves_events(scripted: ScriptedServer, open_page: OpenPage) -> None:
    async with open_page(page_of(scripted)) as demo:
        await started(demo)
        await demo.say("Good evening")
        await demo.said("bot")
        await demo.page.click("#tab-events")
        await demo.page.fill("#events-search", "input_text")
        rows = demo.page.locator("#panel-events .events li")
        await expect(rows.first).to_be_visible()
        for text in await rows.locator("code").all_inner_texts():
            assert text.startswith("conversation.item.")
        await demo.page.select_option("#events-from", "client")
        await expect(rows).to_have_count(1)
        await rows.locator("summary").click()
        await expect(rows.locator("pre")).not_to_be_empty()
        shown = json.loads(await rows.locator("pre").inner_text())
        assert shown["item"]["content"][0]["text"] == "Good evening"
        async with demo.page.expect_download() as download:
            await demo.page.click("text=Save")
        lines = (await (await download.value).path()).read_text().splitlines()
        assert {json.loads(line)["from"] for line in lines} == {"server", "client"}
        await demo.page.click("text=Clear")
        await expect(rows).to_have_count(0)


async def test_the_camera_is_shown_and_a_picture_is_explained_where_the_model_has_no_eyes(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    async with open_page(page_of(scripted)) as demo:
        await started(demo)
        await demo.page.click("#camera")
        await demo.page.wait_for_function("() => document.getElementById('preview').videoWidth > 0")
        await demo.page.click("#snapshot")
        await demo.until_problem("no-picture")
        await demo.page.click("#camera")
        await expect(demo.page.locator("#preview")).to_be_hidden()


# -- trouble -----------------------------------------------------------------------------------------------------------


async def test_a_wrong_key_is_asked_for_again(scripted: ScriptedServer, browser: Browser) -> None:
    async with demo_page(browser, page_of(scripted, "wrong"), complaints=True) as demo:
        await demo.until_problem("wrong-key")
        assert "key" not in demo.page.url  # the fragment is not left in the address bar
        await demo.page.fill("#key", KEY)
        await started(demo)
        await demo.say("Good evening")
        assert await demo.said("bot") == "You said: Good evening"
        assert set(demo.complaints) <= {UNAUTHORISED}


async def test_without_a_server_the_page_says_so_and_tries_again(browser: Browser) -> None:
    async with scripted_server() as server:
        url = page_of(server)
        context = await browser.new_context()
        demo = DemoPage(await context.new_page())
        await demo.open(url)
    await demo.page.check("input[value=websocket]")
    await demo.page.click("#start")
    await demo.until_problem("no-server")
    await expect(demo.page.locator("#problem-action")).to_have_text("Try again")
    await demo.until_state("Not connected")
    await context.close()


async def test_an_insecure_origin_is_explained_and_text_still_works(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    port = scripted.address.rpartition(":")[2]
    async with open_page(f"http://{INSECURE_HOST}:{port}/#key={KEY}") as demo:
        await demo.until_problem("insecure-origin")
        await expect(demo.page.locator("#problem")).to_contain_text("--ssl-self-signed")
        await demo.page.check("input[value=websocket]")
        await demo.page.click("#problem-action")
        await demo.until_state("Connected")
        await demo.say("Good evening")
        assert await demo.said("bot") == "You said: Good evening"
        assert (await demo.session())["output_modalities"] == ["text"]


async def test_without_a_microphone_the_page_says_so_and_goes_on_in_text(scripted: ScriptedServer) -> None:
    async with chromium(devices=()) as bare, demo_page(bare, page_of(scripted), permissions=["microphone"]) as demo:
        await demo.page.check("input[value=websocket]")
        await demo.page.click("#start")
        await demo.until_problem("no-microphone")
        await demo.page.click("#problem-action")
        await demo.until_state("Connected")
        await demo.say("Good evening")
        assert await demo.said("bot") == "You said: Good evening"


async def test_a_refused_microphone_is_explained(scripted: ScriptedServer) -> None:
    async with chromium(devices=FAKE_DEVICES[:1]) as asking, demo_page(asking, page_of(scripted)) as demo:
        await demo.page.click("#start")  # a headless browser answers its own question: no
        await demo.until_problem("microphone-refused")


async def test_fc_157_a_suspended_context_is_explained_and_goes_on_with_the_next_gesture(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    state = "() => demo.session.sound.context.state"
    suspend = "() => demo.session.sound.context.suspend()"
    async with open_page(page_of(scripted)) as demo:
        await started(demo)
        await demo.page.evaluate(suspend)  # as Safari's policy leaves it, or a telephone call
        await demo.until_problem("autoplay")
        await demo.page.click("#problem-action")
        await demo.page.wait_for_function(f"({state}) === undefined || ({state})() === 'running'")
        await expect(demo.page.locator("#problem")).to_be_hidden()
        await demo.page.evaluate(suspend)
        await demo.until_problem("autoplay")
        await demo.page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
        await expect(demo.page.locator("#problem")).to_be_hidden()
        assert await demo.page.evaluate(state) == "running"


async def test_that_sound_is_held_back_is_still_said_once_the_call_is_there(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    offered, suspended = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        offered.set()
        await suspended.wait()
        await route.continue_()

    async with open_page(page_of(scripted)) as demo:
        await demo.page.route("**/v1/realtime/calls*", hold)
        await demo.page.click("#start")
        await offered.wait()
        await demo.page.evaluate("() => demo.session.sound.context.suspend()")
        await demo.until_problem("autoplay")
        suspended.set()
        await demo.until_state("Connected")
        await demo.until_problem("autoplay")
        await demo.page.click("#problem-action")
        await expect(demo.page.locator("#problem")).to_be_hidden()


async def test_interrupting_twice_at_once_is_no_error(scripted: ScriptedServer, open_page: OpenPage) -> None:
    async with open_page(page_of(scripted)) as demo:
        await started(demo)
        await demo.say("Tell me a story")
        await demo.until_mood("speaking")
        await demo.page.evaluate(
            "() => { for (let n = 0; n < 2; n += 1) document.getElementById('interrupt').click(); }"
        )
        await demo.until_event("response.done")
        await demo.say("Good evening")
        await expect(demo.page.locator("#transcript .bot .words").last).to_have_text("You said: Good evening")
        assert await demo.events("error") == []


async def test_words_typed_while_another_answer_begins_are_answered_after_it(
    scripted: ScriptedServer, open_page: OpenPage
) -> None:
    async with open_page(page_of(scripted)) as demo:
        await started(demo)
        await demo.page.evaluate(
            """() => {
              const content = [{ type: 'input_text', text: 'Tell me a story' }];
              demo.session.item({ type: 'message', role: 'user', content });
              demo.session.send({ type: 'response.create' }); // as the server does when a spoken turn ends
              demo.session.say('Good evening');
            }"""
        )
        error = await demo.until_event("error")
        assert error["error"]["code"] == "conversation_already_has_active_response"
        await demo.page.click("#interrupt")
        await expect(demo.page.locator("#transcript .bot .words").last).to_have_text("You said: Good evening")
        await expect(demo.page.locator("#problem")).to_be_hidden()
