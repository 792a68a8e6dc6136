"""The conversation: an ordered list of items, with what each really contained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec import UNSET
from msgspec.structs import replace

from duologue.codecs.pcm import float_to_pcm16, pcm16_to_float
from duologue.codecs.resample import resample
from duologue.engine.requests import OUTPUT_SAMPLE_RATE, ImagePart, WordSpan
from duologue.sessions.config import Limits
from duologue.sessions.errors import ProtocolError
from duologue.sessions.images import shown
from duologue.sessions.items import (
    Content,
    FunctionCallOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    McpCallItem,
    McpListToolsItem,
    MessageItem,
    OutputAudio,
    OutputText,
)

ROOT = "root"
MAX_AUDIO_PER_ITEM = 120 * OUTPUT_SAMPLE_RATE * 2
"""Bytes of the longest audio that ``retrieve`` returns: beyond it the frame would pass the 8 MiB that stock clients
accept."""
MAX_PIECES = 64
"""Pieces of a recording that are joined to a block."""


class Recording:
    """Kept sound of an item: mono PCM16. It grows piece by piece and is joined when somebody wants it: one buffer that
    grows is copied to a larger place over and over."""

    __slots__ = ("_blocks", "_pieces", "sample_rate", "size")

    def __init__(self, pcm: bytes = b"", sample_rate: int = OUTPUT_SAMPLE_RATE) -> None:
        self.sample_rate = sample_rate
        self.size = len(pcm)
        """Bytes of it."""
        self._pieces = [pcm]
        self._blocks = 1
        """The first so many of the pieces are joined ones: a garbage collection looks at each."""

    @property
    def pcm(self) -> bytes:
        if len(self._pieces) > 1:
            self._pieces, self._blocks = [b"".join(self._pieces)], 1
        return self._pieces[0]

    @property
    def seconds(self) -> float:
        return self.size / 2 / self.sample_rate

    def add(self, pcm: bytes) -> None:
        self._pieces.append(pcm)
        self.size += len(pcm)
        if len(self._pieces) - self._blocks == MAX_PIECES:
            self._pieces[self._blocks :] = [b"".join(self._pieces[self._blocks :])]
            self._blocks += 1

    def cut(self, size: int) -> None:
        """Keep so many bytes from the start, if there are more."""
        if size < self.size:
            self._pieces, self._blocks, self.size = [self.pcm[:size]], 1, size

    def at_rate(self, rate: int) -> bytes:
        if rate == self.sample_rate:
            return self.pcm
        return float_to_pcm16(resample(pcm16_to_float(self.pcm), self.sample_rate, rate))


@dataclass(slots=True)
class Entry:
    """An item and what its wire shape does not say."""

    item: Item
    recording: Recording | None = None
    pictures: list[ImagePart | None] = field(default_factory=list)
    """Behind its ``input_image`` parts, in order; None: no longer kept."""
    seen: list[ImagePart | None] = field(default_factory=list)
    """What a video track showed while the user said this. The model is shown it before the words; the wire is not."""
    words: list[WordSpan] = field(default_factory=list)
    spoken_text: str = ""
    """Full text behind an ``output_audio`` part, also once the wire's transcript is gone."""
    transcript: str | None = None
    """Words of an ``input_audio`` part; None until they are known. Empty: it held none."""
    truncated: bool = False
    """A client has cut its sound: neither transcript nor sound grow again."""
    silence_s: float | None = None
    """Set on the item that an idle timeout makes: how long nobody spoke."""

    @property
    def id(self) -> str:
        return str(self.item.id)

    @property
    def shown(self) -> Item:
        """The item as the wire shows it: without sound, with its pictures."""
        if not self.pictures or not isinstance(self.item, MessageItem):
            return self.item
        pictures = iter(self.pictures)
        content = tuple(
            shown(part, next(pictures)) if isinstance(part, InputImage) else part for part in self.item.content
        )
        return replace(self.item, content=content)

    @property
    def has_input_audio(self) -> bool:
        return isinstance(self.item, MessageItem) and any(isinstance(part, InputAudio) for part in self.item.content)

    @property
    def awaits_transcript(self) -> bool:
        return self.has_input_audio and self.transcript is None

    def heard_text(self, cut: int | None) -> str:
        """The text of a spoken item up to the last word whose sound ended within ``cut`` samples."""
        if cut is None:
            return self.spoken_text
        ends = [word.text_end for word in self.words if word.end_sample <= cut]
        return self.spoken_text[: max(ends, default=0)]


