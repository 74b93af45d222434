"""What a consumer has handed out and knows no outcome of, and which task, or thread, has it."""

from __future__ import annotations

import asyncio
from typing import Any

from weir.errors import TooManyInHand

#: The one thread that uses a consumer of the client without async.
THREAD = 1
#: A task of the event loop, or that thread.
Holder = asyncio.Task[Any] | int


class InHand:
    """Everything without an outcome, `most` messages of it at a time.

    At that limit who asks for more waits for others to settle something. If there are none, who
    asks has forgotten to: that is told.
    """

    def __init__(self, most: int) -> None:
        """Begin with nothing."""
        self._most = most
        #: Who has each message, and each batch; and how many messages a batch has more than one.
        self._holders: dict[object, Holder | None] = {}
        self._sizes: dict[object, int] = {}
        self._batched = 0
        self._asking: dict[Holder | None, None] = {}
        self._freed = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more may be handed out: none while who asks for more has to ask for `room`."""
        return max(self._most - len(self._holders) - self._batched, 0)

    def put(self, handed: object, holder: Holder | None) -> None:
        """Note that a message was handed to a task, or a thread."""
        self._holders[handed] = holder

    def put_batch(self, handed: object, holder: Holder | None, count: int) -> None:
        """Note that a batch of `count` messages was handed to a task, or a thread."""
        self._holders[handed] = holder
        self._sizes[handed] = count - 1
        self._batched += count - 1

    def enter(self, handed: object, holder: Holder | None) -> None:
        """Note that a task works on what may have been handed to another."""
        if handed in self._holders:
            self._holders[handed] = holder

    def settled(self, handed: object) -> None:
        """Note that something has its outcome, if it was in hand at all."""
        self._holders.pop(handed, None)
        if self._sizes:
            self._batched -= self._sizes.pop(handed, 0)
        if self._asking:
            self._freed.set()

    def clear(self) -> None:
        """Nothing is in hand any more: its consumer has given it back."""
        self._holders.clear()
        self._sizes.clear()
        self._batched = 0
        self._freed.set()

    async def room(self, holder: Holder | None) -> None:
        """Return when more may be handed out. Raises `TooManyInHand` if nobody can settle any of
        it, for all who have some ask for more themselves, or have ended.
        """
        # Tasks that were just given something enter its block, which makes it theirs.
        await asyncio.sleep(0)
        while not self.free:
            await self.outcome(holder)

    async def outcome(self, holder: Holder | None) -> None:
        """Return once something in hand has its outcome, if there is any. Raises as `room`."""
        if not self._holders:
            return
        self._asking[holder] = None
        try:
            if all(self._cannot_settle(one) for one in self._holders.values()):
                raise TooManyInHand(
                    f"{self._most - self.free:,} messages are in hand without an outcome, and no "
                    f"more come before one has it (max_in_hand={self._most:,}; 1 grant in order): "
                    "`await message.ack()`, or enter each with `async with message:`, before you "
                    "ask for the next"
                )
            self._freed.clear()
            await self._freed.wait()
        finally:
            self._asking.pop(holder, None)

    def _cannot_settle(self, holder: Holder | None) -> bool:
        if holder in self._asking:
            return True
        return isinstance(holder, asyncio.Task) and holder.done()
