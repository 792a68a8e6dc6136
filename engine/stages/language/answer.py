"""One answer while a language model writes it: what every backend does with text, calls and the end."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from duologue.engine.requests import Converse, TextDelta, ToolCallDelta, Usage
from duologue.engine.stage import StageContext, StageFinish
from duologue.engine.text.repetition import ends_in_a_loop

LONGEST_SENTENCE: Final = 60
"""Tokens that the last sentence may take beyond the stage's own limit."""
MOST_TOKENS: Final = 4096
"""Tokens of an answer for which neither the request nor the deploy file sets a limit."""
_SENTENCE_END: Final = re.compile(r"[.!?…。！？][\"'”’)*_]*\s*$")
_REPORT_EVERY: Final = 8
"""Tokens from one report of usage to the next."""
_REMEMBERED: Final = 2400
"""Characters kept to look for a loop in."""


class Answer:
    """Hands on what a backend writes for one request, and says when it is enough.

    The limits: the request's ``max_output_tokens``, which cuts (``length``); else the stage's own ``longest``, after
    which the answer ends with its sentence. A text that says the same thing over and over ends as ``length``.
    """

    def __init__(self, piece: Converse, context: StageContext, longest: int | None) -> None:
        """``longest`` in tokens; None: the model decides."""
        self.tokens = 0
        """Written so far, as far as the backend tells them apart."""
        self.complete = False
        """The answer has been ended here, at a sentence or in a loop; the backend is to stop."""
        self._context = context
        self._longest = longest if piece.max_output_tokens is None else None
        self._own_limit = piece.max_output_tokens is None
        self._cut_short = False
        self._written = ""
        self._prompt = Usage()
        self._reported = Usage()
        self.max_tokens = piece.max_output_tokens or (longest + LONGEST_SENTENCE if longest else MOST_TOKENS)
        """What to ask the backend for."""

    @property
    def started(self) -> bool:
        """Whether anything was handed on, so that the request cannot be tried again."""
        return self.tokens > 0

    @property
    def over(self) -> bool:
        """Whether to stop: the answer is complete, or the request is dead."""
        return self.complete or self._context.aborted

    def read(self, tokens: int, cached: int, pictures: int = 0) -> None:
        """The prompt has so many tokens; so many of them had been read before, and so many are pictures."""
        self._prompt = Usage(input_tokens=tokens, cached_tokens=cached, image_input_tokens=pictures)

    def counted(self, tokens: int) -> None:
        """The backend itself says how many tokens it has written."""
        self.tokens = tokens

    def text(self, text: str, tokens: int = 1) -> bool:
        """Hand on text of so many tokens. False: stop writing."""
        self._count(tokens)
        if not self._written:
            text = text.lstrip()
        if text:
            self._written = (self._written + text)[-_REMEMBERED:]
            if not self._context.emit(TextDelta(text=text)):
                return False
        if ends_in_a_loop(self._written):
            self.complete = self._cut_short = True
        elif self._longest is not None and self.tokens >= self._longest and _SENTENCE_END.search(self._written[-16:]):
            self.complete = True
        return not self.over

    def call(self, call_id: str, name: str, arguments: str, tokens: int = 1) -> bool:
        """Hand on a piece of a call's arguments. False: stop writing."""
        self._count(tokens)
        return self._context.emit(ToolCallDelta(call_id=call_id, name=name, arguments=arguments))

    def reached_limit(self) -> None:
        """The backend stopped at ``max_tokens``."""
        self._cut_short = self._cut_short or not self._own_limit or self._longest is None

    def close(self) -> None:
        """Report usage, and that the answer was cut short; nothing for a dead request."""
        if self._context.aborted:
            return
        self._report()
        if self._cut_short:
            self._context.emit(StageFinish(reason="length"))

    def _count(self, tokens: int) -> None:
        """More tokens. What an answer has used is reported as it goes: it may be broken off."""
        before, self.tokens = self.tokens, self.tokens + tokens
        if before == 0 or before // _REPORT_EVERY != self.tokens // _REPORT_EVERY:
            self._report()

    def _report(self) -> None:
        now = replace(self._prompt, output_tokens=self.tokens)
        if now != self._reported:
            self._context.emit(now.since(self._reported))
        self._reported = now
