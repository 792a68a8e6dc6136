"""Conversation items in their wire shape (``realtime-protocol`` section 4.2).

Absent keys are left out, never null; only the transcript of input audio is null until it is known.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

ItemStatus = Literal["completed", "incomplete", "in_progress"]
ItemId = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """One piece of a message's content."""


class InputText(Part, frozen=True, tag="input_text"):
    text: str


class InputAudio(Part, frozen=True, tag="input_audio"):
    audio: bytes | UnsetType = UNSET
    """Base64 on the wire; only in what clients create and in ``conversation.item.retrieved``."""
    transcript: str | None = None
    """Null on the wire until it is known: the JavaScript agents client ends its process where the key is missing."""


class InputImage(Part, frozen=True, tag="input_image"):
    image_url: str | UnsetType = UNSET
    """A data URL. Absent in what the server sends once the picture is no longer kept."""
    detail: Literal["auto", "low", "high"] | UnsetType = UNSET


class OutputText(Part, frozen=True, tag="output_text"):
    text: str


class OutputAudio(Part, frozen=True, tag="output_audio"):
    audio: bytes | UnsetType = UNSET
    transcript: str | UnsetType = UNSET


Content = InputText | InputAudio | InputImage | OutputText | OutputAudio


class ItemBase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    id: ItemId | UnsetType = UNSET
    object: Literal["realtime.item"] = "realtime.item"
    status: ItemStatus | UnsetType = UNSET


class MessageItem(ItemBase, frozen=True, tag="message"):
    role: Literal["system", "user", "assistant"]
    content: tuple[Content, ...]


class FunctionCallItem(ItemBase, frozen=True, tag="function_call"):
    name: str
    arguments: str
    call_id: str | UnsetType = UNSET


class FunctionCallOutputItem(ItemBase, frozen=True, tag="function_call_output"):
    call_id: str
    output: str


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem


class ItemReference(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="item_reference"
):
    """Stands for an item of the conversation in the ``input`` of a response."""

    id: ItemId


InputItem = Item | ItemReference
