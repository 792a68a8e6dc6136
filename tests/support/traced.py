"""A scripted session behind an outbox: what its client sees, at its own pace, as a trace for the ordering rules."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from msgspec.structs import replace
from ordering import Event, Line
from session_driver import Driver

from duologue.realtime.wire import encode
from duologue.sessions import server_events as events
from duologue.sessions.client_events import ClientEvent, InvalidEvent
from duologue.sessions.effects import AudioSent, DropAudio, Effect, Input, Send
from duologue.sessions.outbox import Outbox

_encoder = msgspec.json.Encoder()


class TracedDriver(Driver):
    """Nothing is delivered until :meth:`read`; every client event gets an id of its own."""

    def __init__(self, patch: dict[str, Any] | None = None, **settings: Any) -> None:
        self.trace: list[Line] = []
        self.said: list[Event] = []
        """The events as the machine said them, those without sound that was dropped in time."""
        self._outbox = Outbox()
        self._ids = (f"client_{number}" for number in itertools.count())
        super().__init__(patch, deliver=False, **settings)

    def do(self, event: Input) -> list[events.ServerEvent]:
        if isinstance(event, ClientEvent | InvalidEvent):
            event = replace(event, event_id=next(self._ids))
        if isinstance(event, ClientEvent):
            self.trace.append(Line(True, msgspec.json.decode(_encoder.encode(event))))
        return super().do(event)

    def read(self) -> bool:
        """The client reads what one turn of the writer sends: at most one piece of sound. False: nothing was left."""
        taken = list(self._outbox.take())
        for outgoing in taken:
            self.trace.append(Line(False, msgspec.json.decode(encode(outgoing.event))))
        for outgoing in taken:
            if outgoing.samples and isinstance(outgoing.event, events.OfPart):
                self.do(AudioSent(outgoing.event.item_id, outgoing.samples))
        return bool(taken)

    def read_all(self) -> None:
        while self.read():
            pass

    def got(self) -> list[Event]:
        """What the client has read."""
        return [line.event for line in self.trace if not line.from_client]

    def _carry(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(event=event, samples=samples):
                    self._outbox.push(event, samples)
                    self.said.append(msgspec.json.decode(encode(event)))
                case DropAudio(response_id=response_id):
                    self._outbox.drop_audio(response_id)
        super()._carry(effects)
