"""Portions of partitions: what one fetch brings, checked, and what is said beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weir.client.connection.link import Link
from weir.client.connection.metadata import Places
from weir.client.core.delivered_batches import Delivered, deliver
from weir.client.core.grants import Run, without
from weir.client.reader.bounds import Span
from weir.client.reader.large_values import Chunks
from weir.client.reader.replicas import Replicas
from weir.errors import OffsetOutOfRange
from weir.model.ids import Address
from weir.protocol.client import messages as m

LONG_POLL = 5.0
#: After an answer with nothing in it, so that a broker that does not wait is not stormed.
EMPTY_PAUSE = 0.01


def _nothing() -> None:
    """Nobody has to be told."""


@dataclass(frozen=True, slots=True)
class Handful:
    """Batches in the order in which they are handed out, and by partition the position behind them.

    `done` is to be called once nothing of it is at hand any more.
    """

    delivered: list[Delivered]
    positions: Mapping[int, int]
    done: Callable[[], None] = field(default=_nothing, repr=False)


@dataclass(frozen=True, slots=True)
class Portion:
    """Batches of one partition, and the position behind them.

    `over`: what was asked for ends here. All that is ever stamped at or below `barrier` lies below
    offset `committed`, and so many `partitions` belong to the order then; 0 says nothing.
    """

    partition: int
    delivered: list[Delivered]
    next_offset: int
    over: bool = False
    committed: int = 0
    barrier: int = 0
    partitions: int = 0


class Portions:
    """Fetches portions of one topic, from leaders, or from `replicas` if any are given."""

    def __init__(
        self,
        link: Link,
        places: Places,
        span: Span,
        max_bytes: int,
        replicas: Replicas | None = None,
    ) -> None:
        """Leave out what does not lie in `span` by its stamp; ask for `max_bytes` at a time."""
        self.places = places
        self._link = link
        self._span = span
        self._max_bytes = max_bytes
        self._replicas = replicas

    async def fetch(self, partition: int, position: int, end: int | None) -> Portion:
        """Return what lies at `position`, none of it at or behind `end`; nothing after 5 s without.

        Raises `OffsetOutOfRange`, which says how to go on.
        """

        def request(address: Address, replica: bool = False) -> m.Request:
            wait_ms = int(LONG_POLL * 1_000)
            return m.Fetch(address, position, self._max_bytes, wait_ms, replica)

        delivered: list[Delivered] = []

        def check(fetched: m.Fetched) -> None:
            behind = _behind(fetched, end)
            places = self.places
            delivered[:] = deliver(
                fetched.batches, places[partition].group, places.topic, partition, position, behind,
                Chunks(places),
            )  # fmt: skip

        fetched: m.Fetched | None = None
        if self._replicas is not None:
            fetched = await self._replicas.ask(
                partition, position, lambda address: request(address, True), LONG_POLL, check
            )
            if fetched is not None and _missing(delivered, fetched, position, end):
                fetched = None
        try:
            if fetched is None:
                fetched = await self.places.ask(
                    partition, request, m.Fetched, wait=LONG_POLL, check=check
                )
        except OffsetOutOfRange as error:
            if self._span.found.get(partition) == position < error.detail:
                # Nobody named this offset: retention was faster than the first fetch.
                return Portion(partition, [], error.detail)
            raise self._out_of_range(partition, position, error.detail) from error
        self._span.committed[partition] = fetched.committed
        for part in delivered:
            self._link.saw(part.batch.header.stamp)
        wanted, ceiling = self._span.pick.passes(delivered)
        return Portion(
            partition,
            wanted,
            max(_behind(fetched, end), position) if ceiling is None else ceiling,
            ceiling is not None,
            fetched.committed,
            fetched.barrier,
            fetched.partitions,
        )

    def expect(self, partition: int, offset: int) -> None:
        """All below `offset` is committed: a replica that does not give it soon is left."""
        if self._replicas is not None:
            self._replicas.expect(partition, offset)

    def _out_of_range(self, partition: int, position: int, nearest: int) -> OffsetOutOfRange:
        why = (
            "Messages before it are past retention."
            if nearest > position
            else "The partition ends there: is this the topic, and the system, it was read from?"
        )
        return OffsetOutOfRange(
            f"{self.places.topic}/{partition} has no offset {position}; the nearest one is "
            f"{nearest}. {why} To go on, read with start={{{partition}: {nearest}}} or "
            "start='earliest'",
            nearest,
        )


def _behind(fetched: m.Fetched, end: int | None) -> int:
    return fetched.next_offset if end is None else min(fetched.next_offset, end)


def _missing(
    delivered: list[Delivered], fetched: m.Fetched, position: int, end: int | None
) -> list[Run]:
    """Return what neither came nor is said to be void."""
    wanted = [(position, _behind(fetched, end))]
    return without(without(wanted, [(d.offset, d.next_offset) for d in delivered]), fetched.voids)
