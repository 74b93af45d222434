"""What a consumer is to take: its options, its topics, and where its cluster begins in them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from weir.client.arguments import ConsumerMode, check_choice, check_tags, duration, whole_number
from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.delivery import Stale
from weir.client.core.retries import Backoff, policy_of
from weir.client.reader.options import Begin, Start, cluster_begin_of
from weir.client.reader.positions import exact
from weir.errors import BadRequest, OffsetOutOfRange, UnknownOpcode
from weir.model.ids import Address
from weir.model.limits import (
    FETCH_BYTES_MAX,
    GRANT_MS_DEFAULT,
    GRANT_MS_MAX,
    MAX_AHEAD_MS,
    MIB,
    VALUE_BYTES_LOADED_MAX,
)
from weir.model.topic import Mode, check_name, full_name_of, split_name
from weir.order.clock import milliseconds_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

#: What a consumer takes: a topic, a prefix that ends in "*", or several of them.
Topics = str | Sequence[str]

#: The end of a prefix.
_ANY = "*"
#: The partition that says whether a cluster has begun.
_HOME = 0
#: Messages may go by retention between the answer where they begin and the beginning there.
_TRIES = 5
#: Far fewer requests than a broker lets one connection have open.
_ASKED_TOGETHER = 256
_MODES = {mode.name.lower(): mode for mode in Mode}


def lease_seconds(lease: str | float) -> float:
    """Return a lease in seconds. Raises `BadRequest` for one that is no lease."""
    found = duration("lease", lease)
    if not 1 <= found * 1_000 <= GRANT_MS_MAX:
        raise BadRequest(f"lease={lease!r}: give 1 ms to {GRANT_MS_MAX // 1_000:,} s")
    return found


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer takes messages, and what becomes of those that fail: see `Client.consumer`."""

    cluster: str
    max_messages: int = 1_000
    max_bytes: int = MIB
    lease: str | float = GRANT_MS_DEFAULT / 1_000
    ack_within: str | float = "50ms"
    on_stale: Callable[[Stale], None] | None = None
    #: A larger value, which lies in chunks, is not loaded: its message streams it.
    value_bytes_max: int = VALUE_BYTES_LOADED_MAX
    mode: ConsumerMode = "shared"
    #: How long the lease of what is in hand is extended outside a block; None: without end.
    max_work: str | float | None = "5m"
    #: Messages without an outcome, at most, before a task that has them all may ask for more.
    max_in_hand: int = 10_000
    #: How long what failed waits; and where it goes that was refused, or failed too often.
    retry: Backoff | None = None
    dead_letter: str | None = None
    #: The cluster takes only messages with one of these tags, "" for those without; None: all.
    tags: str | Sequence[str] | None = None

    @property
    def asked(self) -> tuple[str, ...]:
        """The tags as the wire has them: sorted, none for all messages."""
        given = (self.tags,) if isinstance(self.tags, str) else self.tags or ()
        return tuple(sorted(set(given)))

    @property
    def number(self) -> Mode:
        """The mode as the wire has it."""
        return _MODES[self.mode]

    @property
    def max_work_seconds(self) -> float:
        """For how many seconds the lease of what is in hand is extended outside a block."""
        return math.inf if self.max_work is None else duration("max_work", self.max_work)

    def check(self) -> None:
        """Raise `BadRequest` or `BadName` for options that cannot work."""
        if not isinstance(self.cluster, str):
            raise TypeError(f"cluster={self.cluster!r}: name the cluster that shares the messages")
        check_name(self.cluster, "cluster")
        whole_number("max_messages", self.max_messages)
        whole_number("max_bytes", self.max_bytes, 1, FETCH_BYTES_MAX)
        whole_number("value_bytes_max", self.value_bytes_max, 0)
        lease_seconds(self.lease)
        duration("ack_within", self.ack_within)
        check_choice("mode", self.mode, ConsumerMode)
        if self.max_work is not None:
            duration("max_work", self.max_work)
        whole_number("max_in_hand", self.max_in_hand)
        if self.dead_letter is not None:
            split_name(self.dead_letter)
        policy_of(self.retry, self.dead_letter)
        check_tags(self.tags)


