"""The engine requests of responses: what of the conversation a model is shown, and what it is asked to make of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from duologue.engine.requests import ChatMessage, Converse
from duologue.sessions.context_window import ContextWindow, fixed_tokens
from duologue.sessions.conversation import Entry
from duologue.sessions.core import SessionCore
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import InputItem, ItemReference
from duologue.sessions.prompting import chat_messages
from duologue.sessions.response import ResponseSettings
from duologue.sessions.transcribing import Transcribing

PREPARED_IN_S = 60.0
"""The history is read while the user speaks if nobody waits for anything else."""


class ResponseRequests:
    """Opens them: of responses in progress, of answers made in secret, and to have the history read in advance."""

    def __init__(self, core: SessionCore, transcribing: Transcribing) -> None:
        self._core = core
        self._transcribing = transcribing
        self._window = ContextWindow(core.context.limits.context_tokens)

    def resolved(self, items: Sequence[InputItem]) -> tuple[Entry, ...]:
        """The context that a client has spelled out. Raises ``ProtocolError`` for a reference to nothing."""
        entries = []
        for index, item in enumerate(items):
            if isinstance(item, ItemReference):
                entry = self._core.conversation.find(item.id)
                if entry is None:
                    message = f"The item with id '{item.id}' does not exist."
                    raise ProtocolError("invalid_value", message, f"response.input[{index}].id")
            else:
                entry = self._core.entry_of(item, f"response.input[{index}]")
            entries.append(entry)
        return tuple(entries)

    def waits_for_words(self, settings: ResponseSettings) -> bool:
        """Whether an utterance in the context has no words yet; they are begun for it."""
        waits = False
        for entry in self._context(settings):
            if entry.awaits_transcript:
                self._transcribing.begin(entry)
            waits = waits or entry.awaits_transcript
        return waits

    def open(self, settings: ResponseSettings, last: tuple[ChatMessage, ...] = (), due_in_s: float = 0.0) -> str:
        """Open the engine request of a response; ``last`` follows what its context holds now.

        Raises :class:`ContextTooLong`.
        """
        limit = settings.max_output_tokens
        return self._core.open_request(
            Converse(
                messages=(*self._messages(settings), *last),
                modalities=("text", "audio") if settings.modality == "audio" else ("text",),
                max_output_tokens=limit if isinstance(limit, int) else None,
                voice=settings.served_voice,
                speed=settings.speed,
                tools=settings.tools,
                tool_choice=settings.tool_choice,
                parallel_tool_calls=settings.parallel_tool_calls,
                reasoning_effort=settings.reasoning_effort,
            ),
            due_in_s,
            settings.first_chunk_s,
        )

    def prepare(self, settings: ResponseSettings, begun: str) -> str | None:
        """Have what the coming answer's prompt begins with read while the user speaks. None: there is nothing yet.

        ``begun``: the first words of what the user is saying. Raises :class:`ContextTooLong`.
        """
        messages = self._messages(settings)
        if not (messages or begun) or any(message.images for message in messages):
            return None
        limit = settings.max_output_tokens
        payload = Converse(
            messages=messages,
            modalities=("text",),
            max_output_tokens=limit if isinstance(limit, int) else None,
            tools=settings.tools,
            prepare=True,
            begun=begun,
        )
        return self._core.open_request(payload, PREPARED_IN_S)

    def _context(self, settings: ResponseSettings) -> Iterable[Entry]:
        return self._core.conversation if settings.context is None else settings.context

    def _messages(self, settings: ResponseSettings) -> tuple[ChatMessage, ...]:
        heard, fixed = self._core.ledger.heard, fixed_tokens(settings.instructions, settings.tools)
        if settings.context is None:
            shown = self._window.of_conversation(self._core.conversation, fixed, settings.truncation, heard)
        else:
            shown = self._window.of_input(settings.context, fixed, settings.truncation, heard)
        return chat_messages(shown, settings.instructions, heard)
