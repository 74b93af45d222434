"""Guards the requests of a relay: logins, and the topics that each user may read.

A relay that pulls as a user serves only users, and each topic only to users who may read it in the
core. Requests that are not listed here are refused: none is answered without a check of rights.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from weir.errors import UnknownTopic
from weir.model.ids import topic_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login
from weir.protocol.client.tokens import RenewToken
from weir.relay.messages import decode_question
from weir.relay_node.consumers.clusters import ClusterCounts, ClusterRequest, ClusterRequests
from weir.relay_node.host import RelayHost
from weir.relay_node.requests import AnswerRoom, RelayRequests
from weir.relay_node.sessions import Channel, ReaderSession, refused_dialect

#: What is about one partition, by its address; and about one topic, by its number.
_BY_ADDRESS = (
    m.Fetch, m.FetchChunks, m.Positions, m.AskRelay, a.DescribePartition, a.AskLeader,
    a.TraceMessage,
)  # fmt: skip
_BY_NUMBER = (m.AskBarriers, m.AwaitMark)
_LISTS = (m.ListTopics, m.ListOffsets)


class RelayGate:
    """Lets requests through to a running relay."""

    def __init__(self, host: RelayHost, requests: RelayRequests) -> None:
        """Answer by `requests` of a host what may be answered."""
        self._host = host
        self._requests = requests
        self._clusters = ClusterRequests(host, requests)

    @property
    def cluster_counts(self) -> ClusterCounts:
        """What was done for consumers of clusters."""
        return self._clusters.counts

    def session(self, channel: Channel) -> ReaderSession:
        """Return the session of a client that came by a connection."""
        host = self._host
        return ReaderSession(host.config, host.founded.system, host, channel)

    async def answer(
        self, request: m.Request, room: AnswerRoom, session: ReaderSession
    ) -> m.Reply:  # fmt: skip
        """Return the answer to a request. Raises what `RelayRequests.answer` raises, and what the
        core refuses the user with.
        """
        try:
            return await self._answer(request, room, session)
        except UnknownTopic:
            await self._host.look_anew()
        return await self._answer(request, room, session)

    async def _answer(
        self, request: m.Request, room: AnswerRoom, session: ReaderSession
    ) -> m.Reply:  # fmt: skip
        if isinstance(request, Login):
            return await session.log_in(request)
        if isinstance(request, RenewToken):
            return await session.renew(request)
        if isinstance(request, ClusterRequest):  # the core looks for its rights
            session.check_greeted()
            return await self._clusters.answer(request, room, session)
        if isinstance(request, m.Ping) and request.begun:
            session.tell_begun(request)
        if not self._host.config.is_private or isinstance(request, m.Ping):
            # Chunks that are not here are read by the session that was granted their message.
            asker = session if isinstance(request, m.FetchChunks) else None
            return await self._requests.answer(request, room, asker)
        session.check_greeted()
        if isinstance(request, m.ListTopics | m.ListOffsets):
            return await self._list(request, room, session)
        if isinstance(request, m.DescribeRelay):
            await session.check_operator()
        elif not isinstance(request, m.Hello):
            await self._check(request, session)
        # The core answers to the user what it is to say: the relay's own may pull, and not read.
        return await self._requests.answer(request, room, session)

    async def _check(self, request: m.Request, session: ReaderSession) -> None:
        for topic, unknown in self._topics_of(request):
            try:
                if isinstance(request, m.AskRelay):
                    group = request.address.group
                    await session.check_relay(decode_question(request.message, group))
                else:
                    await session.check(topic)
            except UnknownTopic:
                raise unknown from None  # as of a topic that is not here

    def _topics_of(self, request: m.Request) -> Sequence[tuple[int, UnknownTopic]]:
        """Return the numbers of the topics that a request is about, and how each is said not to be
        there. Raises that for one that is not relayed, and `BadRequest` for any other request.
        """
        if isinstance(request, _BY_ADDRESS):
            number = topic_of(request.address.group)
            return [(number, UnknownTopic("no such partition is relayed here", number))]
        if isinstance(request, _BY_NUMBER):
            number = request.topic
            return [(number, UnknownTopic("no such topic is relayed here", number))]
        if isinstance(request, m.DescribeTopic):
            return [self._named(request.name)]
        if isinstance(request, m.ResolveCut):
            return [self._named(name) for name in request.topics]
        raise refused_dialect(request)

    def _named(self, name: str) -> tuple[int, UnknownTopic]:
        unknown = self._requests.unknown(name)
        found = self._requests.find(name)  # raises `BadName`
        if found is None:
            raise unknown
        return found.info.id, unknown

    async def _list(
        self, request: m.ListTopics | m.ListOffsets, room: AnswerRoom, session: ReaderSession
    ) -> m.Reply:
        """Return the topics of a page that the core tells the user of; not an empty one while there
        are more, for clients take that as the end.
        """
        while True:
            page = await self._requests.answer(request, room)
            assert isinstance(page, m.TopicList | m.OffsetList)
            if not page.topics:
                return page
            last = page.topics[-1].full_name
            names = await self._names(request, last, session)
            kept = [topic for topic in page.topics if topic.full_name in names]
            if kept or not page.more:
                break
            request = msgspec.structs.replace(request, after=last)
        if isinstance(page, m.TopicList):
            return m.TopicList(kept, page.more)
        numbers = {topic.id for topic in kept}
        return m.OffsetList(
            kept, [row for row in page.offsets if topic_of(row[0]) in numbers], page.more
        )

    async def _names(
        self, request: m.ListTopics | m.ListOffsets, last: str, session: ReaderSession
    ) -> set[str]:
        """Return the names that the core tells the user of, from those behind `request.after` up to
        `last`.
        """
        names, after = set[str](), request.after
        while True:
            found, reached = await session.listed(request.namespace, after)
            names |= found
            if not reached or reached >= last:
                return names
            after = reached
