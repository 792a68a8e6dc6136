"""Camera and screen: sampled frames, the newest wins, none twice, and only where the model can see."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError
from av import VideoFrame
from live_sessions import MESSAGE, manager_of
from msgspec.structs import replace as replaced
from PIL import Image
from rtc_client import LOOPBACK, Camera, RtcClient, calling, grey_frame, tone
from scripted_engine import ScriptedEngine

from duologue.codecs.image_header import read_image_header
from duologue.engine.requests import AudioDelta, Converse, Finished, ImagePart, TextDelta, TranscriptDelta
from duologue.realtime.gateway import EdgeSettings
from duologue.realtime.webrtc.video_in import IncomingVideo, jpeg_of

DONE = Finished(reason="completed")
QUICK = replaced(LOOPBACK, video_fps=10.0)


def grey_of(picture: ImagePart) -> int:
    """The brightness of an even picture."""
    return round(float(np.asarray(Image.open(io.BytesIO(picture.data)).convert("L")).mean()))


class Given(MediaStreamTrack):
    """Frames as fast as they are read."""

    kind = "video"

    def __init__(self, frames: list[VideoFrame]) -> None:
        super().__init__()
        self.frames = frames

    async def recv(self) -> VideoFrame:
        await asyncio.sleep(0.01)
        if not self.frames:
            raise MediaStreamError
        return self.frames.pop(0)


async def sampled(frames: list[VideoFrame], **settings: Any) -> tuple[IncomingVideo, list[ImagePart]]:
    pictures: list[ImagePart] = []
    watching = IncomingVideo(Given(frames), replaced(QUICK, **settings), pictures.append)
    await watching.run()
    return watching, pictures


async def test_fc_143_a_static_camera_gives_one_picture() -> None:
    watching, pictures = await sampled([grey_frame(160, 90, 100)] * 60, video_fps=30.0)
    assert watching.received == 60
    assert [grey_of(picture) for picture in pictures] == pytest.approx([100], abs=2)


async def test_fc_148_the_newest_frame_wins_and_none_waits() -> None:
    watching, pictures = await sampled([grey_frame(160, 90, 4 * n) for n in range(60)], video_fps=5.0)
    assert watching.received == 60
    greys = [grey_of(picture) for picture in pictures]
    assert 3 <= len(greys) < 20
    assert greys == sorted(greys)
    assert greys[-1] > 120, "what it sees last is near the end of what was shown"


async def test_fc_146_the_size_may_change_in_mid_stream() -> None:
    frames = [grey_frame(1280, 720, 40)] * 40 + [grey_frame(320, 180, 200)] * 40 + [grey_frame(90, 160, 20)] * 40
    _, pictures = await sampled(frames, video_max_side=640)
    headers = [read_image_header(picture.data) for picture in pictures]
    assert [(header.width, header.height) for header in headers] == [(640, 360), (320, 180), (90, 160)]


@pytest.mark.parametrize(("width", "height"), [(2, 2), (1, 1), (4000, 20), (767, 769)])
def test_pictures_of_any_size_are_jpeg(width: int, height: int) -> None:
    frame = VideoFrame.from_ndarray(np.zeros((height, width, 3), np.uint8), format="rgb24")
    header = read_image_header(jpeg_of(frame, 768))
    assert header.media_type == "image/jpeg"
    assert max(header.width, header.height) <= 768


def seeing(edge: Any) -> None:
    """The pipeline's model takes images."""
    able = replace(edge.engine.pipeline.capabilities, image_in=True)
    edge.engine.pipeline = replace(edge.engine.pipeline, capabilities=able)


async def spoken(client: RtcClient, engine: ScriptedEngine) -> Converse:
    client.microphone.say(tone(600))
    await client.until("input_audio_buffer.committed")
    (await engine.opened()).give(TranscriptDelta(text="What do you see?"), DONE)
    stream = await engine.opened()
    stream.give(TextDelta(text="Grey."), AudioDelta(pcm=tone(100)), DONE)
    await client.until("output_audio_buffer.stopped")
    assert isinstance(stream.request.payload, Converse)
    return stream.request.payload


async def test_fc_081_a_turn_shows_the_model_what_the_camera_showed(serve: Any) -> None:
    engine, camera = ScriptedEngine(), Camera()
    async with (
        serve(manager_of(engine, takes_images=True), settings=EdgeSettings(webrtc=QUICK)) as edge,
        edge.http() as http,
    ):
        seeing(edge)
        async with calling(http, camera=camera) as client:
            asked = await spoken(client, engine)
            assert [grey_of(picture) for picture in asked.messages[-1].images] == pytest.approx([40], abs=3)
            camera.grey, camera.width, camera.height = 200, 160, 90
            asked = await spoken(client, engine)
            pictures = [grey_of(picture) for message in asked.messages for picture in message.images]
            assert pictures[0] == pytest.approx(40, abs=3)
            assert pictures[-1] == pytest.approx(200, abs=3)
            assert len(asked.messages[-1].images) <= 4
            added = [event["item"] for event in client.events if event["type"] == "conversation.item.added"]
            kinds = {part["type"] for item in added for part in item["content"]}
            assert "input_image" not in kinds, "the frames are the model's, not the wire's"
            client.send(MESSAGE, {"type": "response.create"})
            payload = (await engine.opened()).request.payload
            assert isinstance(payload, Converse)
            assert len(payload.messages[-1].images) == 1, "what is typed is said with the same view"


async def test_fc_144_video_is_rejected_where_the_model_cannot_see(serve: Any) -> None:
    """aiortc as a client cannot read a rejected section; browsers can (``tests/browser``)."""
    client = RtcClient(camera=Camera())
    async with (
        serve(manager_of(ScriptedEngine()), settings=EdgeSettings(webrtc=QUICK)) as edge,
        edge.http() as http,
    ):
        sdp = {"content": await client.offer(), "headers": {"Content-Type": "application/sdp"}}
        for able in (False, True):
            if able:
                seeing(edge)
            answer = await http.post("/v1/realtime/calls", **sdp)
            sections = [line for line in answer.text.splitlines() if line.startswith("m=")]
            assert [line.split()[0] for line in sections] == ["m=audio", "m=video", "m=application"]
            assert (sections[1].split()[1] == "0") == (not able)
            assert not any(line.split()[1] == "0" for line in (sections[0], sections[2]))
        await client.close()