class Subscription:
    """The topics that a consumer takes: those that are named, and those that a prefix matches."""

    def __init__(self, topic: Topics, start: Start) -> None:
        """Take what a user gave. Raises `BadName`, `BadRequest` or `TypeError`."""
        given = [topic] if isinstance(topic, str) else topic
        if not isinstance(given, Sequence) or not all(isinstance(one, str) for one in given):
            raise TypeError(
                f'topic={topic!r}: give a topic, a prefix of topics as in "orders.*", or a list of '
                "them"
            )
        if not given:
            raise BadRequest("topic=[]: name at least one topic")
        #: What was given.
        self.given = tuple(given)
        #: By full name, what was given.
        self._names = {
            full_name_of(*split_name(one)): one for one in given if not one.endswith(_ANY)
        }
        self._prefixes = [_prefix_of(one) for one in given if one.endswith(_ANY)]
        self._start = start
        self._begin = cluster_begin_of(start)
        if self._begin.offsets is not None and (len(self._names) != 1 or self._prefixes):
            raise BadRequest(
                f"start={start!r}: offsets are those of one topic, and topic={topic!r} may be "
                "several: give a time or a word, or a consumer to each topic"
            )

    def takes(self, topic: str) -> bool:
        """Whether a topic is one of them."""
        namespace, name = split_name(topic)
        return full_name_of(namespace, name) in self._names or any(
            namespace == one and name.startswith(prefix) for one, prefix in self._prefixes
        )

    def meets(self, other: Subscription) -> bool:
        """Whether there may be a topic that both take."""
        return (
            any(self.takes(name) for name in other.named)
            or any(other.takes(name) for name in self.named)
            or any(
                namespace == others and (mine.startswith(theirs) or theirs.startswith(mine))
                for namespace, mine in self._prefixes
                for others, theirs in other._prefixes
            )
        )

    @property
    def text(self) -> str:
        """What was given, to be shown."""
        return ", ".join(self.given)

    @property
    def has_prefixes(self) -> bool:
        """Whether topics may join it."""
        return bool(self._prefixes)

    @property
    def named(self) -> Collection[str]:
        """The full names of the topics that were given by name."""
        return self._names.keys()

    @property
    def namespaces(self) -> set[str]:
        """The namespaces in which topics may join it."""
        return {namespace for namespace, _ in self._prefixes}

    def is_named(self, name: str) -> bool:
        """Whether a topic was asked for by its name: without it, there is nothing to consume."""
        return name in self._names

    @property
    def only(self) -> str | None:
        """The full name of the one topic that it is about, if it is about one."""
        return next(iter(self._names)) if len(self._names) == 1 and not self._prefixes else None

    # Topics.

    async def find(self, network: NetworkClient) -> dict[str, Places]:
        """Return where the topics are served, by full name. Raises `UnknownTopic`."""
        found = {name: await Places.find(network, given) for name, given in self._names.items()}
        return await self.matching(network) | found

    async def matching(self, network: NetworkClient) -> dict[str, Places]:
        """Return where the topics are served that a prefix matches, by full name."""
        found: dict[str, Places] = {}
        for namespace, prefix in self._prefixes:
            for info in await _listed(network, namespace, prefix):
                found[info.full_name] = Places(network, info.full_name, info)
        return found

    # Where to start.

    async def begin(
        self, network: NetworkClient, places: Places, cluster: str, takes_turns: bool
    ) -> Sequence[int]:
        """Let a cluster begin at `start` in a topic, unless it has begun there.

        One that `takes_turns` begins with its first turn, at the offsets that are returned. Raises
        `OffsetOutOfRange`, and `BadRequest` for a time that has not come.
        """
        if self._begin == Begin():
            return ()
        await self._settle(network)
        await places.find_these(self._begin.offsets or ())
        if takes_turns:
            offsets = await self._offsets(places)
            return [offsets[partition] for partition in sorted(offsets)]
        home = await places.ask(
            _HOME, lambda address: a.ListClusters(address, cluster), a.ClusterList
        )
        if not home.clusters:
            await self._begin_all(places, cluster)
        return ()

    def begun(self) -> None:
        """All that is in topics which are found from now on is new: a cluster begins before it."""
        self._begin = Begin()

    async def _settle(self, network: NetworkClient) -> None:
        """Let times be what they are now, for topics that are begun later, too."""
        begin = self._begin
        if begin.needs_clock:
            self._begin = begin.settled(await network.wall_ms())
        elif begin.stamp and milliseconds_of(begin.stamp) > await network.wall_ms() + MAX_AHEAD_MS:
            raise BadRequest(
                f"start={self._start!r} is a time ahead of the broker's clock, and nothing is "
                'stamped then: give a time that has passed, or "latest" to begin behind all there '
                "is"
            )

    async def _begin_all(self, places: Places, cluster: str) -> None:
        """Let a cluster begin in each partition where it has no position; last in the one that
        says that it has begun, so that a consumer that takes over does the rest.
        """
        for again in range(_TRIES - 1, -1, -1):
            offsets = await self._offsets(places)
            others = [partition for partition in offsets if partition != _HOME]
            try:
                for first in range(0, len(others), _ASKED_TOGETHER):
                    await _begin_in(places, cluster, offsets, others[first:][:_ASKED_TOGETHER])
                await _begin_in(places, cluster, offsets, [_HOME])
            except OffsetOutOfRange:
                if not again:
                    raise
            except UnknownOpcode:
                raise BadRequest(
                    f"start={self._start!r}: the broker is of a release that lets clusters begin "
                    "at the earliest message only: seek_cluster(create=True) before you consume"
                ) from None
            else:
                return

    async def _offsets(self, places: Places) -> dict[int, int]:
        begin = self._begin
        found = await places.positions(begin.stamp)
        if begin.stamp:
            return await exact(places, begin.stamp, found)
        for partition, offset in (begin.offsets or {}).items():
            start, end = found[partition].start, found[partition].end
            if not start <= offset <= end:
                raise OffsetOutOfRange(
                    f"start={self._start!r}: partition {partition} of {places.topic} holds "
                    f"{start} to {end}",
                    min(max(offset, start), end),
                )
        return {partition: begin.offset(partition, reply) for partition, reply in found.items()}


