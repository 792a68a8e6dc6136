"""What the halves of the session core share: the settings, the conversation, the ledger, and the list of effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from duologue.codecs.noise_suppression import MakeSuppressor, no_suppressor
from duologue.codecs.wire_audio import Encoding, WireDecoder
from duologue.engine.requests import EngineRequest, ImagePart, Payload
from duologue.sessions import server_events as events
from duologue.sessions.config import AnySession, Limits, Names, RealtimeSession, encoding
from duologue.sessions.conversation import Conversation, Entry, Recording, checked_for_create
from duologue.sessions.echo import EchoReference
from duologue.sessions.effects import Effect, OpenRequest, Send, Signal
from duologue.sessions.errors import ProtocolError
from duologue.sessions.images import picture_of
from duologue.sessions.items import (
    Content,
    FunctionCallItem,
    InputAudio,
    InputImage,
    Item,
    McpApprovalResponseItem,
    MessageItem,
)
from duologue.sessions.mcp.catalogue import ToolCatalogue
from duologue.sessions.mcp.policy import McpPolicy, McpRules
from duologue.sessions.playout import PlayoutLedger, ReportedLedger
from duologue.sessions.stored_prompts import PromptTemplate

IdFactory = Callable[[str], str]
"""``ids("item")`` gives a new id with that prefix, unique in the process."""

NO_SERVERS = McpPolicy(McpRules())


@dataclass(frozen=True)
class SessionContext:
    """What the server decides about a session before it begins."""

    names: Names
    ids: IdFactory
    limits: Limits = field(default_factory=Limits)
    can_call_tools: bool = False
    takes_images: bool = False
    gives_logprobs: bool = False
    """Whether the recogniser says how sure it is of its words."""
    prompts: Mapping[str, PromptTemplate] = field(default_factory=dict)
    """Stored prompts by id."""
    make_suppressor: MakeSuppressor = no_suppressor
    """What cleans the input of a session that asks for ``noise_reduction``."""
    mcp: McpPolicy = NO_SERVERS
    """Which MCP servers may be called."""
    judges_turns: bool = False
    """Whether there is a model that says when a turn sounds finished."""
    media_clock: bool = False
    """Whether sound comes and goes over media tracks by a clock of ours, and not inside events."""
    may_speculate: Callable[[], bool] = lambda: False
    """Whether there is room for work that may be thrown away; asked at every pause."""
    prepares: bool = False
    """Whether the history is to be read while the user speaks."""
    languages: frozenset[str] | None = None
    """Those that the recogniser knows; None: it does not say."""
    voice_languages: frozenset[str] = frozenset()
    """Those that the voices speak; empty: any."""
    may_read_along: Callable[[], bool] = lambda: False
    """Whether it has room to recognise a turn that goes on; asked when that is due."""


@dataclass
class SessionCore:
    """State that more than one half of the core reads or changes."""

    session: AnySession
    context: SessionContext
    conversation: Conversation = field(init=False)
    ledger: PlayoutLedger = field(init=False)
    echo: EchoReference | None = None
    """What the client plays, where it is to be taken out of what it records."""
    effects: list[Effect] = field(default_factory=list)
    postponed: list[Signal] = field(default_factory=list)
    """What the core tells itself, once it has done with the event in hand."""
    catalogue: ToolCatalogue = field(default_factory=ToolCatalogue)
    settings_version: int = 0
    view: deque[ImagePart] = field(init=False)
    """What a video track has shown since the user's last item, and one picture from before it; the newest win."""
    conversation_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.conversation = Conversation(self.context.limits)
        self.ledger = ReportedLedger() if self.context.media_clock else PlayoutLedger()
        self.view = deque(maxlen=self.context.limits.max_video_frames)
        self.conversation_id = conversation_id(self.session.id)

    def see(self, picture: ImagePart | None) -> None:
        """A video track shows this now, or nothing any more (None): what is said next is not said of an old picture."""
        if picture is None:
            self.view.clear()
        else:
            self.view.append(picture)

    def take_view(self) -> list[ImagePart | None]:
        """The pictures that belong to an item that the user makes now. The newest is still there for the next one."""
        taken: list[ImagePart | None] = list(self.view)
        while len(self.view) > 1:
            self.view.popleft()
        return taken

    @property
    def input_encoding(self) -> Encoding:
        """How the user's sound comes in, whatever the session calls its format: a media track is decoded already."""
        return "pcm" if self.context.media_clock else encoding(self.session.audio.input.format)

    @property
    def responds(self) -> bool:
        """Whether this session makes responses; one for transcription does not."""
        return isinstance(self.session, RealtimeSession)

    @property
    def conversing(self) -> RealtimeSession:
        """The settings of a session that makes responses. Raises ``ProtocolError`` in one that does not."""
        if not isinstance(self.session, RealtimeSession):
            raise ProtocolError("invalid_event", "A transcription session makes no responses.", "type")
        return self.session

    def emit(self, kind: type[events.ServerEvent], samples: int = 0, **fields: Any) -> None:
        """Send an event with a fresh id. ``samples``: the sound in it, at 24 kHz."""
        self.effects.append(Send(kind(event_id=self.context.ids("event"), **fields), samples))

    def emit_audio(self, response_id: str, item_id: str, output_index: int, delta: bytes, samples: int) -> None:
        """Send sound of an answer: what :meth:`emit` would do, without a detour of its fields through dicts."""
        event = events.OutputAudioDelta(
            event_id=self.context.ids("event"),
            response_id=response_id,
            item_id=item_id,
            output_index=output_index,
            content_index=0,
            delta=delta,
        )
        self.effects.append(Send(event, samples))

    def emit_error(self, error: ProtocolError, event_id: str | None = None) -> None:
        """Tell the client of its fault; the session goes on."""
        body = events.ErrorBody(
            type="invalid_request_error",
            code=error.code,
            message=error.message,
            param=error.param,
            event_id=event_id,
        )
        self.emit(events.ErrorEvent, error=body)

    def emit_server_error(self, message: str) -> None:
        """Tell the client of a fault of ours."""
        body = events.ErrorBody(type="server_error", code="server_error", message=message)
        self.emit(events.ErrorEvent, error=body)

    def open_request(self, payload: Payload, due_in_s: float = 0.0, first_chunk_s: float | None = None) -> str:
        """Ask the engine for something that is wanted in ``due_in_s``; its output comes back under the id returned.
        ``first_chunk_s``: length of its first piece of sound; None: as the engine likes."""
        request_id = self.context.ids("req")
        session_id = self.session.id
        request = EngineRequest(
            request_id=request_id,
            session_id=session_id,
            payload=payload,
            due_in_s=due_in_s,
            first_chunk_s=first_chunk_s,
        )
        self.effects.append(OpenRequest(request))
        return request_id

    def entry_of(self, item: Item, where: str = "item") -> Entry:
        """An entry for a client's item, in no conversation yet; its sound goes into a recording and leaves the wire's
        view. Raises ``ProtocolError`` that names a field below ``where``."""
        checked = checked_for_create(item, where, takes_images=self.context.takes_images)
        item = (
            _decision(checked) if isinstance(checked, McpApprovalResponseItem) else replace(checked, status="completed")
        )
        if item.id is UNSET:
            item = replace(item, id=self.context.ids("item"))
        if isinstance(item, FunctionCallItem) and item.call_id is UNSET:
            item = replace(item, call_id=self.context.ids("call"))
        if not isinstance(item, MessageItem):
            return Entry(item)
        pictures = self._pictures(item, where)
        item = replace(item, content=tuple(map(_without_picture, item.content))) if pictures else item
        sounds = [part.audio for part in item.content if isinstance(part, InputAudio) and part.audio is not UNSET]
        if not sounds:
            return Entry(item, pictures=pictures)
        decoder = WireDecoder(encoding(self.session.audio.input.format))
        pcm = b"".join(decoder.decode(sound) for sound in sounds)
        content = tuple(InputAudio() if isinstance(part, InputAudio) else part for part in item.content)
        recording = Recording(pcm, decoder.sample_rate)
        return Entry(replace(item, content=content), recording=recording, pictures=pictures)

    def _pictures(self, item: MessageItem, where: str) -> list[ImagePart | None]:
        """The pictures of a client's message. Raises ``ProtocolError`` that names the field."""
        limits, size = self.context.limits, 0
        pictures: list[ImagePart | None] = []
        for index, part in enumerate(item.content):
            if isinstance(part, InputImage):
                picture = picture_of(part, limits, f"{where}.content[{index}]")
                pictures.append(picture)
                size += len(picture.data)
        if size > limits.max_image_bytes or len(pictures) > limits.kept_images:
            message = (
                f"A message holds at most {limits.kept_images} pictures of together {limits.max_image_bytes} bytes."
            )
            raise ProtocolError("invalid_value", message, f"{where}.content")
        return pictures

    def check_room(self, param: str | None = None) -> None:
        """Raise ``ProtocolError`` that names ``param`` if the conversation takes no more items."""
        limit = self.context.limits.max_items
        if len(self.conversation) >= limit:
            raise ProtocolError("invalid_value", f"The conversation is full: {limit} items. Delete some.", param)

    def take_effects(self) -> list[Effect]:
        taken, self.effects = self.effects, []
        return taken


def _decision(item: McpApprovalResponseItem) -> McpApprovalResponseItem:
    """Items of MCP have no status, and no key is null."""
    return replace(item, status=UNSET, reason=UNSET if item.reason is None else item.reason)


def _without_picture(part: Content) -> Content:
    return replace(part, image_url=UNSET) if isinstance(part, InputImage) else part


def conversation_id(session_id: str) -> str:
    """The id of a session's one conversation."""
    return f"conv_{session_id.removeprefix('sess_')}"