class Conversation:
    """Items in order. Every method either succeeds or raises ``ProtocolError`` and changes nothing."""

    def __init__(self, limits: Limits) -> None:
        self._entries: list[Entry] = []
        self._by_id: dict[str, Entry] = {}
        self._limits = limits
        self._audio_bound_s = 0.0
        """No less than the sound that is held; counted anew only when it passes the limit."""
        self.version = 0
        """Grows with every change that a model could notice."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def find(self, item_id: str) -> Entry | None:
        return self._by_id.get(item_id)

    def previous_id(self, item_id: str) -> str | None:
        """The id before an item's, None at the front."""
        index = next(i for i, entry in enumerate(self._entries) if entry.item.id == item_id)
        return self._entries[index - 1].id if index else None

    @property
    def last_id(self) -> str | None:
        return self._entries[-1].id if self._entries else None

    def insert(self, entry: Entry, previous_item_id: str | None = None) -> None:
        """Put an item after ``previous_item_id``; at the end for None, in front for ``"root"``."""
        if self.find(entry.id) is not None:
            raise ProtocolError("item_create_duplicate_item_id", f"An item '{entry.id}' already exists.", "item.id")
        if previous_item_id is None:
            index = len(self._entries)
        elif previous_item_id == ROOT:
            index = 0
        else:
            found = (i for i, other in enumerate(self._entries) if other.item.id == previous_item_id)
            index = next(found, -1) + 1
            if not index:
                message = f"Previous item with id '{previous_item_id}' not found."
                raise ProtocolError("item_create_invalid_previous_item_id", message, "previous_item_id")
        self._entries.insert(index, entry)
        self._by_id[entry.id] = entry
        self.version += 1
        if entry.recording is not None:
            self._audio_bound_s += entry.recording.seconds
        if self._audio_bound_s > self._limits.kept_audio_s:
            self._drop_old_audio()
        if entry.pictures or entry.seen:
            self._drop_old_pictures()

    def delete(self, item_id: str) -> Entry:
        entry = self.find(item_id)
        if entry is None:
            message = f"Error deleting item: the item with id '{item_id}' does not exist."
            raise ProtocolError("item_delete_invalid_item_id", message, "item_id")
        self._entries.remove(entry)
        del self._by_id[item_id]
        self.version += 1
        return entry

    def truncate(self, item_id: str, content_index: int) -> Entry:
        """The spoken item that a truncation names; its transcript leaves the wire's view."""
        entry = self.find(item_id)
        if entry is None:
            raise ProtocolError("item_truncate_invalid_item_id", f"Item with item_id not found: {item_id}", "item_id")
        item = entry.item
        if not isinstance(item, MessageItem) or item.role != "assistant":
            raise ProtocolError("invalid_value", "Only the assistant's audio can be truncated.", "item_id")
        if content_index >= max(1, len(item.content)):
            message = f"The item has no content part {content_index}."
            raise ProtocolError("invalid_value", message, "content_index")
        if item.content and not isinstance(item.content[content_index], OutputAudio):
            raise ProtocolError("invalid_value", "Only the assistant's audio can be truncated.", "content_index")
        content = tuple(OutputAudio() if isinstance(part, OutputAudio) else part for part in item.content)
        entry.item, entry.truncated = replace(item, content=content), True
        self.version += 1
        return entry

    def retrieve(self, item_id: str, encode: Callable[[Entry], bytes]) -> Item:
        """The item with its audio, as ``encode`` makes it of the kept recording."""
        entry = self.find(item_id)
        if entry is None:
            message = f"Error retrieving item: the item with id '{item_id}' does not exist."
            raise ProtocolError("item_retrieve_invalid_item_id", message, "item_id")
        item = entry.shown
        if entry.recording is None or not isinstance(item, MessageItem):
            return item

        def with_audio(part: Content) -> Content:
            return replace(part, audio=encode(entry)) if isinstance(part, InputAudio | OutputAudio) else part

        return replace(item, content=tuple(with_audio(part) for part in item.content))

    def keep_audio(self, entry: Entry, pcm: bytes) -> None:
        """Add generated sound to an item's recording, as far as the limits allow."""
        if entry.truncated:
            return
        recording = entry.recording
        if recording is None:
            recording = entry.recording = Recording()
        if recording.size < MAX_AUDIO_PER_ITEM:
            recording.add(pcm[: MAX_AUDIO_PER_ITEM - recording.size])
        self._audio_bound_s += len(pcm) / 2 / OUTPUT_SAMPLE_RATE
        if self._audio_bound_s > self._limits.kept_audio_s:
            self._drop_old_audio()

    def _drop_old_audio(self) -> None:
        total = sum(entry.recording.seconds for entry in self._entries if entry.recording is not None)
        for entry in self._entries[:-1]:
            if total <= self._limits.kept_audio_s:
                break
            if entry.recording is not None and not entry.awaits_transcript:
                total -= entry.recording.seconds
                entry.recording = None
        self._audio_bound_s = total

    def _drop_old_pictures(self) -> None:
        """The newest item keeps its own, whatever the limit: it was accepted with them."""
        lists = (pictures for entry in self._entries for pictures in (entry.seen, entry.pictures))
        kept = [(pictures, i, p) for pictures in lists for i, p in enumerate(pictures) if p is not None]
        count, size = len(kept), sum(len(picture.data) for _, _, picture in kept)
        for pictures, index, picture in kept:
            if count <= self._limits.kept_images and size <= self._limits.kept_image_bytes:
                return
            pictures[index] = None
            count, size = count - 1, size - len(picture.data)


