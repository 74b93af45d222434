"""What a consumer holds: grants, and of some of them each message by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Protocol

from weir.client.arguments.values import Delay
from weir.client.core.grants import Grant, Run, covers, joined, merged
from weir.model.limits import ACK_RANGES_MAX
from weir.model.message import Message


class Settled(IntEnum):
    """What became of a delivery."""

    OPEN = 0
    DONE = 1
    GIVEN_BACK = 2


@dataclass(slots=True, eq=False)
class Holding:
    """A grant that is not all settled; its lease ends when `monotonic` is at `ends`, in seconds.

    `left` is what was neither said to be done nor given back, as far as that was noted.
    """

    grant: Grant
    ends: float
    monotonic: Callable[[], float]
    #: What lets the next grant of its partition come; None once that may.
    slot: asyncio.Semaphore | None = None
    #: How often something of its partition had been given back when it was asked for.
    asked: int = 0
    left: list[Run] = field(default_factory=list)
    #: How many deliveries of it are handed out and open; and offsets that are done and not noted.
    open: int = 0
    finished: list[int] = field(default_factory=list)
    #: Those handed out, where a nack takes others with it; and offsets that went back before.
    deliveries: list[Delivery] = field(default_factory=list)
    skipped: set[int] = field(default_factory=set)
    #: All below was handed out; and whether nothing more of it will be.
    handed: int = 0
    all_handed: bool = False
    #: What is worked on: deliveries that are open, one message, or all that is left.
    opened: set[int] = field(default_factory=set)
    current: int = -1
    all_begun: bool = False

    def __post_init__(self) -> None:
        """Hold all that was granted, what has expired too: nobody else has it."""
        self.left = [*self.grant.leased]
        self.handed = self.grant.offset

    @property
    def over(self) -> bool:
        """Whether its lease has ended: the messages are, or will be, another consumer's."""
        return self.monotonic() >= self.ends

    @property
    def partition(self) -> int:
        """The partition it is of."""
        return self.grant.partition

    @property
    def fence(self) -> int:
        """The grant's number in its partition."""
        return self.grant.fence

    def holds(self, offset: int) -> bool:
        """Return whether a message is neither done nor given back."""
        return covers(self.left, offset) and offset not in self.finished

    @property
    def begun(self) -> list[Run]:
        """The messages that are worked on: their handlers have not returned."""
        if self.all_begun:
            return self.left
        current = self.current  # another thread may change it
        return joined(self.opened if current < 0 else {*self.opened, current})

    def forget_batches(self) -> None:
        """Keep no message: an opened batch may be a thousand times as large as what came."""
        self.grant = replace(self.grant, batches=())

    def let_next_come(self) -> None:
        """Let another grant of its partition be pulled."""
        slot, self.slot = self.slot, None
        if slot is not None:
            slot.release()


class Held(dict[tuple[int, int], Holding]):
    """What a consumer holds, by partition and fencing number, in the order in which it came."""

    def put(self, holding: Holding) -> None:
        """Take one more; forget the oldest, as far as their leases have ended and nobody works on
        them.
        """
        while self:
            key = next(iter(self))
            if not self[key].over or self[key].begun:
                break
            del self[key]
        self[holding.partition, holding.fence] = holding

    def begun(self, partition: int) -> list[Run]:
        """Return the messages of a partition that are worked on, so many as a request may name."""
        mine = [one for one in self.values() if one.partition == partition]
        return merged(run for one in mine for run in one.begun)[:ACK_RANGES_MAX]

    def find(self, partition: int, offset: int) -> Holding | None:
        """Return the grant that holds a message, the latest if a lease has ended."""
        for holding in reversed(self.values()):
            if holding.partition == partition and holding.holds(offset):
                return holding
        return None

    def of(self, partition: int, fence: int) -> Holding | None:
        """Return a grant that is not all settled."""
        return self.get((partition, fence))


class Owner(Protocol):
    """Whoever handed deliveries out."""

    def settled(self, holding: Holding) -> None:
        """One of a grant is done."""

    def given_back(self, delivery: Delivery, holding: Holding, delay: Delay, untried: bool) -> None:
        """One goes back."""


class Delivery:
    """One message of a grant, to be settled by itself: once, in the event loop's thread.

    What is settled is told to the broker together, within `ack_within`.
    """

    __slots__ = ("_holding", "_owner", "message", "state")

    def __init__(self, message: Message, holding: Holding, owner: Owner) -> None:
        """Take whom to tell what became of it."""
        self.message = message
        self.state = Settled.OPEN
        self._holding = holding
        self._owner = owner

    @property
    def attempts(self) -> int:
        """The how-manieth time it was handed to a consumer: 1, unless work failed."""
        return self._holding.grant.attempts

    @property
    def held(self) -> bool:
        """Whether it may be worked on: not settled, and its lease runs.

        In a keyed or ordered cluster a nack before it ends that, too.
        """
        return self.state is Settled.OPEN and not self._holding.over

    def done(self) -> None:
        """Say that it is done; nothing happens if it was settled before.

        It counts behind the lease's end, too, unless the broker gave it to another by then: give
        back what was not `held` when its turn came, and so was not worked on.
        """
        if self.state is Settled.OPEN:
            self.state = Settled.DONE
            holding = self._holding
            holding.open -= 1
            holding.opened.discard(self.message.offset)
            holding.finished.append(self.message.offset)
            self._owner.settled(holding)

    def nack(self, delay: Delay = 0.0) -> None:
        """Say that it failed: it is granted again, no sooner than in `delay` ("10s", or seconds).

        With it goes what its consumer holds behind it, in a keyed cluster of its key, in an ordered
        one of its partition; none of that counts as an attempt. Raises `BadRequest`, `ValueError`.
        """
        self._owner.given_back(self, self._holding, delay, False)

    def give_back(self, delay: Delay = 0.0) -> None:
        """Say that nobody tried it: its next attempt has the same number; see `nack`."""
        self._owner.given_back(self, self._holding, delay, True)
