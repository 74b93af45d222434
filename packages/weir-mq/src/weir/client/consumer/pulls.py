"""Pulls of a consumer: one task a partition, which asks for grants and checks what comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from weir.client.connection.metadata import TRIES, Places, watch
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.delivery import Extending, Held, Holding, Lessor
from weir.client.consumer.moves import KeptGrants
from weir.client.core.delivered_batches import Delivered, LargeDelivered, deliver
from weir.client.core.grants import Grant, Run, sorted_out
from weir.client.reader.fetcher import Chunks, FetchBuffer, LongPolls, loaded, pause_behind
from weir.errors import (
    BadBatch,
    BadRequest,
    StaleGrant,
    UnknownOpcode,
    UnknownTopic,
    ValueLost,
)
from weir.model.ids import Address
from weir.model.topic import Mode
from weir.protocol.client import messages as m

#: The partition that knows of the mode of a cluster.
_HOME = 0

#: What was withdrawn and is not answered is withdrawn again so often, in seconds: it may have been
#: asked for anew where a partition moved.
_AGAIN = 0.25


class Wanted(msgspec.Struct, frozen=True):
    """What a consumer asks for: `lease` in seconds."""

    cluster: str
    mode: Mode
    max_bytes: int
    lease: float
    tags: tuple[str, ...] = ()


class Demand:
    """What a consumer wants of all its pulls just now."""

    def __init__(self) -> None:
        """Begin with single messages that nobody waits for."""
        #: Messages to ask for at a time.
        self.size = 1
        #: Set unless there is a pause.
        self.runs = asyncio.Event()
        self.runs.set()
        #: Whether something is done that failed before, which is told before others are begun.
        self.tells_first = False
        self._waiting = 0
        self._moved = asyncio.Event()

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for a grant."""
        return self._waiting > 0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Somebody waits for a grant."""
        self._waiting += 1
        self._moved.set()
        try:
            yield
        finally:
            self._waiting -= 1

    def move(self) -> None:
        """Wake pulls that wait for the end of work whose lease has ended."""
        self._moved.set()

    async def moved(self) -> None:
        """Return once somebody waits for a grant, or such work has ended."""
        self._moved.clear()
        await self._moved.wait()


class TopicPresence:
    """Whether a topic is there; the end of one that may go is no error."""

    def __init__(self, gone: asyncio.Event | None) -> None:
        """Set `gone` once it is deleted; without it, that is an error."""
        self.is_over = False
        self._gone = gone

    def end(self, error: UnknownTopic) -> None:
        """The topic is deleted. Raises that, unless it may go."""
        if self._gone is None:
            raise error
        self.is_over = True
        self._gone.set()


class TopicBuffer:
    """What pulls of one topic put into the buffer of its consumer."""

    def __init__(self, feed: FetchBuffer[Holding], presence: TopicPresence) -> None:
        """Take note in `presence` if a puller is told that the topic is gone."""
        self._feed = feed
        self._presence = presence
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, puller: Callable[[TopicBuffer], Coroutine[None, None, None]]) -> None:
        """Start one more puller."""
        self._tasks.append(self._feed.add(partial(self._run, puller)))

    async def _run(
        self, puller: Callable[[TopicBuffer], Coroutine[None, None, None]], _: FetchBuffer[Holding]
    ) -> None:
        try:
            await puller(self)
        except UnknownTopic as error:
            self._presence.end(error)

    def put(self, holding: Holding) -> None:
        """Queue a grant."""
        self._feed.put(holding)

    def fail(self, error: Exception) -> None:
        """Queue an error: the consumer gets it after the grants that are queued."""
        self._feed.fail(error)

    def end(self) -> list[asyncio.Task[None]]:
        """End every puller; return them."""
        for task in self._tasks:
            task.cancel()
        return self._tasks


class Puller(Lessor, Protocol):
    """Whose grants are pulled."""

    held: Held

    async def quiet(self, partition: int) -> int:
        """Return when the broker knows of all that was given back of a partition, and how often
        that was. In order nothing is pulled before that: what is behind would come without it.
        """

    async def may_pull(self, partition: int) -> None:
        """Return when a partition may be pulled from."""


class Pulling:
    """Asks for the grants of one topic's partitions, those that are added later too."""

    def __init__(
        self, home: NetworkClient, places: Places, wanted: Wanted, demand: Demand, puller: Puller,
        kept: KeptGrants,
    ) -> None:  # fmt: skip
        """Take where to ask; `home` is the client whose publishes come after what is pulled."""
        self.places = places
        self._home = home
        self._monotonic = home.system.monotonic
        self._wanted = wanted
        self._demand = demand
        self._puller = puller
        self._kept = kept
        self.extending = self._extending(wanted.lease)
        self._withdrawing = PendingPulls(wanted.cluster, places)
        self._polls = LongPolls[int]()
        self._opening = asyncio.Lock()
        self._is_open = False

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return len(self.places)

    def _extending(self, lease: float) -> Extending:
        wanted, held = self._wanted, self._puller.held
        return Extending(wanted.cluster, self.places, lease, held, self._monotonic, self._kept)

    async def withdraw(self) -> None:
        """Return, in a pause, when no pull is under way any more. Raises what a request does."""
        await self._withdrawing.withdraw()

    async def extend(self, holding: Holding, lease: float) -> bool:
        """Let a lease run for `lease` seconds from now; False if it had ended."""
        return await self._extending(lease).extend([holding])

    async def report(self, partition: int, runs: list[Run]) -> None:
        """Tell that messages of a partition are about to begin, by a pull of no message that waits
        for nothing. Raises what a request does, `StaleGrant` if they were lost with a connection.
        """
        wanted, lease_ms = self._wanted, int(self._wanted.lease * 1_000)

        def request(address: Address) -> m.Request:
            return m.Pull(
                address, wanted.cluster, 0, 0, 0, lease_ms, wanted.mode, runs, wanted.tags
            )

        await self.places.ask(partition, request, m.Granted)

    def pull(self, feed: TopicBuffer) -> None:
        """Begin to pull. In a pause, what is pulled just now is refused when it comes."""
        known = len(self.places)
        for partition in range(known):
            feed.add(partial(self._pull, partition))
        feed.add(partial(self._watch, known))

    async def _watch(self, known: int, feed: TopicBuffer) -> None:
        def grown(partitions: range) -> None:
            for partition in partitions:
                feed.add(partial(self._pull, partition))

        await watch(self.places, known, grown)

    async def _pull(self, partition: int, feed: TopicBuffer) -> None:
        # One grant ahead of the user, no more: its lease runs while it waits.
        slot, runs, puller = asyncio.Semaphore(1), self._demand.runs, self._puller
        loop = asyncio.get_running_loop()
        await self._open()
        while True:
            await slot.acquire()
            await puller.may_pull(partition)
            while not runs.is_set():
                await runs.wait()
                await puller.may_pull(partition)
            began = loop.time()
            with self._withdrawing.asks(partition):
                came = await self._grant(partition, slot)
                if came is not None and runs.is_set():
                    feed.put(came)
                elif came is not None:
                    puller.refuse(came)
            if came is None:
                slot.release()
                await pause_behind(began)
            del came  # this task sleeps for long, and what is opened of it grows

    async def _open(self) -> None:
        """Return once the cluster has the wanted mode and tags in the whole topic, for partition 0
        knows.

        A broker of an earlier release does not: there each partition has the mode of its first
        grant. Raises what a request does, and `BadRequest` if that broker leaves out no tags.
        """
        wanted, found = self._wanted, m.ClusterIsOpen()

        def request(address: Address) -> m.Request:
            return m.OpenCluster(address, wanted.cluster, wanted.mode, wanted.tags)

        async with self._opening:
            if not self._is_open:
                with contextlib.suppress(UnknownOpcode):
                    found = await self.places.ask(_HOME, request, m.ClusterIsOpen)
                if found.tags != wanted.tags:
                    raise BadRequest(
                        f"tags={list(wanted.tags)}: the broker is of a release whose clusters take "
                        "all messages: upgrade it, or leave tags out"
                    )
                self._is_open = True

    async def _grant(self, partition: int, slot: asyncio.Semaphore) -> Holding | None:
        spoilt = 0
        while True:
            asked = 0
            if self._wanted.mode is Mode.ORDERED:
                asked = await self._puller.quiet(partition)
            granted = await self._once(partition)
            if not granted.fence:
                return None
            try:
                grant = self._opened(partition, granted)
            except BadBatch as error:  # its bytes changed on the way
                spoilt += 1
                if spoilt == TRIES:
                    raise
                await self._give_back(partition, granted)
                await asyncio.sleep(self._home.pause(spoilt, error))
            else:
                ends = self._monotonic() + self._wanted.lease
                came = Holding(grant, ends, self._monotonic, self._puller, slot, asked)
                self._kept.came(came)
                return came

    async def _once(self, partition: int) -> m.Granted:
        wanted, poll = self._wanted, self._polls.seconds(partition)

        def request(address: Address) -> m.Request:
            # As of now: what was begun while the pull waited must not be forgotten by it.
            begun = self._puller.held.begun(partition)
            return m.Pull(
                address,
                wanted.cluster,
                self._demand.size,
                wanted.max_bytes,
                int(poll * 1_000),
                int(wanted.lease * 1_000),
                wanted.mode,
                begun,
                wanted.tags,
                token=self._kept.token,
            )

        granted = await self.places.ask(partition, request, m.Granted, wait=poll)
        self._polls.answered(partition, not granted.fence)
        return granted

    def _opened(self, partition: int, granted: m.Granted) -> Grant:
        """Return what was granted. Raises `BadBatch`."""
        places = self.places
        delivered = deliver(
            granted.batches,
            places[partition].group,
            places.topic,
            partition,
            granted.offset,
            granted.next_offset,
            Chunks(places),
        )
        for part in delivered:
            self._home.saw(part.batch.header.stamp)
        now = granted.granted_ms * 1_000
        left, expired = sorted_out(delivered, granted.runs, now)
        return Grant(
            places.topic,
            partition,
            granted.fence,
            granted.deadline,
            granted.offset,
            granted.next_offset,
            granted.attempts,
            tuple(left),
            granted.runs,
            tuple(expired),
        )

    async def _give_back(self, partition: int, granted: m.Granted) -> None:
        """Give back a grant that cannot be opened. It counts as held until then: an earlier pull
        of an ordered cluster would be granted the messages behind it.
        """
        runs = [*granted.runs] or [(granted.offset, granted.next_offset)]

        def request(address: Address) -> m.Request:
            return m.Nack(address, self._wanted.cluster, granted.fence, runs, untried=True)

        try:
            await self.places.ask(partition, request, m.Nacked)
        except (StaleGrant, BadRequest):
            # The numbers of the grant may have changed, too: its lease ends by itself.
            await asyncio.sleep(self._wanted.lease)


