"""What a consumer asks for and what it holds: grants, and of some of them each message by itself.

Leases are kept up while work goes on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Protocol

from weir.client.arguments import ConsumerMode, Delay, check_choice, duration, whole_number
from weir.client.connection.metadata import Places
from weir.client.consumer.acknowledgements import AckResult, Stale
from weir.client.core.grants import Grant, Run, covers, joined, merged
from weir.client.core.retries import Backoff, policy_of
from weir.errors import BadRequest, StaleGrant, WeirError
from weir.model.ids import Address
from weir.model.limits import (
    ACK_RANGES_MAX,
    FETCH_BYTES_MAX,
    GRANT_MS_DEFAULT,
    GRANT_MS_MAX,
    MIB,
    VALUE_BYTES_LOADED_MAX,
)
from weir.model.message import Message
from weir.model.topic import Mode, check_name, split_name
from weir.protocol.client import messages as m

_MODES = {mode.name.lower(): mode for mode in Mode}

#: A lease is looked at so many times before it ends, and extended once half of it is over.
_LOOKS = 8


def lease_seconds(lease: str | float) -> float:
    """Return a lease in seconds. Raises `BadRequest` for one that is no lease."""
    found = duration("lease", lease)
    if not 1 <= found * 1_000 <= GRANT_MS_MAX:
        raise BadRequest(f"lease={lease!r}: give 1 ms to {GRANT_MS_MAX // 1_000:,} s")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a consumer takes messages, and what becomes of those that fail: see `Client.consumer`."""

    cluster: str
    max_messages: int = 1_000
    max_bytes: int = MIB
    lease: str | float = GRANT_MS_DEFAULT / 1_000
    ack_within: str | float = "50ms"
    on_stale: Callable[[Stale], None] | None = None
    #: A larger value, which lies in chunks, is not loaded: its message streams it.
    value_bytes_max: int = VALUE_BYTES_LOADED_MAX
    mode: ConsumerMode = "shared"
    #: How long the lease of what is in hand is extended outside a block; None: without end.
    max_work: str | float | None = "5m"
    #: Messages without an outcome, at most, before a task that has them all may ask for more.
    max_in_hand: int = 10_000
    #: How long what failed waits; and where it goes that was refused, or failed too often.
    retry: Backoff | None = None
    dead_letter: str | None = None

    @property
    def number(self) -> Mode:
        """The mode as the wire has it."""
        return _MODES[self.mode]

    @property
    def max_work_seconds(self) -> float:
        """For how many seconds the lease of what is in hand is extended outside a block."""
        return math.inf if self.max_work is None else duration("max_work", self.max_work)

    def check(self) -> None:
        """Raise `BadRequest` or `BadName` for options that cannot work."""
        if not isinstance(self.cluster, str):
            raise TypeError(f"cluster={self.cluster!r}: name the cluster that shares the messages")
        check_name(self.cluster, "cluster")
        whole_number("max_messages", self.max_messages)
        whole_number("max_bytes", self.max_bytes, 1, FETCH_BYTES_MAX)
        whole_number("value_bytes_max", self.value_bytes_max, 0)
        lease_seconds(self.lease)
        duration("ack_within", self.ack_within)
        check_choice("mode", self.mode, ConsumerMode)
        if self.max_work is not None:
            duration("max_work", self.max_work)
        whole_number("max_in_hand", self.max_in_hand)
        if self.retry is not None and not isinstance(self.retry, Backoff):
            raise TypeError(f"retry={self.retry!r}: give weir.Backoff(...)")
        if self.dead_letter is not None:
            split_name(self.dead_letter)
        policy_of(self.retry, self.dead_letter)


def run_of(message: Message) -> Run:
    """Return a message as a run of offsets."""
    return message.offset, message.offset + 1


class Settled(IntEnum):
    """What became of a delivery."""

    OPEN = 0
    DONE = 1
    GIVEN_BACK = 2


class Lessor(Protocol):
    """Whoever was granted messages of a topic, and tells the broker what becomes of them."""

    def admit(self, holding: Holding) -> bool:
        """Hold a grant; False if nothing of it is to be handed out."""

    def refuse(self, holding: Holding) -> None:
        """Give back a grant that was not asked for."""

    def drop(self, holding: Holding) -> None:
        """Hand out nothing more of a grant."""

    def settle(self, holding: Holding, first: int, behind: int) -> None:
        """Note that messages are done."""

    def settled(self, holding: Holding) -> None:
        """Note that the first of its deliveries is done, of those that are not noted yet."""

    async def ack(self, holding: Holding, runs: Sequence[Run]) -> AckResult:
        """Say that messages are done; return when a majority knows, and what that did."""

    def give_back(
        self, holding: Holding, offsets: Sequence[int], delay_ms: int, untried: bool
    ) -> None:
        """Note that messages go back."""

    def give_back_rest(self, holding: Holding) -> None:
        """Note that what was not handed out goes back, untried."""

    async def nack(
        self, holding: Holding, runs: Sequence[Run], behind: Sequence[Run], delay_ms: int
    ) -> bool:
        """Give back, and before that, untried, those behind; False if it was too late."""

    def take_out(self, holding: Holding, runs: Sequence[Run]) -> list[Run]:
        """Take runs out of what is left; return what of them was there."""

    def put_back(self, holding: Holding, runs: Sequence[Run]) -> None:
        """Take back what was taken out."""

    async def report(self, holding: Holding, runs: list[Run]) -> None:
        """Tell that messages are about to begin that were tried before."""

    async def extend(self, holding: Holding, lease: float) -> bool:
        """Let a lease run for so many seconds from now on; False if it had ended."""

    def address_of(self, holding: Holding) -> Address:
        """Return where a scattering may ack it. Raises `BadRequest` if it may not."""

    def soon(self) -> None:
        """Tell what is settled before long. Of any thread."""


