"""How much a session may ask for in a minute, and what the client is told of it (``rate_limits.updated``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from duologue.engine.requests import Usage
from duologue.sessions.config import Limits, MaxOutputTokens
from duologue.sessions.errors import ProtocolError
from duologue.sessions.server_events import RateLimit

LONGEST_ANSWER_TOKENS = 4096
"""What is reserved for an answer without a limit of its own."""


@dataclass
class Allowance:
    """An amount that refills evenly over a minute."""

    limit: int
    used: float = 0.0
    at: float = 0.0

    def spend(self, amount: float, now: float) -> None:
        """Take ``amount`` (negative: give it back)."""
        self.used = min(max(0.0, self._used(now) + amount), float(self.limit))
        self.at = now

    def remaining(self, now: float) -> int:
        return int(self.limit - self._used(now))

    def reset_s(self, now: float) -> float:
        """Seconds until all of it is there again."""
        return round(self._used(now) * 60 / self.limit, 3)

    def _used(self, now: float) -> float:
        return max(0.0, self.used - (now - self.at) * self.limit / 60)


@dataclass
class RateLimits:
    """The allowances of one session; none unless they are configured."""

    limits: Limits
    _allowances: dict[str, Allowance] = field(init=False)
    _reserved: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        configured = {"requests": self.limits.requests_per_minute, "tokens": self.limits.tokens_per_minute}
        self._allowances = {name: Allowance(limit) for name, limit in configured.items() if limit is not None}

    def check(self, now: float) -> None:
        """Raises ``ProtocolError`` if no response may begin now."""
        for name, allowance in self._allowances.items():
            if allowance.remaining(now) < 1:
                wait_s = 60 / allowance.limit
                message = f"Rate limit reached: {allowance.limit} {name} per minute. Try again in {wait_s:.1f} s."
                raise ProtocolError("rate_limit_exceeded", message)

    def begin(self, response_id: str, max_output_tokens: MaxOutputTokens, now: float) -> tuple[RateLimit, ...]:
        """A response begins: what is left, with the tokens it may write already taken off."""
        if "requests" in self._allowances:
            self._allowances["requests"].spend(1, now)
        if "tokens" in self._allowances:
            tokens = self._allowances["tokens"]
            wanted = max_output_tokens if isinstance(max_output_tokens, int) else LONGEST_ANSWER_TOKENS
            self._reserved[response_id] = min(wanted, tokens.remaining(now))
            tokens.spend(self._reserved[response_id], now)
        return tuple(
            RateLimit(
                name=name,  # type: ignore[arg-type]
                limit=allowance.limit,
                remaining=allowance.remaining(now),
                reset_seconds=allowance.reset_s(now),
            )
            for name, allowance in self._allowances.items()
        )

    def end(self, response_id: str, usage: Usage, now: float) -> None:
        """A response is over: only what it used stays taken off."""
        reserved = self._reserved.pop(response_id, None)
        if reserved is not None:
            self._allowances["tokens"].spend(usage.input_tokens + usage.output_tokens - reserved, now)
