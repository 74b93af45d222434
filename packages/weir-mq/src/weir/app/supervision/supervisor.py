"""`weir work`: as many processes with an application's handlers as its cluster needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from weir.app.app import App
from weir.app.core.scaling import Look, Scaling
from weir.app.supervision.process_pool import PoolEvent, ProcessPool, Start
from weir.client.admin.clusters import Share
from weir.client.client import Client, connect
from weir.errors import Disconnected, UnknownTopic, WeirError

LOOK_SECONDS = 1.0
#: A look that takes longer is of no use.
_ANSWER_SECONDS = 5.0
#: What a process may take to end beside the grace of its handlers.
_END_SECONDS = 5.0
#: Of a cluster that reads in total order one process works, and one stands by.
_IN_TURN = 2


@dataclass(frozen=True, slots=True)
class Plan:
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


@dataclass(frozen=True, slots=True)
class Scaled:
    """Another number of processes is wanted."""

    before: int
    wanted: int
    waiting: int
    left: int
    why: str


@dataclass(frozen=True, slots=True)
class Blind:
    """The cluster could not be looked at, so nothing is decided until it can. The broker is `away`
    if it is not reached at all.
    """

    why: str
    away: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster is looked at again."""


@dataclass(frozen=True, slots=True)
class Figures:
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
        self._topics = sorted({one.topic for one in mine})
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
        for topic in self._topics:
            for cluster in await client.clusters(topic, self._plan.cluster):
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

    def _decide(self, look: Look, pool: ProcessPool) -> None:
        before = self._scaling.wanted
        decision = self._scaling.decide(replace(look, present=pool.present))
        if decision.wanted != before:
            self._tell(Scaled(before, decision.wanted, look.waiting, look.left, decision.why))
            pool.resize(decision.wanted)
