"""What a consumer holds: grants, and of some of them each message by itself; and what an ack did.

Leases are kept up while work goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

import msgspec
from msgspec.structs import replace

from weir.client.arguments import Delay
from weir.client.connection.metadata import Places
from weir.client.core.grants import Grant, Run, covers, joined, merged
from weir.errors import StaleGrant, WeirError
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX
from weir.model.message import Message
from weir.model.topic import AckOutcome
from weir.protocol.client import messages as m

#: A lease is looked at so many times before it ends, and extended once half of it is over.
_LOOKS = 8


class Stale(msgspec.Struct, frozen=True):
    """Messages [offset, next_offset) that were settled after their lease had ended, and whether
    they are done: `DONE_ELSEWHERE`, `EXPIRED`, or `PARTLY` where that was not told one by one.
    """

    topic: str
    partition: int
    offset: int
    next_offset: int
    outcome: AckOutcome = AckOutcome.EXPIRED


class AckResult(msgspec.Struct, frozen=True):
    """What an ack did; true if this grant did all that was acked.

    `late` are runs (first, next, outcome) of messages that it did not do. All others are `DONE`.
    """

    late: tuple[tuple[int, int, AckOutcome], ...] = ()
    #: Of all that was acked together.
    outcome: AckOutcome = AckOutcome.DONE

    def __bool__(self) -> bool:
        """Return whether the grant did all of it."""
        return self.outcome is AckOutcome.DONE

    def of(self, offset: int) -> AckOutcome:
        """Return what became of one of the messages that were acked, by its offset."""
        for first, behind, outcome in self.late:
            if first <= offset < behind:
                return outcome
        return AckOutcome.DONE


def result_of(runs: Sequence[Run], late: Sequence[tuple[int, int, AckOutcome]] = ()) -> AckResult:
    """Return the result of an ack of `runs`, of which `late` was not done by their grant."""
    outcomes = {outcome for *_, outcome in late}
    count = sum(behind - first for first, behind in runs)
    if sum(behind - first for first, behind, _ in late) < count:
        outcomes.add(AckOutcome.DONE)
    outcome = outcomes.pop() if len(outcomes) == 1 else AckOutcome.PARTLY
    return AckResult(tuple(sorted(late)), outcome)


def expired_result(runs: Sequence[Run]) -> AckResult:
    """Return the result of an ack of `runs` whose grant is over."""
    return result_of(runs, [(*run, AckOutcome.EXPIRED) for run in runs])


def run_of(message: Message) -> Run:
    """Return a message as a run of offsets."""
    return message.offset, message.offset + 1


class Settled(IntEnum):
    """What became of a delivery."""

    OPEN = 0
    DONE = 1
    GIVEN_BACK = 2


#: Each look at the enumeration is felt where messages go one by one.
_OPEN = Settled.OPEN


class Outcomes(Protocol):
    """The outcomes of the grants of a topic, until the broker knows them."""

    def settle(self, holding: Holding, first: int, behind: int) -> None:
        """Note that messages are done."""

    def settled(self, holding: Holding) -> None:
        """Note that the first of its deliveries is done, of those that are not noted yet."""

    def note_news(self) -> None:
        """Note what is done of deliveries that were settled one by one."""

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

    def soon(self) -> None:
        """Tell what is settled before long. Of any thread."""

    def settled_all(self) -> None:
        """A grant is settled as a whole."""


class Lessor(Protocol):
    """Holds the messages of a topic that the broker granted, until they are settled."""

    @property
    def outcomes(self) -> Outcomes:
        """What becomes of them."""

    def admit(self, holding: Holding) -> bool:
        """Hold a grant; False if nothing of it is to be handed out."""

    def refuse(self, holding: Holding) -> None:
        """Give back a grant that was not asked for."""

    def drop(self, holding: Holding) -> None:
        """Hand out nothing more of a grant."""

    async def report(self, holding: Holding, runs: list[Run]) -> None:
        """Tell that messages are about to begin that were tried before."""

    async def extend(self, holding: Holding, lease: float) -> bool:
        """Let a lease run for so many seconds from now on; False if it had ended."""

    def place_of(self, holding: Holding) -> tuple[Address, int]:
        """Return where a scattering may ack it, and by which number. Raises `BadRequest` if it may
        not.
        """


class Holding(msgspec.Struct, eq=False):
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
    left: list[Run] = msgspec.field(default_factory=list)
    #: How many deliveries of it are handed out and open; and offsets that are done and not noted.
    open: int = 0
    finished: list[int] = msgspec.field(default_factory=list)
    #: Those that are open, by offset, where a nack takes others with it; and offsets that went back
    #: before.
    deliveries: dict[int, Delivery] = msgspec.field(default_factory=dict)
    skipped: set[int] = msgspec.field(default_factory=set)
    #: All below was handed out; and whether nothing more of it will be.
    handed: int = 0
    all_handed: bool = False
    #: What is worked on: deliveries that are open, or all that is left.
    opened: set[int] = msgspec.field(default_factory=set)
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
    """The component that handed deliveries out."""

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
        """Take the owner, which is told the message's outcome."""
        self.message = message
        self.state = _OPEN
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
        if self.state is _OPEN:
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


class Numbers(Protocol):
    """By which number a grant is held, which changes as it is moved to another connection."""

    def now(self, partition: int, fence: int) -> int:
        """Return the number of now of a grant that came with `fence`."""

    async def unmoved(self, partition: int) -> int:
        """Return once nothing of a partition is being moved."""


class Extending:
    """Extends the leases of what is held, by one timer."""

    def __init__(
        self,
        cluster: str,
        places: Places,
        lease: float,
        held: Held,
        monotonic: Callable[[], float],
        numbers: Numbers,
    ) -> None:
        """Take how many seconds a lease has from its extension on, and what says by which number a
        grant is held.
        """
        self._cluster = cluster
        self._places = places
        self._lease = lease
        self._held = held
        self._monotonic = monotonic
        self._numbers = numbers
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
                continue  # pulls get this error; the leases may still run

    async def _together(self, partition: int, holdings: Sequence[Holding]) -> bool:
        asked = self._fences(holdings)
        try:
            await self._ask(partition, holdings)
        except StaleGrant:
            await self._numbers.unmoved(partition)
            if asked != self._fences(holdings):  # they were moved meanwhile
                return await self._together(partition, holdings)
            if len(holdings) > 1:  # some are over, and the others must not suffer for it
                each = [await self._together(partition, [one]) for one in holdings]
                return all(each)
            holdings[0].ends = self._monotonic()
            return False
        return True

    def _fences(self, holdings: Sequence[Holding]) -> list[int]:
        return [self._numbers.now(one.partition, one.fence) for one in holdings]

    async def _ask(self, partition: int, holdings: Sequence[Holding]) -> None:
        fences = self._fences(holdings)
        lease_ms = int(self._lease * 1_000)
        begun = self._held.begun(holdings[0].partition)

        def request(address: Address) -> m.Request:
            return m.Extend(address, self._cluster, fences, lease_ms, begun)

        now = self._monotonic()
        await self._places.ask(partition, request, m.Extended)
        for holding in holdings:
            holding.ends = max(holding.ends, now + self._lease)
