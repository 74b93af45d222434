"""One subscription at work: its workers take messages, let its handler have them, and ack them.

The handlers of a process share an event loop: one of them may want that nothing happens beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from weir.app.core.breaker import Breaker, State
from weir.app.handlers import Subscription
from weir.app.work_queue import Source, Unit, WorkQueue, parts_of
from weir.client.connection.system import SYSTEM
from weir.client.core.retries import Again, Backoff, Dead, seconds, told
from weir.errors import Disconnected, Refused, Reject, WeirError
from weir.model.message import Message

#: A worker that is to be alone waits so long for those at work, and is alone for so long, in
#: seconds.
CLEARED = 10.0
ALONE = 60.0

_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWorkers] = WeakKeyDictionary()

Worker = asyncio.Task[None]

T = TypeVar("T")

log = logging.getLogger("weir.app")

#: Seconds that handlers which never wait may keep the event loop for.
_TURN = 0.005
#: How often a handler's time limit is looked at while it lasts, at most.
_LOOKS = 20
#: What failed while the breaker was not closed may come so much later than it was asked to.
_FORGIVING_SLACK = 30.0
_RETRY = Backoff(first=0.2, most=10.0)

Bury = Callable[[Message, int, str], Awaitable[None]]
"""Publish a message, in its attempt 1, 2, ..., to the dead-letter topic for a reason."""


class LoopWorkers:
    """All workers of an event loop, whatever they subscribed to: a process ends with all of it."""

    def __init__(self) -> None:
        """Begin with none."""
        #: In the order in which they came: sets of objects have another one in each process.
        self.subscriptions: dict[Workers, None] = {}
        #: Set while anybody may begin something; and when all are idle.
        self._opened = asyncio.Event()
        self._opened.set()
        self._idle = asyncio.Event()

    @staticmethod
    def here() -> LoopWorkers:
        """Return those of the event loop that runs."""
        return _by_loop.setdefault(asyncio.get_running_loop(), LoopWorkers())

    def leave(self, workers: Workers) -> None:
        """Forget those of a subscription; all, once there are none: a loop may be one of many."""
        self.subscriptions.pop(workers, None)
        if not self.subscriptions:
            _by_loop.pop(asyncio.get_running_loop(), None)

    @property
    def closed(self) -> bool:
        """Whether one is alone, or is about to be: none may begin anything."""
        return not self._opened.is_set()

    @property
    def busy(self) -> int:
        """How many are at work."""
        return sum(workers.busy for workers in self.subscriptions)

    def note_idle(self) -> None:
        """Take note that somebody is at work no more."""
        if self.closed and not self.busy:
            self._idle.set()

    async def admitted(self) -> None:
        """Wait until nobody is alone."""
        await self._opened.wait()

    async def close(self, mine: Workers) -> Exclusive:
        """Let one of `mine` be alone: nothing begins, what did not is given back, and all that was
        done is told. Workers that are busy may end, within `CLEARED` seconds.

        Call it idly, and not while it is `closed`: what one holds who waits for that dies with who
        is alone. Raises `WeirError` where what `mine` did cannot be told.
        """
        assert not self.closed
        self._opened.clear()
        alone = Exclusive(self)
        try:
            for workers in self.subscriptions:
                workers.pause()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEARED):
                    while self.busy:
                        self._idle.clear()
                        await self._idle.wait()
            others = [_quiet(workers) for workers in self.subscriptions if workers is not mine]
            await asyncio.gather(mine.quiet(), *others)
        except BaseException:
            alone.end()
            raise
        return alone

    def open(self) -> None:
        """Let the others begin again."""
        self._opened.set()


class Exclusive:
    """Somebody is alone in an event loop until `end`, or for `ALONE` seconds: what hangs must not
    keep all others from their work.
    """

    def __init__(self, workers: LoopWorkers) -> None:
        """Begin; the time runs from `begin` on."""
        self._workers: LoopWorkers | None = workers
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Let the time run."""
        self._timer = asyncio.get_running_loop().call_later(ALONE, self.end)

    def end(self) -> None:
        """Let the others begin again; nothing happens if they have."""
        if self._timer is not None:
            self._timer.cancel()
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.open()


