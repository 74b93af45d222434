"""What a shard may still do that has had no news of the metadata for long.

Somebody may have been revoked meanwhile, or the set been closed. After `stale_ms` a shard of a set
that is closed or watches lets nobody in and begins nothing new; after `cutoff_ms` it ends the
sessions that it let in. Partitions go on: their own majorities decide, and sessions that other
shards let in are answered for by those. An open set has no such limits (ADR 0095, 0106). Before its
first news a shard may have an old copy of the metadata, by which a closed set is open: it goes by
what is noted in the node's folder (ADR 0209).

A shard whose node was left behind by a promotion lets nobody in any more, in any set (ADR 0202).
"""

from __future__ import annotations

from typing import Protocol

from weir.broker.metadata.security.access import Access
from weir.errors import Unavailable
from weir.order.clock import Time

#: Part of what a node answers once a promotion has left it behind: `weir doctor` looks for it.
LEFT_BEHIND = "was promoted without this node"


class CurrentAccess(Protocol):
    """Where what is known of access lies: a snapshot puts another one there."""

    access: Access


class News(Protocol):
    """How this shard keeps up with the registry."""

    @property
    def heard_ms(self) -> int:
        """The monotonic time of which all changes are known here; below 0 for none yet."""


class Cutoff:
    """How long ago this shard knew that it knew all changes of access."""

    __slots__ = (
        "_catalog", "_cutoff_ms", "_news", "_outlived", "_stale_ms", "_started_ms", "_time",
        "_was_closed",
    )  # fmt: skip

    def __init__(
        self, catalog: CurrentAccess, news: News, time: Time, stale_ms: int, cutoff_ms: int,
        was_closed: bool = False,
    ) -> None:  # fmt: skip
        """Go by the age of `news`: the shard starts now, and has none. The set `was_closed` when
        this node heard last, before it started.
        """
        self._was_closed = was_closed
        self._catalog = catalog
        self._news = news
        self._time = time
        self._stale_ms = stale_ms
        self._cutoff_ms = cutoff_ms
        self._started_ms = time.monotonic_ms()
        #: In which lineage the groups go on without this node; 0: in none.
        self._outlived = 0

    def outlive(self, lineage: int) -> None:
        """Let nobody in any more, and end the sessions: the groups go on elsewhere."""
        self._outlived = lineage

    @property
    def has_ended(self) -> bool:
        """Whether a promotion has left this node behind: it lets nobody in any more."""
        return bool(self._outlived)

    @property
    def _is_open(self) -> bool:
        """Whether the set is open, as far as this node knows."""
        if self._catalog.access.mode != "open":
            return False
        return not self._was_closed or self._news.heard_ms >= 0

    @property
    def is_stale(self) -> bool:
        """Whether nobody may be let in, and nothing may begin, until there is news."""
        if self._outlived:
            return True
        if self._is_open:
            return False
        heard_ms = self._news.heard_ms
        return heard_ms < 0 or self._time.monotonic_ms() - heard_ms >= self._stale_ms

    @property
    def is_over(self) -> bool:
        """Whether sessions that were let in must end, for there was no news for so long."""
        if self._outlived:
            return True
        if self._is_open:
            return False
        since_ms = max(self._news.heard_ms, self._started_ms)
        return self._time.monotonic_ms() - since_ms >= self._cutoff_ms

    @property
    def news_age_ms(self) -> int:
        """The age of the news in milliseconds; since the start if there was none yet."""
        return self._time.monotonic_ms() - max(self._news.heard_ms, self._started_ms)

    def check(self) -> None:
        """Raise `Unavailable` if nothing may begin here."""
        if (error := self.why_stale()) is not None:
            raise error

    def why_stale(self) -> Unavailable | None:
        """Return why nothing may begin here; None if it may."""
        if self._outlived:
            return self.why_ended()
        return no_news(self._stale_ms) if self.is_stale else None

    def why_ended(self) -> Unavailable:
        """Return why sessions end."""
        if self._outlived:
            return Unavailable(
                f"another core set {LEFT_BEHIND} (lineage {self._outlived}), "
                "which serves nothing any more: connect to a node of that set"
            )
        return no_news(self._cutoff_ms)


def no_news(silent_ms: int) -> Unavailable:
    """Return why nothing begins here: this shard was without news for at least so long."""
    return Unavailable(
        f"this node has had no news of the metadata for {silent_ms // 1_000} s, so it cannot know "
        "who was revoked: connect to another node, or see `weir node status`"
    )