def checked_for_create(item: Item, where: str = "item", *, takes_images: bool = False, max_text: int = 100_000) -> Item:
    """What a client may put into a conversation. Raises ``ProtocolError`` that names the field, below ``where``."""
    if isinstance(item, McpApprovalResponseItem):
        return item
    if isinstance(item, McpListToolsItem | McpCallItem | McpApprovalRequestItem):
        kind = type(item).__struct_config__.tag
        raise ProtocolError("invalid_value", f"Items of type '{kind}' are made by the server.", f"{where}.type")
    if not isinstance(item, MessageItem):
        field_name = "output" if isinstance(item, FunctionCallOutputItem) else "arguments"
        if len(getattr(item, field_name)) > max_text:
            message = f"Text is longer than {max_text} characters."
            raise ProtocolError("invalid_value", message, f"{where}.{field_name}")
        return item
    if not item.content:
        raise ProtocolError("invalid_value", "A message needs at least one content part.", f"{where}.content")
    of_user = (InputText, InputAudio, InputImage) if takes_images else (InputText, InputAudio)
    allowed = {"system": (InputText,), "user": of_user, "assistant": (OutputText,)}[item.role]
    for index, part in enumerate(item.content):
        param = f"{where}.content[{index}]"
        if not isinstance(part, allowed):
            kind = type(part).__struct_config__.tag
            message = f"Content of type '{kind}' is not accepted in a message of role '{item.role}' by this model."
            raise ProtocolError("invalid_value", message, f"{param}.type")
        if isinstance(part, InputAudio) and (part.audio is UNSET or len(part.audio) < 2):
            raise ProtocolError("missing_required_parameter", f"Missing required parameter: '{param}.audio'.", param)
        if isinstance(part, InputText | OutputText) and len(part.text) > max_text:
            raise ProtocolError("invalid_value", f"Text is longer than {max_text} characters.", f"{param}.text")
    return item
