"""A consumer's acks on their way: gathered by partition, sent together, and told of when late.

What it gives back goes the same way: `weir.client.consumer.nacks`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weir.client.connection.metadata import Places
from weir.client.core.grants import Acks, Run, within
from weir.errors import BadRequest, StaleGrant, UnknownCluster
from weir.model.clusters import AckOutcome
from weir.model.ids import Address
from weir.protocol.client import messages as m

log = logging.getLogger(__name__)

Range = tuple[int, int, int]

#: What others do, or did, with messages that were settled too late.
_FATES = {
    AckOutcome.DONE_ELSEWHERE: "have done them",
    AckOutcome.EXPIRED: "get them again",
    AckOutcome.PARTLY: "have done them or get them again",
}


@dataclass(frozen=True, slots=True)
class Stale:
    """Messages [offset, next_offset) that were settled after their lease had ended, and whether
    they are done: `DONE_ELSEWHERE`, `EXPIRED`, or `PARTLY` where that was not told one by one.
    """

    topic: str
    partition: int
    offset: int
    next_offset: int
    outcome: AckOutcome = AckOutcome.EXPIRED


@dataclass(frozen=True, slots=True)
class AckResult:
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


class Acking:
    """Ranges (fence, first, next) of each partition that are done, until the broker knows it."""

    def __init__(self, topic: str, cluster: str, on_stale: Callable[[Stale], None] | None) -> None:
        """Begin with nothing done; `begin` says where the partitions are."""
        #: How many acks came too late.
        self.stale = 0
        #: By partition, the offset below which all is done, as of the last ack.
        self.cursors: dict[int, int] = {}
        self._topic = topic
        self._cluster = cluster
        self._on_stale = on_stale
        self._places: Places | None = None
        self._acks: dict[int, Acks] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        #: By partition and fence, what came too late of the acks that somebody waits for.
        self._awaited: dict[tuple[int, int], list[list[tuple[int, int, AckOutcome]]]] = {}

    def begin(self, places: Places) -> None:
        """Send to these places from now on; what is not sent yet is kept, if it is of this topic
        and not of one that had its name.
        """
        if self._places is not None and self._places.id != places.id:
            self._acks.clear()
            self.cursors.clear()
        self._places = places

    def done(self, partition: int, fence: int, first: int, behind: int) -> None:
        """Note messages [first, behind) of a grant as done."""
        self._acks.setdefault(partition, Acks()).done(fence, first, behind)

    async def ack(self, partition: int, fence: int, runs: Sequence[Run]) -> AckResult:
        """Say that they are done; return when a majority knows."""
        key = (partition, fence)
        late: list[tuple[int, int, AckOutcome]] = []
        waiting = self._awaited.setdefault(key, [])
        waiting.append(late)
        try:
            for first, behind in runs:
                self.done(partition, fence, first, behind)
            await self.flush(partition)
        finally:
            waiting[:] = [one for one in waiting if one is not late]
            if not waiting:
                self._awaited.pop(key, None)
        return result_of(
            runs,
            [
                (*part, outcome)
                for first, behind, outcome in late
                for run in runs
                for part in within([(first, behind)], *run)
            ],
        )

    def waiting(self) -> list[int]:
        """Return the partitions with something to send."""
        return [partition for partition, acks in self._acks.items() if acks]

    async def flush(self, partition: int) -> None:
        """Ack all that waits; one request of a partition at a time, so that acks gather."""
        acks = self._acks.setdefault(partition, Acks())
        async with self._locks.setdefault(partition, asyncio.Lock()):
            while ranges := acks.take():
                try:
                    await self._ack(partition, ranges)
                except UnknownCluster:
                    # Of what was deleted, or lost, the broker knows nothing: to say it again and
                    # again would help nobody, and what is there comes again by itself.
                    raise
                except (StaleGrant, BadRequest) as error:
                    if len(ranges) > 1:
                        await self._ack_each(partition, acks, ranges)
                    elif isinstance(error, BadRequest):
                        raise
                    else:
                        self.expired(partition, ranges[0])
                except BaseException:
                    acks.put_back(ranges)
                    raise

    async def _ack_each(self, partition: int, acks: Acks, ranges: list[Range]) -> None:
        """Ack one by one: some are stale or lost, and the others must not suffer for it. Raises
        what was said of a lost one when all are told.
        """
        lost: BadRequest | None = None
        for at, one in enumerate(ranges):
            try:
                await self._ack(partition, [one])
            except StaleGrant:
                self.expired(partition, one)
            except BadRequest as error:
                lost = error
            except UnknownCluster:
                raise
            except BaseException:
                acks.put_back(ranges[at:])
                raise
        if lost is not None:
            raise lost

    async def _ack(self, partition: int, ranges: list[Range]) -> None:
        def request(address: Address) -> m.Request:
            return m.Ack(address, self._cluster, ranges, exact=True)

        assert self._places is not None  # what is done was pulled from there
        acked = await self._places.ask(partition, request, m.Acked)
        self.cursors[partition] = max(acked.done, self.cursors.get(partition, 0))
        for fence, first, behind, outcome in acked.late:
            self.expired(partition, (fence, first, behind), AckOutcome(outcome))

    def expired(self, partition: int, one: Range, outcome: AckOutcome = AckOutcome.EXPIRED) -> None:
        """Tell of messages (fence, first, next) that were settled too late."""
        fence, first, behind = one
        self.stale += 1
        for late in self._awaited.get((partition, fence), ()):
            late.append((first, behind, outcome))
        if self._on_stale is not None:
            try:
                self._on_stale(Stale(self._topic, partition, first, behind, outcome))
            except Exception:
                # Its error must not cost the reports, and acks, of the ranges behind this one.
                log.exception("on_stale= of a consumer of %s raised", self._topic)
            return
        log.warning(
            "%s/%d: messages %d to %d were settled after their lease had ended; others of cluster "
            "%s %s: give a longer lease=, or a smaller max_messages=",
            self._topic, partition, first, behind - 1, self._cluster, _FATES[outcome],
        )  # fmt: skip
