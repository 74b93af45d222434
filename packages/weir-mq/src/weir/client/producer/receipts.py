"""What a producer gets back, a `Receipt` or a `Confirmed`, and how long it is waited for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import msgspec

from weir.errors import WeirError

#: So many that wait in line, done or not, are nothing to look through.
_FEW = 1_024


class Receipt(msgspec.Struct, frozen=True):
    """Where a message is. `duplicate`: an earlier send of its batch had put it there already.

    Of a producer with `ack="received"` the offset is -1: it may still become another's.
    """

    topic: str
    partition: int
    offset: int
    stamp: int
    duplicate: bool = False


class Confirmed(msgspec.Struct, frozen=True):
    """A batch is durable on a majority: its messages have offsets [offset, offset + count).

    A chunk of a large value has offset -1, and the Raft `index` of its entry. With `ack="received"`
    the batch is durable at the leader alone, and its offset is -1. So it is where its partition had
    ended and its messages went to several others: their receipts say where each is.
    """

    partition: int
    first_sequence: int
    count: int
    offset: int
    stamp: int
    duplicate: bool
    index: int = 0


class Handed:
    """A batch handed over, or still being gathered: await it for its `Confirmed`, or its error.

    A future exists only if somebody waits: one for each who does, so that one who gives up takes
    it from nobody else.
    """

    __slots__ = (
        "_result", "_waiters", "_watching", "count", "moved", "part_of", "partition", "patience",
        "pinned", "size", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, pinned: bool = False) -> None:
        """Begin a batch of a partition; `pinned` if it may go to no other."""
        self.topic = topic
        self.partition = partition
        self.pinned = pinned
        #: By message, the batch that it went to when its partition had ended, and its place there.
        self.moved: list[tuple[Handed, int]] | None = None
        #: The batch of another partition, which had ended, of which this one is a part.
        self.part_of: Handed | None = None
        self.size = 0
        self.count = 0
        self._result: Confirmed | Exception | None = None
        self._waiters: list[asyncio.Future[Confirmed]] = []
        self._watching: asyncio.Task[None] | None = None
        #: Returns when this is settled, or raises when nothing has moved for too long.
        self.patience: Callable[[Handed], Awaitable[None]] | None = None

    @property
    def settled(self) -> bool:
        """Whether it is confirmed or given up."""
        return self._result is not None

    def settle(self, result: Confirmed | Exception) -> None:
        """Say what became of the batch, once."""
        self._result = result
        if self._waiters:
            self._tell(result)

    def _tell(self, result: Confirmed | Exception) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():  # whoever waited gave up
                continue
            if isinstance(result, Exception):
                waiter.set_exception(result)
            else:
                waiter.set_result(result)

    @property
    def gathered(self) -> Confirmed | Exception | None:
        """What became of the batches that its messages went to; None while that is not known."""
        assert self.moved is not None  # it is asked of no other
        found = [part._result for part in dict.fromkeys(part for part, _ in self.moved)]
        if None in found:
            return None
        confirmed = [result for result in found if isinstance(result, Confirmed)]
        if len(confirmed) < len(found):
            return next(result for result in found if isinstance(result, Exception))
        if len(found) == 1:
            return confirmed[0]
        stamp, first = max(one.stamp for one in confirmed), confirmed[0].first_sequence
        return Confirmed(self.partition, first, self.count, -1, stamp, False)

    async def wait(self) -> Confirmed:
        """Return when the batch is confirmed, or raise what kept it from being so.

        Raises `Disconnected` after `request_timeout` in which its producer got no confirm at all.
        """
        if self._result is None and self.patience is not None and self._watching is None:
            watch = self._watch(self.patience)
            self._watching = asyncio.get_running_loop().create_task(watch, name="weir patience")
        if self._result is None:
            waiter: asyncio.Future[Confirmed] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            return await waiter
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def _expected(self, limits: Limits) -> asyncio.Future[Confirmed]:
        """Return what becomes of the batch, or the complaint of `limits` if that takes too long.

        Waiting in line there costs less than the task that `wait` has watch over a batch: this is
        for batches of one message.
        """
        waiter: asyncio.Future[Confirmed] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._result is None:
            limits.put(waiter)
        else:
            self._tell(self._result)
        return waiter

    async def _watch(self, patience: Callable[[Handed], Awaitable[None]]) -> None:
        """Tell all who wait when it has taken too long: one task for a batch, not for each."""
        try:
            await patience(self)
        except WeirError as error:
            self._tell(error)
        finally:
            self._watching = None

    def __await__(self) -> Generator[object, None, Confirmed]:
        return self.wait().__await__()


class Sent:
    """A message handed over: await it for its `Receipt`, or its error."""

    __slots__ = ("_batch", "_place")

    def __init__(self, batch: Handed, place: int) -> None:
        """Point at one message of a batch."""
        self._batch = batch
        self._place = place

    async def wait(self) -> Receipt:
        """Return when the message is confirmed, or raise what kept it from being so.

        Raises `Disconnected` after `request_timeout` in which its producer got no confirm at all.
        """
        return self._receipt(await self._batch.wait())

    def _expected(self, limits: Limits) -> asyncio.Future[Confirmed]:
        """Return what `_receipt` needs, or the complaint of `limits` if that takes too long."""
        return self._batch._expected(limits)

    def _receipt(self, done: Confirmed) -> Receipt:
        batch, place = self._batch, self._place
        while batch.moved is not None:
            batch, place = batch.moved[place]
            assert isinstance(batch._result, Confirmed)  # it is a part of what is done
            done = batch._result
        offset = done.offset + place if done.offset >= 0 else -1
        return Receipt(batch.topic, batch.partition, offset, done.stamp, done.duplicate)

    def __await__(self) -> Generator[object, None, Receipt]:
        return self.wait().__await__()


class Timeouts:
    """Tasks that wait for a condition, and whoever tells them to look again."""

    __slots__ = ("_timeout", "_waiters")

    def __init__(self, timeout: float) -> None:
        """Take how many seconds without any `wake` are too long."""
        self._timeout = timeout
        self._waiters: list[asyncio.Future[None]] = []

    async def until(self, done: Callable[[], bool], complaint: Callable[[], WeirError]) -> None:
        """Return when `done()`; raise the `complaint()` if nothing moves for too long."""
        while not done():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout(self._timeout):
                    await waiter
            except TimeoutError:
                raise complaint() from None

    def wake(self) -> None:
        """Something moved: all who wait look again."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Limits:
    """Futures that wait for at most so long, all as long: one timer does for all of them, since
    whoever began first is due first.
    """

    __slots__ = ("_complaint", "_line", "_most", "_seconds", "_timer")

    def __init__(self, seconds: float, complaint: Callable[[], WeirError]) -> None:
        """Let futures fail with the `complaint()` after so many seconds."""
        self._seconds = seconds
        self._complaint = complaint
        self._line: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._most = _FEW
        self._timer: asyncio.TimerHandle | None = None

    def put(self, waiter: asyncio.Future[Any]) -> None:
        """Let a future wait, from now on."""
        line = self._line
        while line and line[0][1].done():
            line.popleft()
        if len(line) >= self._most:  # the first one waits for long
            line = self._line = deque(one for one in line if not one[1].done())
            self._most = max(_FEW, 2 * len(line))
        loop = waiter.get_loop()
        line.append((loop.time() + self._seconds, waiter))
        if self._timer is None:
            self._timer = loop.call_at(line[0][0], self._look)

    def close(self, error: WeirError | None = None) -> None:
        """Let those who still wait fail now, with an error or the complaint: nobody is to settle
        them any more.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        line, self._line = self._line, deque()
        for _, waiter in line:
            if not waiter.done():
                waiter.set_exception(error or self._complaint())

    def _look(self) -> None:
        loop, line = asyncio.get_running_loop(), self._line
        now = loop.time()
        while line and (line[0][0] <= now or line[0][1].done()):
            _, waiter = line.popleft()
            if not waiter.done():
                waiter.set_exception(self._complaint())
        self._timer = loop.call_at(line[0][0], self._look) if line else None
