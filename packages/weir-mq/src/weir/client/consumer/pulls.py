"""Pulls of a consumer: one task a partition, which asks for grants and checks what comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from weir.client.connection.metadata import Places, watch
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.delivery import Extending, Held, Holding
from weir.client.core.delivered_batches import Delivered, LargeDelivered, deliver
from weir.client.core.grants import Grant, Run, sorted_out
from weir.client.reader.fetcher import EMPTY_PAUSE, LONG_POLL, Chunks, FetchBuffer, loaded
from weir.errors import UnknownOpcode, ValueLost
from weir.model.ids import Address
from weir.model.topic import Mode
from weir.protocol.client import messages as m

#: The partition that knows of the mode of a cluster.
_HOME = 0

#: What was withdrawn and is not answered is withdrawn again so often, in seconds: it may have been
#: asked for anew where a partition moved.
_AGAIN = 0.25


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a consumer asks for: `lease` in seconds."""

    cluster: str
    mode: Mode
    max_bytes: int
    lease: float


class Pulling:
    """Asks for the grants of one topic's partitions, those that are added later too."""

    def __init__(
        self,
        home: NetworkClient,
        places: Places,
        wanted: Wanted,
        quiet: Callable[[int], Awaitable[int]],
        refuse: Callable[[Holding], None],
        begin: Callable[[int], Awaitable[None]],
        held: Held,
    ) -> None:
        """Take where to ask; `home` is the link whose publishes come after what is pulled.

        `quiet` returns when the broker knows of all that was given back of a partition, and how
        often that was. In order nothing is pulled before that: what is behind it would come
        without it.
        `refuse` takes what comes during a `pause`. `begin` returns when a partition may be pulled
        from; `held` is what was pulled and is not settled.
        """
        #: Messages to ask for; whoever takes the grants says.
        self.size = 1
        self._home = home
        self._monotonic = home.system.monotonic
        self._places = places
        self._wanted = wanted
        self._quiet = quiet
        self._refuse = refuse
        self._begin = begin
        self._held = held
        self._runs = asyncio.Event()
        self._runs.set()
        self._withdrawing = PendingPulls(wanted.cluster, places)
        self._opening = asyncio.Lock()
        self._is_open = False

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return len(self._places)

    def pause(self) -> None:
        """Pull nothing until `resume`. What is pulled just now is refused when it comes."""
        self._runs.clear()

    async def withdraw(self) -> None:
        """Return, in a pause, when no pull is under way any more. Raises what a request does."""
        await self._withdrawing.withdraw()

    def resume(self) -> None:
        """Pull again."""
        self._runs.set()

    async def extend(self, holding: Holding, lease: float) -> bool:
        """Let a lease run for `lease` seconds from now; False if it had ended."""
        monotonic, cluster = self._monotonic, self._wanted.cluster
        extending = Extending(cluster, self._places, lease, self._held, monotonic)
        return await extending.extend([holding])

    async def report(self, partition: int, runs: list[Run]) -> None:
        """Tell that messages of a partition are about to begin, by a pull of no message that waits
        for nothing. Raises what a request does, `StaleGrant` if they were lost with a connection.
        """
        wanted, lease_ms = self._wanted, int(self._wanted.lease * 1_000)

        def request(address: Address) -> m.Request:
            return m.Pull(address, wanted.cluster, 0, 0, 0, lease_ms, wanted.mode, runs)

        await self._places.ask(partition, request, m.Granted)

    def feed(self) -> FetchBuffer[Holding]:
        """Begin to pull."""
        known = len(self._places)
        feed = FetchBuffer(partial(self._pull, p) for p in range(known))
        feed.add(partial(self._watch, known))
        return feed

    async def _watch(self, known: int, feed: FetchBuffer[Holding]) -> None:
        def grown(partitions: range) -> None:
            for partition in partitions:
                feed.add(partial(self._pull, partition))

        await watch(self._places, known, grown)

    async def _pull(self, partition: int, feed: FetchBuffer[Holding]) -> None:
        # One grant ahead of the user, no more: its lease runs while it waits.
        slot = asyncio.Semaphore(1)
        await self._open()
        while True:
            await slot.acquire()
            await self._begin(partition)
            while not self._runs.is_set():
                await self._runs.wait()
                await self._begin(partition)
            with self._withdrawing.asks(partition):
                came = await self._grant(partition, slot)
                if came is not None and self._runs.is_set():
                    feed.put(came)
                elif came is not None:
                    self._refuse(came)
            if came is None:
                slot.release()
                await asyncio.sleep(EMPTY_PAUSE)
            del came  # this task sleeps for long, and what is opened of it grows

    async def _open(self) -> None:
        """Return once the cluster has the wanted mode in the whole topic, for partition 0 knows.

        A broker of an earlier release does not: there each partition has the mode of its first
        grant. Raises what a request does.
        """

        def request(address: Address) -> m.Request:
            return m.OpenCluster(address, self._wanted.cluster, self._wanted.mode)

        async with self._opening:
            if not self._is_open:
                with contextlib.suppress(UnknownOpcode):
                    await self._places.ask(_HOME, request, m.ClusterIsOpen)
                self._is_open = True

    async def _grant(self, partition: int, slot: asyncio.Semaphore) -> Holding | None:
        asked = 0
        if self._wanted.mode is Mode.ORDERED:
            asked = await self._quiet(partition)
        grant = await self._once(partition)
        if grant is None:
            return None
        ends = self._monotonic() + self._wanted.lease
        return Holding(grant, ends, self._monotonic, slot, asked)

    async def _once(self, partition: int) -> Grant | None:
        places, wanted, delivered = self._places, self._wanted, list[Delivered]()

        def request(address: Address) -> m.Request:
            # As of now: what was begun while the pull waited must not be forgotten by it.
            begun = self._held.begun(partition)
            return m.Pull(
                address,
                wanted.cluster,
                self.size,
                wanted.max_bytes,
                int(LONG_POLL * 1_000),
                int(wanted.lease * 1_000),
                wanted.mode,
                begun,
            )

        def check(granted: m.Granted) -> None:
            delivered[:] = deliver(
                granted.batches,
                places[partition].group,
                places.topic,
                partition,
                granted.offset,
                granted.next_offset,
                Chunks(places),
            )

        granted = await places.ask(partition, request, m.Granted, wait=LONG_POLL, check=check)
        if granted.fence == 0:
            return None
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


async def with_values(grant: Grant, size_max: int) -> Grant:
    """Return the grant with its large values fetched, as far as `size_max` bytes hold them."""
    if not any(isinstance(one, LargeDelivered) for one in grant.batches):
        return grant
    batches: list[Delivered] = []
    for one in grant.batches:
        whole = one
        # One that is gone is told to whoever opens it: the others are here.
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
        def request(address: Address) -> m.Request:
            return m.Withdraw(address, self._cluster)

        await self._places.ask(partition, request, m.Withdrawn)