async def _quiet(workers: Workers) -> None:
    """Let others tell what they have done; where they cannot, their messages come again."""
    with contextlib.suppress(WeirError, TimeoutError):
        async with asyncio.timeout(CLEARED):
            await workers.quiet()


class Workers:
    """Tasks that work beside each other, and beside those of other subscriptions."""

    def __init__(self, queue: WorkQueue) -> None:
        """Begin with none; they take what they work on from `queue`."""
        self.all: dict[Worker, None] = {}
        #: Those that wait for something to do.
        self.idle: dict[Worker, None] = {}
        self._queue = queue
        self._loop_workers = LoopWorkers.here()
        self._loop_workers.subscriptions[self] = None

    @property
    def busy(self) -> int:
        """How many are at work."""
        return len(self.all) - len(self.idle)

    @property
    def closed(self) -> bool:
        """Whether one is alone, or waits to be: none may begin anything."""
        return self._loop_workers.closed

    async def idly(self, worker: Worker, wait: Coroutine[Any, Any, T]) -> T:
        """Wait as an idle worker, which may be cancelled."""
        self.idle[worker] = None
        self._loop_workers.note_idle()
        try:
            return await wait
        finally:
            self.idle.pop(worker, None)

    def over(self, worker: Worker) -> None:
        """Forget one that has ended."""
        self.all.pop(worker, None)
        self._loop_workers.note_idle()
        if not self.all:
            self._loop_workers.leave(self)

    async def admitted(self) -> None:
        """Wait until nobody is alone."""
        await self._loop_workers.admitted()

    async def close(self) -> Exclusive:
        """Be alone in the process until the end of what is returned. See `LoopWorkers.close`."""
        return await self._loop_workers.close(self)

    # What those of all subscriptions are asked.

    def pause(self) -> None:
        """Give back all that did not begin."""
        self._queue.pause()

    async def quiet(self) -> None:
        """Return when the broker knows what is settled, and given back, and grants no more. Raises
        `WeirError`.
        """
        await self._queue.quiet()


