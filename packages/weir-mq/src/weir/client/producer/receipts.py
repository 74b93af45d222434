"""What a producer gets back: receipts, and what is pending until then, with a limit of time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from weir.errors import Disconnected, Refused, WeirError

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


class BatchReceipt(msgspec.Struct, frozen=True):
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


class PendingBatch:
    """A batch that is gathered or sent: await it for its `BatchReceipt`, or its error.

    A future exists only while a task waits: each waiting task has its own, so that a cancelled one
    does not cancel the others. `Unconfirmed.begin` makes them.
    """

    __slots__ = (
        "_unconfirmed", "_waiters", "_watching", "count", "moved", "part_of", "partition",
        "pinned", "result", "size", "topic",
    )  # fmt: skip

    def __init__(
        self,
        unconfirmed: Unconfirmed,
        partition: int,
        pinned: bool = False,
        part_of: PendingBatch | None = None,
    ) -> None:
        """Begin a batch of a partition; `pinned` if it may go to no other."""
        self._unconfirmed = unconfirmed
        self.topic = unconfirmed.topic
        self.partition = partition
        self.pinned = pinned
        #: The batch of another partition, which had ended, of which this one is a part.
        self.part_of = part_of
        #: By message, the batch that it went to when its partition had ended, and its place there.
        self.moved: list[tuple[PendingBatch, int]] | None = None
        self.size = 0
        self.count = 0
        #: What became of it, once that is known.
        self.result: BatchReceipt | Exception | None = None
        self._waiters: list[asyncio.Future[BatchReceipt]] = []
        self._watching: asyncio.Task[None] | None = None

    @property
    def done(self) -> bool:
        """Whether it is confirmed or given up."""
        return self.result is not None

    def resolve(self, result: BatchReceipt | Exception) -> None:
        """Say what became of the batch, once."""
        self.result = result
        if self._waiters:
            self._tell(result)

    def _tell(self, result: BatchReceipt | Exception) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():  # its task was cancelled
                continue
            if isinstance(result, Exception):
                waiter.set_exception(result)
            else:
                waiter.set_result(result)

    def result_of_parts(self) -> BatchReceipt | Exception | None:
        """The outcomes of the batches that its messages went to; None while they are not known."""
        assert self.moved is not None  # it is asked of no other
        found = [part.result for part in dict.fromkeys(part for part, _ in self.moved)]
        if None in found:
            return None
        confirmed = [result for result in found if isinstance(result, BatchReceipt)]
        if len(confirmed) < len(found):
            return next(result for result in found if isinstance(result, Exception))
        if len(found) == 1:
            return confirmed[0]
        stamp, first = max(one.stamp for one in confirmed), confirmed[0].first_sequence
        return BatchReceipt(self.partition, first, self.count, -1, stamp, False)

    async def wait(self) -> BatchReceipt:
        """Return when the batch is confirmed, or raise what kept it from being so.

        Raises `Disconnected` after `request_timeout` in which its producer got no confirm at all.
        """
        if self.result is None and self._watching is None:
            loop = asyncio.get_running_loop()
            self._watching = loop.create_task(self._watch(), name="weir confirm")
        if self.result is None:
            waiter: asyncio.Future[BatchReceipt] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            return await waiter
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def within(self, timeout: SharedTimeout) -> asyncio.Future[BatchReceipt]:
        """Return what becomes of the batch, or the complaint of `timeout` if that takes too long.

        Waiting in line there costs less than the task that `wait` has watch over a batch: this is
        for batches of one message.
        """
        waiter: asyncio.Future[BatchReceipt] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self.result is None:
            timeout.put(waiter)
        else:
            self._tell(self.result)
        return waiter

    async def _watch(self) -> None:
        """Tell all who wait when it has taken too long: one task for a batch, not for each."""
        try:
            await self._unconfirmed.until_done(self)
        except WeirError as error:
            self._tell(error)
        finally:
            self._watching = None

    def __await__(self) -> Generator[object, None, BatchReceipt]:
        return self.wait().__await__()


class PendingMessage:
    """A message that was sent: await it for its `Receipt`, or its error."""

    __slots__ = ("_place", "batch")

    def __init__(self, batch: PendingBatch, place: int) -> None:
        """Point at one message of a batch."""
        self.batch = batch
        self._place = place

    async def wait(self) -> Receipt:
        """Return when the message is confirmed, or raise what kept it from being so.

        Raises `Disconnected` after `request_timeout` in which its producer got no confirm at all.
        """
        return self.receipt(await self.batch.wait())

    def receipt(self, done: BatchReceipt) -> Receipt:
        """Return where the message is, given the receipt of its batch."""
        batch, place = self.batch, self._place
        while batch.moved is not None:
            batch, place = batch.moved[place]
            assert isinstance(batch.result, BatchReceipt)  # it is a part of what is done
            done = batch.result
        offset = done.offset + place if done.offset >= 0 else -1
        return Receipt(batch.topic, batch.partition, offset, done.stamp, done.duplicate)

    def __await__(self) -> Generator[object, None, Receipt]:
        return self.wait().__await__()


class Unconfirmed:
    """The batches of one producer that are not confirmed yet, and all who wait for that."""

    __slots__ = (
        "_batches", "_doubt", "_error", "_max_buffered", "_on_confirm", "_seconds", "_waiters",
        "buffered", "refusals", "timeout", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        seconds: float,
        max_buffered: int,
        on_confirm: Callable[[BatchReceipt], None] | None = None,
    ) -> None:
        """Begin with none. So many `seconds` without any confirm are too long."""
        self.topic = topic
        #: Bytes gathered or sent, and not confirmed.
        self.buffered = 0
        #: By partition, what its broker refused last; partitions that confirmed since have none.
        self.refusals: dict[int, Refused] = {}
        #: For those who wait for a batch of one message.
        self.timeout = SharedTimeout(seconds, self.stalled)
        self._seconds = seconds
        self._max_buffered = max_buffered
        self._on_confirm = on_confirm
        self._batches: dict[PendingBatch, None] = {}
        self._waiters: list[asyncio.Future[None]] = []
        #: The first error that `flush` has not raised yet.
        self._error: Exception | None = None
        #: Why it is not known where the partitions are served.
        self._doubt = ""

    def begin(
        self, partition: int, pinned: bool = False, part_of: PendingBatch | None = None
    ) -> PendingBatch:
        """Return a new batch: `flush` waits for it from now on."""
        batch = PendingBatch(self, partition, pinned, part_of)
        self._batches[batch] = None
        return batch

    def resolve(self, batch: PendingBatch, result: BatchReceipt | Exception) -> None:
        """Say that a batch is confirmed or given up to all who wait."""
        self._batches.pop(batch, None)
        self.buffered -= batch.size
        batch.resolve(result)
        if isinstance(result, Exception):
            self._error = self._error or result
        elif self._on_confirm is not None and not (result.index or batch.moved):
            # It is no chunk, nor was each of its parts told.
            # An error of the user's ledger must not end the connection whose reply this is.
            try:
                self._on_confirm(result)
            except Exception as error:
                self._error = self._error or error
        whole = batch.part_of
        if whole is not None and (outcome := whole.result_of_parts()) is not None:
            self.resolve(whole, outcome)
        if self._waiters:
            self.wake()

    def fits(self, size: int) -> bool:
        """Whether so many bytes more may be buffered."""
        return self.buffered == 0 or self.buffered + size <= self._max_buffered

    async def ready(self) -> None:
        """Return when no more than `max_buffered` bytes await their confirms."""
        await self.until(lambda: self.buffered <= self._max_buffered)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when `condition()`. Raises `Disconnected` if nothing moves for too long."""
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout(self._seconds):
                    await waiter
            except TimeoutError:
                raise self.stalled() from None

    async def until_done(self, batch: PendingBatch) -> None:
        """Return when a batch is confirmed or given up. Raises as `until`."""
        await self.until(lambda: batch.result is not None)

    async def confirmed(self, batch: PendingBatch) -> BatchReceipt:
        """Return a batch's receipt. Raises what gave it up, and as `until`."""
        await self.until_done(batch)
        return await batch

    async def flush(self) -> None:
        """Return when all that was begun before is confirmed; raise the first error since the last.

        Raises `Disconnected` after `request_timeout` without any confirm.
        """
        for batch in [*self._batches]:
            if batch.result is None:
                await self.until_done(batch)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def forgive(self, error: Exception) -> None:
        """Keep from `flush` what ended the chunks of a value that is sent again."""
        if self._error is error:
            self._error = None

    def wake(self) -> None:
        """Wake all tasks that wait for a condition, to check it again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self, error: WeirError) -> None:
        """Let those who still wait for a batch of one message fail now, with an error."""
        self.timeout.close(error)

    def found(self, error: WeirError | None) -> None:
        """Note whether it was found out where the partitions are served."""
        self._doubt = "" if error is None else f" (asked where {self.topic} is served: {error})"

    def stalled(self) -> Disconnected:
        """Return what to raise when there was no confirm for too long."""
        refused = next((self.refusals[p] for p in sorted(self.refusals)), None)
        advice = (
            "Check that the broker is up and has a majority"
            if refused is None
            else f"The broker refused it last with: {type(refused).__name__}: {refused}. Mend that"
        )
        return Disconnected(
            f"nothing sent to {self.topic} was confirmed for {self._seconds:g} s; "
            f"{len(self._batches)} batches are still tried. {advice}, or give a longer "
            f"request_timeout{self._doubt}"
        )


class SharedTimeout:
    """Futures that wait for at most so long, all as long: one timer serves all of them, since the
    oldest is due first.
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