async def with_values(grant: Grant, size_max: int) -> Grant:
    """Return the grant with its large values fetched, as far as `size_max` bytes hold them."""
    if not any(isinstance(one, LargeDelivered) for one in grant.batches):
        return grant
    batches: list[Delivered] = []
    for one in grant.batches:
        whole = one
        # The error of a lost value is raised when the value is read: the other messages are here.
        with contextlib.suppress(ValueLost):
            whole = await loaded(one, size_max)
        if isinstance(whole, LargeDelivered) and whole.loaded is not None:
            size_max -= len(whole.loaded)
        batches.append(whole)
    return replace(grant, batches=tuple(batches))


class PendingPulls:
    """Pulls, or turns, of one cluster that are under way: one a partition."""

    def __init__(self, cluster: str, places: Places) -> None:
        """Begin with none."""
        self._cluster = cluster
        self._places = places
        self._asking: set[int] = set()
        self._answered = asyncio.Event()

    @contextlib.contextmanager
    def asks(self, partition: int) -> Iterator[None]:
        """Something is asked for; it is seen to what comes within."""
        self._asking.add(partition)
        try:
            yield
        finally:
            self._asking.discard(partition)
            self._answered.set()

    async def withdraw(self) -> None:
        """Return when nothing is under way; call it while nothing is asked for anew.

        A broker of an earlier release lets nothing be withdrawn: what comes, comes. Raises what a
        request does.
        """
        while self._asking:
            self._answered.clear()
            try:
                await asyncio.gather(*map(self._withdraw, self._asking))
            except UnknownOpcode:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN):
                    await self._answered.wait()

    async def _withdraw(self, partition: int) -> None:
        group = self._places[partition].group

        def request(address: Address) -> m.Request:
            return m.Withdraw(address, self._cluster)

        def is_pending(asked: m.Request) -> bool:
            if not isinstance(asked, m.Pull | m.TakeTurn):
                return False
            return (asked.address.group, asked.cluster) == (group, self._cluster)

        # To the broker each connection is a peer of its own, and a peer withdraws what it asked.
        # What was refused on the way to its shard may wait by way of another one.
        await self._places.ask(partition, request, m.Withdrawn, behind=is_pending)