async def _begin_in(
    places: Places, cluster: str, offsets: Mapping[int, int], partitions: Iterable[int]
) -> None:
    async def begin(partition: int) -> None:
        def request(address: Address) -> m.Request:
            return a.BeginCluster(address, cluster, offsets[partition])

        await places.ask(partition, request, a.ClusterChanged)

    await asyncio.gather(*map(begin, partitions))


def _prefix_of(text: str) -> tuple[str, str]:
    """Return the namespace of a prefix, and what the names in it begin with. Raises `BadName`."""
    namespace, name = split_name(f"{text.removesuffix(_ANY)}x")
    check_name(name, "topic")
    return namespace, name[:-1]


async def _listed(network: NetworkClient, namespace: str, prefix: str) -> list[m.TopicInfo]:
    """Return the topics of a namespace whose names begin so."""
    found: list[m.TopicInfo] = []
    # Names are told in order, behind this one.
    after, more = (f"{namespace}/{prefix[:-1]}" if len(prefix) > 1 else ""), True
    while more:
        page = await network.request(m.ListTopics(namespace, after), m.TopicList)
        names = [info.name for info in page.topics]
        found += [info for info in page.topics if info.name.startswith(prefix)]
        more = page.more and bool(names) and (names[-1].startswith(prefix) or names[-1] < prefix)
        after = f"{namespace}/{names[-1]}" if names else after
    return found
