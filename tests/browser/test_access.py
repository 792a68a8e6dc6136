"""The page without a mouse, without eyes, without motion; on a phone, in the dark."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect
from scripted_server import KEY, ScriptedServer

from .conftest import OpenPage

pytestmark = pytest.mark.asyncio(loop_scope="session")

AUDIT = (Path(__file__).parent / "audit.js").read_text()
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def page_of(server: ScriptedServer) -> str:
    return f"http://{server.address}/#key={KEY}"


@pytest.mark.parametrize(("scheme", "phone"), [("light", False), ("dark", True)])
async def test_every_control_has_a_name_and_every_text_contrast(
    scheme: str, phone: bool, scripted: ScriptedServer, open_page: OpenPage
) -> None:
    options = {**(PHONE if phone else {}), "color_scheme": scheme}
    async with open_page(page_of(scripted), **options) as demo:
        await demo.start("websocket")
        await demo.mute(True)
        await demo.say("Good evening")
        await demo.said("bot")
        for tab in ("latency", "settings", "tools", "events"):
            await demo.page.click(f"#tab-{tab}")
            assert await demo.page.evaluate(AUDIT) == [], tab
            overflow = await demo.page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert overflow <= 0, tab


async def test_a_conversation_by_keyboard_alone(scripted: ScriptedServer, open_page: OpenPage) -> None:
    async with open_page(page_of(scripted)) as demo:
        page = demo.page

        async def tab_to(identity: str) -> None:
            for _ in range(40):
                if await page.evaluate("id => document.activeElement.id === id", identity):
                    return
                await page.keyboard.press("Tab")
            raise AssertionError(f"the Tab key does not lead to #{identity}")

        await page.keyboard.press("Tab")
        assert await page.evaluate("() => document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        await tab_to("microphone")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        await page.keyboard.press("ArrowRight")  # from WebRTC to WebSocket
        await page.keyboard.press("Shift+Tab")
        await page.evaluate("() => document.getElementById('start').focus()")
        await page.keyboard.press("Enter")
        await demo.until_state("Connected")
        await tab_to("mute")
        await page.keyboard.press("Space")
        await expect(page.locator("#mute")).to_have_attribute("aria-pressed", "true")
        await tab_to("text")
        await page.keyboard.type("Good evening")
        await page.keyboard.press("Enter")
        assert await demo.said("bot") == "You said: Good evening"
        assert await demo.events("session.created") != []
        await tab_to("tab-latency")
        await page.keyboard.press("ArrowRight")
        await expect(page.locator("#panel-settings")).to_be_visible()
        await page.keyboard.press("End")
        await expect(page.locator("#panel-events")).to_be_visible()
        await page.keyboard.press("Home")
        await expect(page.locator("#panel-latency")).to_be_visible()


async def test_who_wants_no_motion_gets_none(scripted: ScriptedServer, open_page: OpenPage) -> None:
    count = """() => new Promise((resolve) => {
      const context = document.getElementById('avatar').getContext('2d');
      const clear = context.clearRect.bind(context);
      let drawn = 0;
      context.clearRect = (...box) => { drawn += 1; clear(...box); };
      setTimeout(() => resolve(drawn), 1500);
    })"""
    async with open_page(page_of(scripted)) as demo:
        assert await demo.page.evaluate(count) <= 4


async def test_the_theme_is_kept(scripted: ScriptedServer, open_page: OpenPage) -> None:
    async with open_page(page_of(scripted), color_scheme="light") as demo:
        background = "() => getComputedStyle(document.body).backgroundColor"
        light = await demo.page.evaluate(background)
        await demo.page.click("#theme")  # light
        await demo.page.click("#theme")  # dark
        dark = await demo.page.evaluate(background)
        assert light != dark
        await demo.page.reload()
        assert await demo.page.evaluate(background) == dark
        await expect(demo.page.locator("#theme")).to_have_attribute("aria-label", "Theme: dark")