@dataclass(slots=True, eq=False)
class Holding:
    """A grant that is not all settled; its lease ends when `monotonic` is at `ends`, in seconds.

    `left` is what was neither said to be done nor given back, as far as that was noted.
    """

    grant: Grant
    ends: float
    monotonic: Callable[[], float]
    lessor: Lessor
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
    #: What is worked on: deliveries that are open, or all that is left.
    opened: set[int] = field(default_factory=set)
    all_begun: bool = False
    #: In how many blocks something of it is worked on; else its lease is extended until then.
    blocks: int = 0
    work_ends: float = 0.0

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
        return joined(self.opened)

    @property
    def worked_on(self) -> bool:
        """Whether its lease is to be extended."""
        return self.blocks > 0 or self.monotonic() < self.work_ends

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

    def done(self, delivery: Delivery) -> None:
        """Note that it is done."""

    def give_back(self, delivery: Delivery, delay: Delay, untried: bool) -> None:
        """Note that it goes back."""

    async def report(self, delivery: Delivery, holding: Holding) -> bool:
        """Tell the broker that one is about to begin; False if that cannot be."""


class Delivery:
    """One message of a grant, to be settled by itself: once, in the event loop's thread.

    What is settled is told to the broker together, within `ack_within`.
    """

    __slots__ = ("_owner", "holding", "message", "state")

    def __init__(self, message: Message, holding: Holding, owner: Owner) -> None:
        """Take whom to tell what became of it."""
        self.message = message
        self.state = Settled.OPEN
        self.holding = holding
        self._owner = owner

    @property
    def attempts(self) -> int:
        """The how-manieth time it was handed to a consumer: 1, unless work failed."""
        return self.holding.grant.attempts

    def mark_begun(self) -> None:
        """Note that it is worked on from now on. Of any thread."""
        self.holding.opened.add(self.message.offset)

    @property
    def was_tried(self) -> bool:
        """Whether it was begun before, by whomever: it is to `begin` before it is worked on."""
        return self.holding.grant.attempts > 1

    async def begin(self) -> bool:
        """Report that it is about to be worked on, if it was tried before; False if it must not
        be: its lease has ended, or the broker cannot be told.
        """
        if not self.was_tried:
            return self.held
        self.mark_begun()
        return await self._owner.report(self, self.holding) and self.held

    @property
    def held(self) -> bool:
        """Whether it may be worked on: not settled, and its lease runs.

        In a keyed or ordered cluster a nack before it ends that, too.
        """
        return self.state is Settled.OPEN and not self.holding.over

    def done(self) -> None:
        """Say that it is done; nothing happens if it was settled before.

        It counts behind the lease's end, too, unless the broker gave it to another by then: give
        back what was not `held` when its turn came, and so was not worked on.
        """
        if self.state is Settled.OPEN:
            self._owner.done(self)

    def nack(self, delay: Delay = 0.0) -> None:
        """Say that it failed: it is granted again, no sooner than in `delay` ("10s", or seconds).

        With it goes what its consumer holds behind it, in a keyed cluster of its key, in an ordered
        one of its partition; none of that counts as an attempt. Raises `BadRequest`, `ValueError`.
        """
        self._owner.give_back(self, delay, False)

    def give_back(self, delay: Delay = 0.0) -> None:
        """Say that nobody tried it: its next attempt has the same number; see `nack`."""
        self._owner.give_back(self, delay, True)


class Extending:
    """Extends the leases of what is held, by one timer."""

    def __init__(
        self,
        cluster: str,
        places: Places,
        lease: float,
        held: Held,
        monotonic: Callable[[], float],
    ) -> None:
        """Take how many seconds a lease has from its extension on."""
        self._cluster = cluster
        self._places = places
        self._lease = lease
        self._held = held
        self._monotonic = monotonic
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look after leases from now on, until `end`."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="weir leases")

    def end(self) -> list[asyncio.Task[None]]:
        """Extend nothing any more; return what ends by that."""
        task, self._task = self._task, None
        if task is None:
            return []
        task.cancel()
        return [task]

    async def extend(self, holdings: Sequence[Holding]) -> bool:
        """Let leases last from now on; False if one of them had ended.

        Raises `Disconnected`.
        """
        in_time = True
        for partition in {holding.partition for holding in holdings}:
            some = [holding for holding in holdings if holding.partition == partition]
            for at in range(0, len(some), ACK_RANGES_MAX):
                in_time &= await self._together(partition, some[at : at + ACK_RANGES_MAX])
        return in_time

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._lease / _LOOKS)
            soon = self._monotonic() + self._lease / 2
            due = [
                one
                for one in self._held.values()
                if one.ends <= soon and one.worked_on and not one.over
            ]
            try:
                await self.extend(due)
            except WeirError:
                continue  # whoever pulls is told of what is wrong; the leases may still run

    async def _together(self, partition: int, holdings: Sequence[Holding]) -> bool:
        try:
            await self._ask(partition, holdings)
        except StaleGrant:
            if len(holdings) > 1:  # some are over, and the others must not suffer for it
                each = [await self._together(partition, [one]) for one in holdings]
                return all(each)
            holdings[0].ends = self._monotonic()
            return False
        return True

    async def _ask(self, partition: int, holdings: Sequence[Holding]) -> None:
        fences = [holding.fence for holding in holdings]
        lease_ms = int(self._lease * 1_000)
        begun = self._held.begun(holdings[0].partition)

        def request(address: Address) -> m.Request:
            return m.Extend(address, self._cluster, fences, lease_ms, begun)

        now = self._monotonic()
        await self._places.ask(partition, request, m.Extended)
        for holding in holdings:
            holding.ends = max(holding.ends, now + self._lease)
