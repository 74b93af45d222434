"""Consumers of clusters at a relay: the core decides, and the messages come from the relay's log.

Each consumer has a session of its own in the core, by a connection that the relay makes for it, and
what it asks goes on by that. So leases, attempts, modes and rights are as for any consumer, and the
core knows when one is gone. A pull goes on as one of offsets only: the grant comes without bytes,
and the relay adds the messages from its own log, or reads them from the core where it lacks them.

While the core is away nobody is granted anything. Acks wait, up to `ACKS_PENDING_MAX`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from msgspec import structs

from weir.codec import Buffer
from weir.errors import (
    NotLeader,
    Overloaded,
    StaleGrant,
    Unavailable,
    UnknownCluster,
    UnknownTopic,
    WeirError,
)
from weir.model.ids import LIMIT_MAX, Address, topic_of
from weir.model.limits import FETCH_BYTES_MAX, KIB, RETRY_AFTER_MS, WAIT_MS_MAX
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.relay.portion import Plan
from weir.relay_node import reads
from weir.relay_node.consumers.memory import RequestMemory
from weir.relay_node.host import RelayHost
from weir.relay_node.requests import AnswerRoom, RelayRequests
from weir.relay_node.sessions import ReaderSession

log = logging.getLogger(__name__)
R = TypeVar("R", bound=m.Reply)

#: What consumers of clusters ask; the core decides all of it.
ClusterRequest = (
    m.OpenCluster | m.Pull | m.Withdraw | m.Ack | m.Nack | m.Extend | m.TakeTurn | m.MoveCursor
    | m.SeekCursor | a.BeginCluster | a.ListClusters
)  # fmt: skip

#: Messages that were granted are waited for so long at most, in seconds, and without news of their
#: partition so long; then they are read from the core.
LOG_WAIT_SECONDS = 0.5
NEWS_WAIT_SECONDS = 0.1
#: While the core is away so many acks wait at a relay, and so many of one client, each for so many
#: seconds; a client asks again then. They are tried again after so many seconds.
ACKS_PENDING_MAX = 4_096
CLIENT_ACKS_MAX = 256
ACK_WAIT_SECONDS = 20.0
AGAIN_SECONDS = 0.25
#: What is read from the core at once where the size of messages is not known.
_READ_LEAST = 16 * KIB
_PORTION = FETCH_BYTES_MAX // 2


class ClusterCounts:
    """What a relay did for consumers of clusters since its start."""

    def __init__(self) -> None:
        """Nothing yet."""
        #: Messages that were handed out, and of these those that were read from the core.
        self.granted = 0
        self.from_core = 0
        #: Since when each ack waits for a core that is away, in seconds of monotonic time.
        self.pending: dict[object, float] = {}
        #: Of which session and partition they are.
        self.acking = Counter[tuple[ReaderSession, int]]()
        self._clients = Counter[ReaderSession]()

    def check_room(self, session: ReaderSession) -> None:
        """Raise `Overloaded` if no ack of a client may wait beside those that do."""
        of_client = self._clients[session]
        if len(self.pending) >= ACKS_PENDING_MAX or of_client >= CLIENT_ACKS_MAX:
            raise Overloaded(
                f"{len(self.pending):,} acks wait for the core at this relay, {of_client:,} of "
                "them from this connection: ack again shortly",
                RETRY_AFTER_MS,
            )

    @contextmanager
    def waiting(self, session: ReaderSession, group: int) -> Iterator[float]:
        """An ack waits meanwhile; until when, at most."""
        me, now, whose = object(), time.monotonic(), (session, group)
        self.pending[me] = now
        self.acking[whose] += 1
        self._clients[session] += 1
        try:
            yield now + ACK_WAIT_SECONDS
        finally:
            del self.pending[me]
            self.acking[whose] -= 1
            if not self.acking[whose]:
                del self.acking[whose]
            self._clients[session] -= 1
            if not self._clients[session]:
                del self._clients[session]

    @property
    def pending_seconds(self) -> float:
        """For how long the oldest ack has waited."""
        now = time.monotonic()
        return now - min(self.pending.values(), default=now)


class ClusterRequests:
    """Answers consumers of clusters, one call each."""

    def __init__(self, host: RelayHost, requests: RelayRequests) -> None:
        """Answer for a running relay, whose log `requests` reads."""
        self._host = host
        self._requests = requests
        self.counts = ClusterCounts()
        self._memory = RequestMemory()

    async def answer(
        self, request: ClusterRequest, room: AnswerRoom, session: ReaderSession
    ) -> m.Reply:  # fmt: skip
        """Return the core's answer to a consumer, to a grant with its messages. Raises what the
        core refuses, and `Unavailable` while it is away.
        """
        self._requests.partition(request.address)
        with self._memory.held(session, request):
            room.step_aside()
            try:
                return await self._answer(request, room, session)
            except UnknownTopic:  # hidden, or gone: as of one that is not here
                number = topic_of(request.address.group)
                raise UnknownTopic("no such partition is relayed here", number) from None

    async def _answer(
        self, request: ClusterRequest, room: AnswerRoom, session: ReaderSession
    ) -> m.Reply:  # fmt: skip
        asked = structs.replace(request, address=Address(0, 0, request.address.group))
        if isinstance(asked, m.Pull):
            granted = await self._pull(asked, room, session)
            return structs.replace(granted, address=request.address)
        if isinstance(asked, m.Ack | m.MoveCursor):
            return await self._ack(asked, session)
        wait = asked.wait_ms if isinstance(asked, m.TakeTurn) else 0
        return await _ask(session, asked, wait)

    # -- grants ------------------------------------------------------------------------------

    async def _pull(self, asked: m.Pull, room: AnswerRoom, session: ReaderSession) -> m.Granted:
        """Return a grant with its messages. While the core is away there is none, and a consumer
        asks again, for what it works on by then is not to be granted to it.
        """
        wait_ms = min(asked.wait_ms, WAIT_MS_MAX)
        # Its session ended with the core: what its acks are to do would be granted again.
        acks_first = (session, asked.address.group) in self.counts.acking
        try:
            if acks_first or not self._host.is_reached:
                raise Unavailable("the core is away, or acks wait for it: pull again shortly")
            pull = structs.replace(asked, wait_ms=wait_ms, offsets_only=True)
            granted = await _ask(session, pull, wait_ms)
        except Unavailable:
            if not wait_ms:
                raise
            await asyncio.sleep(min(AGAIN_SECONDS, wait_ms / 1_000))
            return m.Granted(asked.address, 0, 0, 0, 0)
        assert isinstance(granted, m.Granted)
        if not granted.fence or granted.batches:  # a core of an earlier release sends the messages
            return granted
        return await self._filled(asked, granted, room, session)

    async def _filled(
        self, asked: m.Pull, granted: m.Granted, room: AnswerRoom, session: ReaderSession
    ) -> m.Granted:
        """Return a grant with its messages; what cannot be read is given back, untried. Raises why
        it cannot be, if that is all.
        """
        batches = list[Buffer]()
        at, behind = granted.offset, granted.next_offset
        failure: WeirError = Unavailable("what was granted cannot be read: pull again shortly")
        try:
            await self._await_log(granted)
            await room.take()
            while at < behind:
                found, at = await self._read(asked, at, behind, session)
                batches += found
        except WeirError as error:
            log.debug("offset %d of group %d is not read: %s", at, asked.address.group, error)
            failure = error
        runs = _runs_of(granted)
        here = tuple((first, min(end, at)) for first, end in runs if first < at)
        if at < behind:
            lacking = [(max(first, at), end) for first, end in runs if end > at]
            if not await _give_back(session, asked, granted.fence, lacking):
                here = ()
        if not here:
            raise failure
        self.counts.granted += sum(end - first for first, end in here)
        return structs.replace(
            granted, next_offset=here[-1][1], runs=here if len(here) > 1 else (),
            batches=tuple(batches),
        )  # fmt: skip

    async def _await_log(self, granted: m.Granted) -> None:
        """Return once all that was granted is here, or is not about to come: the core grants what
        may be under way to this relay.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + LOG_WAIT_SECONDS
        while True:
            topic, held = self._requests.partition(granted.address)
            left = min(ends - loop.time(), NEWS_WAIT_SECONDS)
            if held.state.end >= granted.next_offset or left <= 0:
                return
            try:
                await asyncio.wait_for(topic.news[granted.address.group].wait(), left)
            except TimeoutError:
                return

    async def _read(
        self, asked: m.Pull, at: int, behind: int, session: ReaderSession
    ) -> tuple[Sequence[Buffer], int]:
        """Return batches from offset `at` on, and up to where in [at, behind) they reach: from the
        log if it holds that, else from the core. Raises why neither can be read.
        """
        group = asked.address.group
        wanted = frozenset(asked.tags) if asked.tags else None
        _, held = self._requests.partition(asked.address)
        state = held.state
        until = at
        if state.begun and state.start <= at < state.end:
            until = min(state.reach(at, wanted), behind)
        if until > at:
            indexes = state.entries_from(at, until, _PORTION)
            plan = Plan(group, at, until, wanted, _PORTION, LIMIT_MAX - 1, indexes)
            found = await self._requests.entries(group, held, indexes)
            portion = reads.read_portion(plan, found, state)
            if portion is not None:
                return portion.data, portion.next
        kept = max(state.end - state.start, 1)
        size = min(_READ_LEAST + 2 * (behind - at) * state.ranges.total // kept, _PORTION)
        fetch = m.Fetch(asked.address, at, size, equal_stamps=True, tags=asked.tags)
        fetched = await _ask(session, fetch, 0)
        assert isinstance(fetched, m.Fetched)
        if fetched.next_offset <= at:
            raise Unavailable("what was granted is not read from the core: pull again shortly")
        reached = min(fetched.next_offset, behind)
        self.counts.from_core += reached - at
        return fetched.batches, reached

    # -- acks --------------------------------------------------------------------------------

    async def _ack(self, asked: m.Ack | m.MoveCursor, session: ReaderSession) -> m.Reply:
        """Return the core's answer to an ack, which waits while the core is away. It is done then,
        or told to be stale. Raises `Overloaded` if too many wait.
        """
        try:
            return await _ask(session, asked, 0)
        except Unavailable:
            self.counts.check_room(session)
        with self.counts.waiting(session, asked.address.group) as ends:
            while True:
                await asyncio.sleep(AGAIN_SECONDS)
                is_over = time.monotonic() >= ends
                try:
                    if self._host.is_reached or is_over:
                        return await _ask(session, asked, 0)
                except Unavailable:
                    if is_over:
                        raise


def _runs_of(granted: m.Granted) -> tuple[tuple[int, int], ...]:
    return granted.runs or ((granted.offset, granted.next_offset),)


async def _give_back(
    session: ReaderSession, asked: m.Pull, fence: int, runs: list[tuple[int, int]]
) -> bool:
    """Give back messages of a grant that nobody began. Where that may not have happened, the
    session in the core ends, with the whole grant, and the answer is False: a consumer that pulled
    again in order, and held what it does not know of, would be granted what lies behind it.
    """
    try:
        await _ask(session, m.Nack(asked.address, asked.cluster, fence, runs, untried=True), 0)
    except (StaleGrant, UnknownCluster):
        return False  # the grant has ended
    except WeirError as error:
        log.info("the session of a consumer ends, for it cannot give back a grant: %s", error)
        session.release()
        return False
    return True


async def _ask(session: ReaderSession, request: ClusterRequest | m.Fetch, wait_ms: int) -> m.Reply:
    """Return the core's answer to a consumer, which may wait there for a while. Raises its refusal;
    `Unavailable` while it is away, or elects a leader: a client of this relay can ask no other.
    """
    answer = request.declaration.answer
    assert answer is not None
    try:
        found: m.Reply = await session.ask_core(request, answer, wait_ms / 1_000)
    except NotLeader as error:
        raise Unavailable(f"the core elects a leader: {error}") from None
    return found
