"""Which topics a consumer takes, and where a cluster begins that has no position in them yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.reader.positions import Begin, Start, begin_of, exact
from weir.errors import BadRequest, OffsetOutOfRange, UnknownOpcode
from weir.model.ids import Address
from weir.model.limits import MAX_AHEAD_MS
from weir.model.topic import check_name, full_name_of, split_name
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
        #: What was given, to be shown.
        self.text = ", ".join(given)
        #: By full name, what was given.
        self._names = {
            full_name_of(*split_name(one)): one for one in given if not one.endswith(_ANY)
        }
        self._prefixes = [_prefix_of(one) for one in given if one.endswith(_ANY)]
        self._start = start
        self._begin = begin_of(start)
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

    @property
    def has_prefixes(self) -> bool:
        """Whether topics may join it."""
        return bool(self._prefixes)

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
        says that it has begun, so that one who takes over from here does the rest.
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
