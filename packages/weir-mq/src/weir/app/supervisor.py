"""`weir work`: as many processes with an application's handlers as its cluster needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from weir.app.app import App
from weir.app.core.scaling import Look, Scaling
from weir.client.administration import Cluster, Share
from weir.client.client import Client, connect
from weir.client.core.retries import Backoff
from weir.errors import Disconnected, UnknownTopic, WeirError

#: Between the end of a process and the start of the one in its place.
AGAIN = Backoff(first=0.1, most=30.0, factor=2.0, jitter=0.0)
#: Seconds after which a process that ends was not broken from the beginning.
LIVED = 10.0
LOOK_SECONDS = 1.0
#: A look that takes longer is of no use.
_ANSWER_SECONDS = 5.0
#: What a process may take to end beside the grace of its handlers.
_END_SECONDS = 5.0
#: Of a cluster that reads in total order one process works, and one stands by.
_IN_TURN = 2


class Started(msgspec.Struct, frozen=True):
    """A process began."""

    process: int


class Ended(msgspec.Struct, frozen=True):
    """A process ended that should not have; another begins in `again` seconds."""

    process: int
    code: int
    again: float


class Killed(msgspec.Struct, frozen=True):
    """A process was told to end, did not within `after` seconds, and was killed."""

    process: int
    after: float


class Refused(msgspec.Struct, frozen=True):
    """The machine starts no process; it is asked again in `again` seconds."""

    why: str
    again: float


PoolEvent = Started | Ended | Killed | Refused


class Child(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its number."""

    async def wait(self) -> int:
        """Return its exit code once it is over; below 0, the signal that ended it."""

    def terminate(self) -> None:
        """Tell it to end. Raises `ProcessLookupError` if it is over."""

    def kill(self) -> None:
        """End it. Raises `ProcessLookupError` if it is over."""


Start = Callable[[], Awaitable[Child]]


class ProcessPool:
    """A number of processes. They end with this one too, if they end when stdin does."""

    def __init__(self, start: Start, grace: float, tell: Callable[[PoolEvent], None]) -> None:
        """Take what starts one; one that was told to end is killed after `grace` seconds."""
        self._start = start
        self._grace = grace
        self._tell = tell
        self._slots: list[_Slot] = []
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def present(self) -> int:
        """How many run, and were not told to end."""
        return sum(slot.taken for slot in self._slots)

    def resize(self, count: int) -> None:
        """Let there be so many, soon: the youngest end first."""
        while len(self._slots) > count:
            slot = self._slots.pop()
            slot.leave()
            self._leaving.add(slot.task)
            slot.task.add_done_callback(self._leaving.discard)
        while len(self._slots) < count:
            self._slots.append(_Slot(self._start, self._grace, self._tell))

    async def close(self) -> None:
        """Let all end."""
        self.resize(0)
        if self._leaving:
            await asyncio.wait(self._leaving)


class _Slot:
    """Room for one process, taken until it is left."""

    def __init__(
        self,
        start: Start,
        grace: float,
        tell: Callable[[PoolEvent], None],
    ) -> None:
        self.taken = False
        self._start = start
        self._grace = grace
        self._tell = tell
        self._left = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._fill())

    def leave(self) -> None:
        self.taken = False
        self._left.set()

    async def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while not self._left.is_set():
            began = loop.time()
            ended = await self._one()
            if self._left.is_set():
                return
            failures = 1 if loop.time() - began >= LIVED else failures + 1
            again = AGAIN.delay(failures, 0.0)
            self._tell(ended(again))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), again)

    async def _one(self) -> Callable[[float], PoolEvent]:
        """Run a process; return a function that reports its end, given when the next begins."""
        try:
            process = await self._start()
        except OSError as error:
            return partial(Refused, str(error))
        self._tell(Started(process.pid))
        self.taken = not self._left.is_set()
        code = await self._until_over(process)
        self.taken = False
        return partial(Ended, process.pid, code)

    async def _until_over(self, process: Child) -> int:
        over = asyncio.ensure_future(process.wait())
        left = asyncio.ensure_future(self._left.wait())
        await asyncio.wait((over, left), return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if not over.done():
            _signal(process.terminate)
            await asyncio.wait((over,), timeout=self._grace)
        if not over.done():
            _signal(process.kill)
            self._tell(Killed(process.pid, self._grace))
        return await over


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError):
        send()


class Plan(msgspec.Struct, frozen=True):
    """How many processes to run for a cluster: `least` to `most`; times in seconds.

    `timeout` is for the first connection alone: a broker that goes later is waited for without end.
    """

    cluster: str
    url: str
    least: int
    most: int
    cool_down: float
    grace: float
    timeout: float = 5.0


class Scaled(msgspec.Struct, frozen=True):
    """Another number of processes is wanted."""

    before: int
    wanted: int
    waiting: int
    left: int
    why: str