class TimeLimit:
    """Ends handlers that hang.

    One timer looks at all of them: a limit round each message would cost more than all else that is
    done for it.
    """

    def __init__(self, timeout: float | None) -> None:
        """Let a handler run for so many seconds; None: for ever."""
        #: When each worker that handles something began, by the system's monotonic clock.
        self.begun: dict[Worker, float] = {}
        #: Workers that were cancelled because their handler took longer.
        self.exceeded: set[Worker] = set()
        self._timeout = timeout
        self._now = SYSTEM.get().monotonic
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Cancel whose time is up; look again when that of the next one may be."""
        if self._timeout is None:
            return
        now = self._now()
        for worker, began in self.begun.items():
            if now >= began + self._timeout and worker not in self.exceeded:
                self.exceeded.add(worker)
                worker.cancel()
        due = min(self.begun.values(), default=now) + self._timeout
        wait = max(due - now, self._timeout / _LOOKS)
        self._timer = asyncio.get_running_loop().call_later(wait, self.watch)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def why_cancelled(self, worker: Worker, error: asyncio.CancelledError | None) -> BaseException:
        """Return what went wrong in a handler that nobody stops; let its worker go on."""
        worker.uncancel()
        hangs = worker in self.exceeded
        self.exceeded.discard(worker)
        if hangs or error is None:
            return TimeoutError(f"not over after {self._timeout:g} s")
        return error  # what it awaited was cancelled, or it cancelled itself


class Dispatcher:
    """As many workers as messages may be handled at once; each takes one after the other."""

    def __init__(
        self,
        subscription: Subscription,
        source: Source,
        work: Callable[[Any], Awaitable[object]],
        bury: Bury,
        random: Random,
    ) -> None:
        """Take where messages come from, what handles one, or a list, and where dead ones go."""
        self._subscription = subscription
        self._policy = subscription.policy
        self._work = work
        self._bury = bury
        self._dice = random.random
        self._now = SYSTEM.get().monotonic
        self._queue = WorkQueue(subscription, source)
        self.breaker = Breaker()
        #: Raises what ended it; it ends by nothing else.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._workers = Workers(self._queue)
        self._stopping = False
        timeout = subscription.timeout
        self._limit = TimeLimit(None if timeout is None else seconds(timeout))
        self._known = asyncio.Event()
        self._turn_ends = 0.0
        self._troubles = 0

    def start(self) -> None:
        """Begin to take messages."""
        loop = asyncio.get_running_loop()
        for _ in range(self._subscription.concurrency):
            worker = loop.create_task(self._run(), name=f"weir {self._subscription.name}")
            self._workers.all[worker] = None
            worker.add_done_callback(self._workers.over)
        self._limit.watch()

    async def stop(self, grace: float) -> int:
        """Begin no more; return once all that runs is over, or cancelled after `grace` seconds.

        Returns how many were cancelled. All that was not done is given back.
        """
        self._stopping = True
        self._limit.close()
        for worker in self._workers.idle:
            worker.cancel()
        busy = [*self._workers.all]
        if busy:
            await asyncio.wait(busy, timeout=grace)
            busy = [worker for worker in busy if not worker.done()]
        for worker in busy:
            worker.cancel()
        if busy:
            log.warning(
                "%s: %d messages were not done within %g s; they are given back",
                self._subscription.name, len(busy), grace,
            )  # fmt: skip
            await asyncio.wait(busy)
        self._queue.give_back()
        if not self.failed.done():
            self.failed.cancel()
        return len(busy)

    # -- workers ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        worker = cast(Worker, asyncio.current_task())
        try:
            while not self._stopping:
                if self.breaker.state is not State.CLOSED:
                    await self._workers.idly(worker, self._paused())
                if self._turn_ends < self._now():
                    await asyncio.sleep(0)
                    self._turn_ends = self._now() + _TURN
                    continue  # whatever it is told meanwhile
                if self._workers.closed:
                    await self._workers.idly(worker, self._workers.admitted())
                    continue
                unit = self._queue.next()
                if unit is None:
                    await self._workers.idly(worker, self._more())
                else:
                    await self._handle(worker, unit)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)

    async def _paused(self) -> None:
        """Wait until the breaker may let a message begin."""
        while (pause := self.breaker.wait(self._now())) != 0.0:
            self._known.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._known.wait()
            except TimeoutError:
                pass

    async def _more(self) -> None:
        try:
            await self._queue.more()
        except (Disconnected, Refused) as error:
            if isinstance(error, Refused) and not error.retryable:
                raise
            self._troubles += 1
            pause = _RETRY.delay(self._troubles, self._dice())
            log.warning("%s: %s; again in %.1f s", self._subscription.name, error, pause)
            await asyncio.sleep(pause)
        else:
            self._troubles = 0

    async def _handle_alone(self, worker: Worker, unit: Unit) -> None:
        """Let a message have its last attempt with nothing beside it.

        It may be one that ends processes. To what else is here its end would be an attempt, too;
        and what was done, and not acked yet, would come again.
        """
        try:
            alone = await self._workers.idly(worker, self._workers.close())
        except (asyncio.CancelledError, WeirError) as error:
            unit.give_back()
            self._queue.done(unit)
            if isinstance(error, WeirError):
                return  # the next pull gets the same error, and waits
            raise
        try:
            alone.begin()
            await self._handle(worker, unit, alone=True)
            with contextlib.suppress(WeirError):  # what could not be told is told later
                await self._queue.flush()
        finally:
            alone.end()

    async def _handle(self, worker: Worker, unit: Unit, alone: bool = False) -> None:
        breaker = self.breaker
        if not unit.held:
            unit.give_back()  # its grant is settled when all of it is
            self._queue.done(unit)
            return
        tried = unit.attempts > 1
        if tried and not alone and self._policy.is_last(unit.attempts):
            await self._handle_alone(worker, unit)
            return
        now = self._now()
        ticket = breaker.begin(now)
        if ticket is None:
            self._queue.put_back(unit)
            return
        try:
            if tried and not await self._begins_again(unit, breaker.forgives(now)):
                breaker.give_up(ticket)
                self._known.set()  # others may wait for what would come of it
                return
            self._limit.begun[worker] = now
            try:
                await self._work(unit.message)
            finally:
                del self._limit.begun[worker]
        except Exception as error:
            await self._failed(unit, ticket, error)
        except asyncio.CancelledError as error:
            if self._stopping:
                raise
            await self._failed(unit, ticket, self._limit.why_cancelled(worker, error))
        else:
            unit.done()
            if breaker.succeeded(ticket):
                self._told()
        finally:
            self._queue.done(unit)
            if worker in self._limit.exceeded:  # it made nothing of being cancelled
                self._limit.why_cancelled(worker, None)

    async def _begins_again(self, unit: Unit, forgiven: bool) -> bool:
        """Report that what was tried before is about to be handled; False if it must not be: its
        attempts are used up, or the broker would not know of this one.
        """
        dead = self._policy.delivered(unit.attempts, forgiven)
        if dead is not None:
            await self._buried(unit, dead)
            return False
        begins = await unit.begin()
        if not begins:
            unit.give_back()
        return begins

    async def _failed(self, unit: Unit, ticket: int, error: BaseException) -> None:
        now, breaker = self._now(), self.breaker
        if isinstance(error, Reject):  # the handler works: it has judged the message
            changed = breaker.succeeded(ticket)
        else:
            changed = breaker.failed(ticket, now, told(error))
        if changed:
            self._told()
        closed = breaker.state is State.CLOSED
        verdict = self._policy.failed(unit.attempts, error, self._dice(), not closed)
        if isinstance(verdict, Dead):
            await self._buried(unit, verdict)
            return
        unit.nack(verdict.delay)
        if not closed:
            breaker.forgive_until(now + verdict.delay + _FORGIVING_SLACK)
        self._tell(unit, verdict, error)

    async def _buried(self, unit: Unit, dead: Dead) -> None:
        """Publish to the dead-letter topic, then ack; where that fails, try all again later."""
        for part in parts_of(unit):
            try:
                await self._bury(part.message, part.attempts, dead.reason)
            except Exception as error:  # whatever it is, the message is not to be lost by it
                delay = self._policy.retry.delay(part.attempts, self._dice())
                part.give_back(delay)  # an attempt more would end as another reason
                log.error(
                    "%s: %s is no dead letter yet, again in %.3g s: %s",
                    self._subscription.name, _place(part.message), delay, error,
                )  # fmt: skip
            else:
                part.done()
                log.warning(
                    "%s: %s is a dead letter in %s after %d attempts: %s",
                    self._subscription.name, _place(part.message),
                    self._policy.dead_letter, part.attempts, dead.reason,
                )  # fmt: skip

    def _told(self) -> None:
        """Let all know that the breaker has changed; nothing is pulled while it is open."""
        self._known.set()
        breaker = self.breaker
        level = logging.INFO if breaker.state is State.CLOSED else logging.ERROR
        log.log(level, "%s: %s", self._subscription.name, breaker.why)
        if breaker.state is State.OPEN:
            self._queue.pause()

    def _tell(self, unit: Unit, again: Again, error: BaseException) -> None:
        hint = ""
        if isinstance(error, Reject):
            hint = " (give dead_letter= to take away what is rejected)"
        first = parts_of(unit)[0]
        log.warning(
            "%s: attempt %d of %s failed, again in %.3g s%s",
            self._subscription.name, unit.attempts, _place(first.message), again.delay, hint,
            exc_info=error,
        )  # fmt: skip


def _place(message: Message) -> str:
    return f"{message.topic}/{message.partition} offset {message.offset}"
