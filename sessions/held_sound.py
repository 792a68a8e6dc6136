"""Sound that grows at its end and is let go of at its front, in the pieces in which it came.

One buffer would be copied to a larger place over and over: it is never more than a little larger than what it holds.
"""

from __future__ import annotations

from collections import deque

JOINED_BYTES = 512
"""Pieces that are smaller together are joined: objects of a sample each would take many times the room."""


class HeldSound:
    """Bytes between two moving ends. Adding and letting go take no longer for more of them; a cut copies what it gives.

    Positions are bytes from the first one held.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._pieces: deque[bytes] = deque((data,) if data else ())
        self._gone = 0
        """Bytes of the first piece that are not held any more."""
        self.size = len(data)
        """How many bytes are held."""

    def add(self, data: bytes) -> None:
        """Add bytes at the end."""
        if self._pieces and len(self._pieces[-1]) + len(data) <= JOINED_BYTES:
            self._pieces[-1] += data
        elif data:
            self._pieces.append(data)
        self.size += len(data)

    def drop(self, count: int) -> None:
        """Let go of the first ``count`` bytes, at most of all there are."""
        pieces, count = self._pieces, min(count, self.size)
        self.size -= count
        count += self._gone
        while pieces and count >= len(pieces[0]):
            count -= len(pieces.popleft())
        self._gone = count

    def clear(self) -> None:
        """Let go of everything."""
        self.drop(self.size)

    def cut(self, first: int, last: int) -> bytes:
        """The bytes from ``first`` up to, not including, ``last``; both lie within what is held."""
        if last <= first:  # mypyc has no slice that ends before it begins
            return b""
        wanted: list[bytes] = []
        first, last = first + self._gone, last + self._gone
        start = 0
        for piece in self._pieces:
            if start >= last:
                break
            if start + len(piece) > first:
                wanted.append(piece[max(0, first - start) : last - start])
            start += len(piece)
        return b"".join(wanted)

    def write(self, first: int, data: bytes) -> None:
        """Put ``data`` in the place of as many bytes from ``first`` on, all of them held."""
        rest = self.cut(first + len(data), self.size)
        while self._pieces and self.size - len(self._pieces[-1]) >= first:
            self.size -= len(self._pieces.pop())
        if self.size > first:
            last = self._pieces.pop()
            self._pieces.append(last[: len(last) - (self.size - first)])
            self.size = first
        self.add(data)
        self.add(rest)
