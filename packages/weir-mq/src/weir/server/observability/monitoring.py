"""What others see of a running node without being its clients: figures, health, the manager, and
what an operator should know.

Changes of leaders are told at most once a second. What must be mended, as a wrong clock or a full
disk, is told at once, then once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from weir.broker.shard import Shard
from weir.errors import Unavailable
from weir.server.config import Config, in_mib, split_address
from weir.server.driver import Driver
from weir.server.exposure import ExposureWatch
from weir.server.network.addresses import in_words
from weir.server.observability.endpoint import CONTENT_TYPE, PLAIN, Answer, Guard, Pages
from weir.server.observability.guard import NodeGuard
from weir.server.observability.loop_time import Stages
from weir.server.observability.metrics import Metrics
from weir.server.rescue import RescueWatch
from weir.server.status import Notifier, Reminder

log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
_LOOK_SECONDS = 1.0
#: How old a text may be, in seconds: figures are asked for every 5 s or more.
KEPT_SECONDS = 1.0


@contextlib.asynccontextmanager
async def observed(
    driver: Driver,
    shard: Shard,
    config: Config,
    stopping: asyncio.Event,
    away: Callable[[], Sequence[int]] = tuple,
) -> AsyncIterator[Notifier]:
    """Serve figures and health during the block, if that is configured; yields the notifier.

    `away` returns the node's shards that do not serve: while there are any, none is ready.
    Raises `BadAddress` if that cannot be listened on.
    """
    notifier = Notifier(os.environ)
    with (
        contextlib.closing(notifier),
        LeaderChanges(shard),
        OperatorWarnings(shard),
        ExposureWatch(shard, config) as exposure,
        RescueWatch(shard, Path(config.node.data)),
    ):
        if not config.metrics.listen:
            yield notifier
            return
        host, port = split_address(config.metrics.listen)
        port += shard.identity.shard if port else 0
        metrics = Metrics(shard, driver, config.node.data, driver.loop_lag, driver.tls, exposure)
        pages = _pages(
            metrics, shard, stopping, away,
            NodeGuard(shard, driver.tls, config.tls, exposure),
        )  # fmt: skip
        async with contextlib.AsyncExitStack() as stack:
            with in_words(host, port, "--metrics"):
                bound = await stack.enter_async_context(pages.listening(host, port))
            shown = f"[{host}]" if ":" in host else host
            url = f"http://{shown}:{bound}/metrics"
            log.info("metrics at %s", url, extra={"fields": {"url": url}})
            yield notifier


class LeaderChanges:
    """Tells of leaders while it is entered; a node that was founded alone has nothing to tell."""

    def __init__(self, shard: Shard) -> None:
        """Begin with nothing told."""
        self._shard = shard
        self._begun = self._lost = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> LeaderChanges:
        if self._shard.identity.members:
            self._tell()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_EVERY_SECONDS, self._tell)
        counts = self._shard.counts
        begun, lost = counts.leads_begun - self._begun, counts.leads_lost - self._lost
        if begun or lost:
            self._begun, self._lost = counts.leads_begun, counts.leads_lost
            led = self._shard.partitions_led
            fields = {"led": led, "begun": begun, "lost": lost}
            words = "leads %d partitions: %d more, %d fewer"
            log.info(words, led, begun, lost, extra={"fields": fields})


class OperatorWarnings:
    """Warns of what must be mended: looks once a second while it is entered."""

    def __init__(self, shard: Shard) -> None:
        """Begin with nothing told."""
        self._shard = shard
        self._reminder = Reminder()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> OperatorWarnings:
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        astray_ms = self._shard.clock_astray_ms
        if self._reminder.is_due("clock", bool(astray_ms)):
            log.warning(
                "the clock of this node is %.1f s %s those of the others: correct it "
                "(for example by NTP). Until then this node leads nothing and uses the median",
                abs(astray_ms) / 1_000,
                "ahead of" if astray_ms > 0 else "behind",
                extra={"fields": {"clock_astray_ms": astray_ms}},
            )
        needed = self._shard.needed_bytes
        if self._reminder.is_due("disk", bool(needed)):
            log.warning(
                "the disk is full: publishes are refused, acks and reads continue. Free %s or "
                "more on it, or add a disk",
                in_mib(needed),
                extra={"fields": {"needed_bytes": needed}},
            )
        closed_by = self._shard.unaudited
        if self._reminder.is_due("audit", bool(closed_by)):
            log.warning(
                "the topic _weir/audit takes no messages, and administration waits for it: %s",
                closed_by,
                extra={"fields": {"reason": closed_by}},
            )
        short = self._shard.short
        if self._reminder.is_due("disks of others", short is not None) and short is not None:
            log.warning(
                "%s: publishes that need them are refused, acks and reads continue. Free %s or "
                "more there, or add disks",
                short,
                in_mib(short.needed_bytes),
                extra={"fields": {"needed_bytes": short.needed_bytes, "nodes": short.nodes}},
            )


def _pages(
    metrics: Metrics, shard: Shard, stopping: asyncio.Event, away: Callable[[], Sequence[int]],
    guard: Guard | None = None,
) -> Pages:  # fmt: skip
    recent, stages = Recent(metrics.text), Stages()

    async def figures() -> Answer:
        return 200, CONTENT_TYPE, await recent.text()

    async def sampled() -> Answer:
        if (found := await stages.sample()) is None:
            return 503, PLAIN, "somebody else samples the stages: try again in 2 s\n"
        rows = [f"works {found.works:.4f}\n", f"waits {found.waits:.4f}\n"]
        rows += [f"{stage} {seen}\n" for stage, seen in found.stages.items()]
        return 200, PLAIN, "".join(rows)

    async def healthy() -> Answer:
        return 200, PLAIN, "alive\n"

    async def ready() -> Answer:
        if stopping.is_set():
            return 503, PLAIN, "stopping\n"
        if not shard.ready:
            return 503, PLAIN, "starting\n"
        if shards := away():
            # The shared port leads to any shard, and any of them asks the others.
            return 503, PLAIN, f"shards that do not serve: {', '.join(map(str, shards))}\n"
        try:
            shard.check_news()
        except Unavailable as error:  # it lets nobody in, and begins nothing
            return 503, PLAIN, f"not ready: {error}\n"
        if needed := shard.needed_bytes:
            more = in_mib(needed)
            return 503, PLAIN, f"not ready for writes: the disk is full, free {more} or more\n"
        if (short := shard.short) is not None:
            more = in_mib(short.needed_bytes)
            return 503, PLAIN, f"not ready for writes: {short}, free {more} or more there\n"
        return 200, PLAIN, "ready\n"

    cheap = ("/healthz", "/readyz")
    pages = {"/metrics": figures, "/healthz": healthy, "/readyz": ready, "/stages": sampled}
    return Pages(pages, cheap, guard)


class Recent:
    """The newest text of a page that costs something to make.

    It is made once at a time, and serves all who ask soon: many who ask cost as much as one.
    """

    def __init__(self, make: Callable[[], Awaitable[str]]) -> None:
        """Have nothing yet; `make` returns the page as of now."""
        self._make = make
        self._making = asyncio.Lock()
        self._text = ""
        self._until = 0.0

    async def text(self) -> str:
        """Return the page, at most `KEPT_SECONDS` old."""
        async with self._making:
            now = asyncio.get_running_loop().time
            if not self._text or now() >= self._until:
                self._text = await self._make()
                self._until = now() + KEPT_SECONDS
            return self._text