class Blind(msgspec.Struct, frozen=True):
    """The cluster could not be looked at, so nothing is decided until it can. The broker is `away`
    if it is not reached at all.
    """

    why: str
    away: bool = True


class Seen(msgspec.Struct, frozen=True):
    """The cluster is looked at again."""


class Figures(msgspec.Struct, frozen=True):
    """A collector may read figures at `url`."""

    url: str


Event = PoolEvent | Scaled | Blind | Seen | Figures


class Supervisor:
    """Starts processes, looks at the cluster, and has more of them or fewer."""

    def __init__(self, app: App, plan: Plan, start: Start, tell: Callable[[Event], None]) -> None:
        """Take what starts a process with the application's handlers.

        Raises `ValueError` for what the application has no handler of.
        """
        mine = [one for one in app.subscriptions if one.cluster == plan.cluster]
        if not mine:
            names = sorted({one.cluster for one in app.subscriptions})
            there = f"there are {', '.join(names)}" if names else "decorate one with @app.subscribe"
            raise ValueError(f"no handler of cluster {plan.cluster!r}: {there}")
        self._taken = [one.taken for one in mine]
        self._ordered = all(one.mode == "ordered" for one in mine)
        self._plan = plan
        self._start = start
        self._tell = tell
        self._scaling = Scaling(plan.least, plan.most, plan.cool_down)
        self._pool: ProcessPool | None = None
        #: What was seen of the cluster last; None before that, and while it cannot be looked at.
        self.seen: Look | None = None

    @property
    def wanted(self) -> int:
        """How many processes there should be."""
        return self._scaling.wanted

    @property
    def present(self) -> int:
        """How many run, and were not told to end."""
        return self._pool.present if self._pool is not None else 0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`, then let all processes end. Raises `UnknownTopic`, and `Disconnected`
        if no broker is reached at the start.
        """
        plan = self._plan
        pool = self._pool = ProcessPool(self._start, plan.grace + _END_SECONDS, self._tell)
        looking = asyncio.ensure_future(self._look_on(pool))
        asked = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((looking, asked), return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
        finally:
            looking.cancel()
            asked.cancel()
            await asyncio.wait((looking, asked))
            await pool.close()

    async def _look_on(self, pool: ProcessPool) -> None:
        plan = self._plan
        async with connect(plan.url, name="weir-work", request_timeout=plan.timeout):
            pass
        self._tell(Scaled(0, plan.least, 0, 0, "these are the least"))
        pool.resize(plan.least)
        blind = False
        while True:
            try:
                connecting = connect(plan.url, name="weir-work", request_timeout=_ANSWER_SECONDS)
                async with connecting as client:
                    while True:
                        self.seen = await self._look(client)
                        self._decide(self.seen, pool)
                        if blind:
                            self._tell(Seen())
                        blind = False
                        await asyncio.sleep(LOOK_SECONDS)
            except UnknownTopic:
                raise
            except WeirError as error:
                if not blind:
                    self._tell(Blind(str(error), isinstance(error, Disconnected)))
                blind, self.seen = True, None
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, client: Client) -> Look:
        shares: list[Share] = []
        useful = 0
        for topic in await self._topics(client):
            for cluster in await self._clusters(client, topic):
                shares += cluster.shares
                useful += _IN_TURN if cluster.order == "total" else len(cluster.shares)
        left = sum(share.lag for share in shares)
        busy = sum(share.granted + share.held_back + share.delayed for share in shares)
        return Look(
            asyncio.get_running_loop().time(),
            sum(share.end for share in shares),
            left,
            max(left - busy, 0),
            0,
            len(shares),  # none of a topic in which the cluster has not begun
            # A partition's messages are one process's at a time, and the others would stand by.
            useful if self._ordered and shares else None,
        )

    async def _topics(self, client: Client) -> list[str]:
        """Return the topics that there are of those that handlers take, by full name."""
        found = {name for one in self._taken for name in one.named}
        for namespace in sorted({name for one in self._taken for name in one.namespaces}):
            listed = [info.full_name for info in await client.topics(namespace)]
            found.update(name for name in listed if any(one.takes(name) for one in self._taken))
        return sorted(found)

    async def _clusters(self, client: Client, topic: str) -> list[Cluster]:
        try:
            return await client.clusters(topic, self._plan.cluster)
        except UnknownTopic:
            if any(topic in one.named for one in self._taken):
                raise
            return []  # a prefix matched it, and meanwhile it was deleted

    def _decide(self, look: Look, pool: ProcessPool) -> None:
        before = self._scaling.wanted
        decision = self._scaling.decide(replace(look, present=pool.present))
        if decision.wanted != before:
            self._tell(Scaled(before, decision.wanted, look.waiting, look.left, decision.why))
            pool.resize(decision.wanted)
