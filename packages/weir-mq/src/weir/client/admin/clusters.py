"""How far clusters are, as their partitions tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weir.model.clusters import Mode
from weir.protocol.client import admin as a


@dataclass(frozen=True, slots=True)
class Share:
    """How far a cluster is in one partition, which holds offsets [start, end).

    All below `cursor` is done; `lag` messages are not, of which `granted` are with consumers, some
    for the `attempts`-th time; the oldest was published `oldest_seconds` ago. What an aborted
    scattering left is no message. `skipped` went past retention before they were done. Nobody gets
    the `held_back` ones, which failed, for a while, nor the `delayed` ones, which are not due.
    `mode` is "" until its first grant.
    """

    partition: int
    start: int
    end: int
    cursor: int
    lag: int
    granted: int = 0
    attempts: int = 0
    oldest_seconds: float | None = None
    skipped: int = 0
    consumers: int = 0
    paused: bool = False
    mode: str = ""
    held_back: int = 0
    delayed: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A consumer cluster of a topic, and its share of each partition, in their order.

    One that reads in "total" order has one cursor over all partitions, and one turn.
    """

    name: str
    shares: tuple[Share, ...]
    order: str = "partition"

    @property
    def lag(self) -> int:
        """How many messages are not done."""
        return sum(share.lag for share in self.shares)

    @property
    def granted(self) -> int:
        """How many messages are with consumers."""
        return sum(share.granted for share in self.shares)

    @property
    def mode(self) -> str:
        """Its promise of order: "shared", "keyed" or "ordered"; "" until its first grant."""
        return next((share.mode for share in self.shares if share.mode), "")

    @property
    def held_back(self) -> int:
        """How many messages failed, and wait for their next attempt."""
        return sum(share.held_back for share in self.shares)

    @property
    def delayed(self) -> int:
        """How many messages are not due, of those that it has come by."""
        return sum(share.delayed for share in self.shares)

    @property
    def skipped(self) -> int:
        """How many messages went past retention before they were done."""
        return sum(share.skipped for share in self.shares)

    @property
    def consumers(self) -> int:
        """How many consumers are at work, as far as one partition sees them."""
        return max(share.consumers for share in self.shares)

    @property
    def attempts(self) -> int:
        """The most grants that a message took which is with a consumer now."""
        return max(share.attempts for share in self.shares)

    @property
    def oldest_seconds(self) -> float | None:
        """How long ago the oldest message that is not done was published; None if all are done."""
        ages = [s.oldest_seconds for s in self.shares if s.oldest_seconds is not None]
        return max(ages, default=None)

    @property
    def paused(self) -> bool:
        """Whether it is granted nothing, at least in part."""
        return any(share.paused for share in self.shares)

    @property
    def paused_in_part(self) -> bool:
        """Whether some partitions grant it messages, and some do not."""
        return self.paused and not all(share.paused for share in self.shares)


def cluster_of(name: str, replies: Sequence[a.ClusterList]) -> Cluster:
    """Return one cluster out of the replies of all partitions, in their order."""
    info = next((info for info in replies[0].clusters if info.name == name), None)
    if info is None or not info.offsets:
        return Cluster(name, tuple(_share(p, reply, name) for p, reply in enumerate(replies)))
    shares = []
    for partition, reply in enumerate(replies):
        offset = info.offsets[partition] if partition < len(info.offsets) else 0
        cursor = max(offset, reply.start)
        shares.append(
            Share(
                partition, reply.start, reply.end, cursor, _messages_from(cursor, reply),
                attempts=info.attempts, consumers=info.consumers, paused=info.paused,
                mode=Mode(info.mode).name.lower(),
            )
        )  # fmt: skip
    return Cluster(name, tuple(shares), "total")


def _share(partition: int, reply: a.ClusterList, name: str) -> Share:
    """Return a cluster's share of a partition; one that it has not begun in is all before it."""
    info = next((info for info in reply.clusters if info.name == name), None)
    start, end = reply.start, reply.end
    if info is None:
        return Share(partition, start, end, start, _messages_from(start, reply))
    return Share(
        partition,
        start,
        end,
        info.cursor,
        info.lag,
        info.granted,
        info.attempts,
        None if info.oldest_ms < 0 else info.oldest_ms / 1_000,
        info.skipped,
        info.consumers,
        info.paused,
        "" if info.mode < 0 else Mode(info.mode).name.lower(),
        info.held_back,
        info.delayed,
    )


def _messages_from(offset: int, reply: a.ClusterList) -> int:
    """Return how many messages a partition holds from `offset` on: void offsets hold none."""
    voids = sum(max(behind - max(first, offset), 0) for first, behind in reply.voids)
    return max(reply.end - offset, 0) - voids
