"""Whether a message goes out at once, or waits for what else its turn of the loop brings."""

from __future__ import annotations

import asyncio

#: So many messages came alone one after the other, and the next one is taken to do so as well.
ALONE_IN_A_ROW = 8


class Hurry:
    """Judges the messages of one lane that lingers for no longer than a turn.

    Who waits for each confirm before the next message has nothing else to send in a turn: waiting
    for its end would make every message later. Who sends several in a turn is found out by the
    first of them that comes behind one that was not kept back.
    """

    __slots__ = ("_alone", "_loop", "_sent")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Know of no message yet."""
        self._loop = loop
        #: How many in a row were alone.
        self._alone = 0
        #: Whether one was sent at once in this turn.
        self._sent = False

    def batch(self, count: int, alone: bool) -> None:
        """A batch of so many messages goes out, `alone` if nothing else is under way."""
        self._alone = self._alone + 1 if count == 1 and alone else 0

    def takes(self, alone: bool) -> bool:
        """Whether to send at once the message that comes now, `alone` if nothing is under way."""
        if self._sent:
            self._alone = 0
        elif alone and self._alone >= ALONE_IN_A_ROW:
            self._sent = True
            self._loop.call_soon(self._turned)
            return True
        return False

    def _turned(self) -> None:
        self._sent = False
