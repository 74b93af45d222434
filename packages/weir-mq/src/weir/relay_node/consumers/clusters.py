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
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from msgspec import structs

from weir.client.connection.system import SYSTEM
from weir.codec import Buffer
from weir.errors import (
    DamagedRange,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    StaleGrant,
    Unauthorized,
    Unavailable,
    UnknownCluster,
    UnknownTopic,
    WeirError,
)
from weir.model.ids import LIMIT_MAX, Address, topic_of
from weir.model.limits import FETCH_BYTES_MAX, KIB, RETRY_AFTER_MS, WAIT_MS_MAX
from weir.model.topic import Mode
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.relay.portion import Plan
from weir.relay_node import reads
from weir.relay_node.consumers.memory import RequestMemory
from weir.relay_node.host import RelayHost
from weir.relay_node.requests import AnswerRoom, RelayRequests
from weir.relay_node.sessions import ReaderSession

log = logging.getLogger(__name__)
#: Messages [first, end).
Run = tuple[int, int]

#: What consumers of clusters ask; the core decides all of it.
ClusterRequest = (
    m.OpenCluster | m.Pull | m.MoveGrants | m.Withdraw | m.Ack | m.Nack | m.Extend | m.TakeTurn
    | m.MoveCursor | m.SeekCursor | a.BeginCluster | a.ListClusters
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
#: What cannot be read, nor soon, rests for so many milliseconds, or for its lease if that is less.
REST_MS = 5_000
#: For one grant, the core is asked past so many damaged messages.
CORE_FAILURES_MAX = 8
#: What is read from the core at once where the size of messages is not known.
_READ_LEAST = 16 * KIB
_PORTION = FETCH_BYTES_MAX // 2


class PendingAck(NamedTuple):
    """An ack that waits for a core that is away: since when, in seconds of monotonic time, whose it
    is, and how many messages it says to be done; a move of a cursor counts as one.
    """

    since: float
    session: ReaderSession
    group: int
    cluster: str
    messages: int


class ClusterCounts:
    """What a relay did for consumers of clusters since its start."""

    def __init__(self) -> None:
        """Nothing yet."""
        #: Messages that were handed out, and of these those that were read from the core.
        self.granted = 0
        self.from_core = 0
        #: The acks that wait for a core that is away.
        self.pending: dict[object, PendingAck] = {}
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
    def waiting(self, session: ReaderSession, asked: m.Ack | m.MoveCursor) -> Iterator[float]:
        """An ack waits meanwhile; until when, at most."""
        me, now, whose = object(), SYSTEM.get().monotonic(), (session, asked.address.group)
        count = sum(b - a for _, a, b in asked.ranges) if isinstance(asked, m.Ack) else 1
        self.pending[me] = PendingAck(now, session, asked.address.group, asked.cluster, count)
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
        now = SYSTEM.get().monotonic()
        return now - min((one.since for one in self.pending.values()), default=now)

    def pending_of(self, group: int, user: str, cluster: str) -> tuple[tuple[str, int], ...]:
        """Return, by cluster, how many messages of a partition have acks that wait here: those of
        one user, if there are users, and of one cluster or of all ("").
        """
        found = Counter[str]()
        for one in self.pending.values():
            is_asked = one.group == group and cluster in ("", one.cluster)
            if is_asked and one.session.user == user:
                found[one.cluster] += one.messages
        return tuple(sorted(found.items()))


class _Found:
    """How far a grant is read, and what of it was found."""

    def __init__(self, at: int) -> None:
        self.first = self.at = at
        #: What was read, in order; and that with what the core has deleted meanwhile.
        self.here: list[Run] = []
        self._settled: list[Run] = []
        #: Why some was not, at last.
        self.failure: WeirError | None = None
        #: Whether the log still gives what it holds.
        self.log_gives = True
        self._core_failures: list[WeirError] = []

    def reached(self, end: int) -> None:
        """All was read up to an offset."""
        self.here.append((self.at, end))
        self._settled.append((self.at, end))
        self.at = end

    def deleted(self, end: int) -> None:
        """Retention has passed all up to an offset: nobody holds it any more, nor is to."""
        self._settled.append((self.at, end))
        self.at = end

    def lacking(self, behind: int) -> list[Run]:
        """Return what is to be given back below an offset, in order."""
        found, at = list[Run](), self.first
        for first, end in [*self._settled, (behind, behind)]:
            if at < first:
                found.append((at, first))
            at = end
        return found

    def check_core(self) -> None:
        """Raise what the core last said, if it is not to be asked any more: it gave nothing for
        another reason than damage, which is at one place, or too often.
        """
        failures = self._core_failures
        if failures and (
            len(failures) >= CORE_FAILURES_MAX
            or not isinstance(failures[-1], DamagedRange | OffsetOutOfRange)
        ):
            raise failures[-1]

    def core_failed(self, error: WeirError) -> None:
        """The core did not give a message."""
        self._core_failures.append(error)


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
        group = request.address.group
        try:
            self._requests.partition(request.address)
        except Unauthorized:  # the core may hide the topic from this client
            await session.check(topic_of(group))
            raise
        asked = structs.replace(request, address=Address(0, 0, group))
        if isinstance(asked, m.Pull):
            granted = await self._pull(asked, room, session)
            return structs.replace(granted, address=request.address)
        if isinstance(asked, m.Ack | m.MoveCursor):
            return await self._ack(asked, session)
        if isinstance(asked, a.ListClusters):
            return await self._list(asked, session)
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
        if granted.batches:  # a core of an earlier release sends the messages
            await room.take()
            self.counts.granted += sum(end - first for first, end in _runs_of(granted))
            return granted
        if not granted.fence:
            return granted
        return await self._filled(asked, granted, room, session)

    async def _filled(
        self, asked: m.Pull, granted: m.Granted, room: AnswerRoom, session: ReaderSession
    ) -> m.Granted:
        """Return a grant with its messages, within half of its lease; what cannot be read is given
        back, untried. Raises why it cannot be, if that is all. Of what retention has passed
        meanwhile, nothing is told: in the core it is done.
        """
        batches, found, runs = list[Buffer](), _Found(granted.offset), _runs_of(granted)
        ends = [end for _, end in runs]
        try:
            async with asyncio.timeout(asked.lease_ms / 2_000):
                await self._await_log(granted)
                await room.take()
                while found.at < granted.next_offset:
                    # Between runs nothing is wanted.
                    found.at = max(found.at, runs[bisect_right(ends, found.at)][0])
                    await self._read_on(asked, granted, found, session, batches)
        except TimeoutError:
            found.failure = Unavailable("granted messages were not read within half of the lease")
        except WeirError as error:
            found.failure = error
        here = _common(runs, found.here)
        if not await self._give_back(asked, granted, found, session):
            raise found.failure or Unavailable("the granted messages cannot be read: pull again")
        if not here:
            if found.failure is None:
                return m.Granted(asked.address, 0, 0, 0, 0)
            raise found.failure
        self.counts.granted += sum(end - first for first, end in here)
        return structs.replace(
            granted, offset=here[0][0], next_offset=here[-1][1],
            runs=tuple(here) if len(here) > 1 else (), batches=tuple(batches),
        )  # fmt: skip

    async def _read_on(
        self, asked: m.Pull, granted: m.Granted, found: _Found, session: ReaderSession,
        batches: list[Buffer],
    ) -> None:  # fmt: skip
        """Read some messages, or pass one by that cannot be read. Raises why it cannot be, where
        those behind it would come out of order.
        """
        try:
            data, reached = await self._read(asked, granted.next_offset, found, session)
        except WeirError as error:
            log.debug("offset %d of group %d: %s", found.at, asked.address.group, error)
            if isinstance(error, OffsetOutOfRange) and error.detail > found.at:
                found.deleted(min(error.detail, granted.next_offset))
                return
            if asked.mode is not Mode.SHARED:
                raise
            found.failure = error
            found.at += 1
        else:
            found.reached(reached)
            batches += data

    async def _give_back(
        self, asked: m.Pull, granted: m.Granted, found: _Found, session: ReaderSession
    ) -> bool:
        """Give back what was not read: see `_give_back`. It rests for a while, and where keys have
        an order that is one message, so that other keys go on.
        """
        runs = _runs_of(granted)
        lacking, again = found.lacking(granted.next_offset), list[Run]()
        if asked.mode is Mode.KEYED and lacking:
            bad = found.at + 1
            again = _common(runs, [(bad, granted.next_offset)])
            lacking = [(found.at, bad)]
        is_short = found.failure is None or isinstance(found.failure, Unavailable | Overloaded)
        rest_ms = AGAIN_SECONDS * 1_000 if is_short else min(asked.lease_ms, REST_MS)
        for some, delay_ms in ((_common(runs, lacking), int(rest_ms)), (again, 0)):
            if some and not await _give_back(session, asked, granted.fence, some, delay_ms):
                return False
        return True

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
        self, asked: m.Pull, behind: int, found: _Found, session: ReaderSession
    ) -> tuple[Sequence[Buffer], int]:
        """Return batches from where reading stands, and up to where below `behind` they reach: from
        the log if it holds and gives that, else from the core. Raises why neither can be read.
        """
        group, at = asked.address.group, found.at
        wanted = frozenset(asked.tags) if asked.tags else None
        _, held = self._requests.partition(asked.address)
        state = held.state
        until = at
        if state.begun and state.start <= at < state.end and found.log_gives:
            until = min(state.reach(at, wanted), behind)
        if until > at:
            indexes = state.entries_from(at, until, _PORTION)
            plan = Plan(group, at, until, wanted, _PORTION, LIMIT_MAX - 1, indexes)
            try:
                entries = await self._requests.entries(group, held, indexes)
                portion = reads.read_portion(plan, entries, state)
            except Unavailable as error:
                log.debug("the log of group %d does not give offset %d: %s", group, at, error)
                found.log_gives, portion = False, None
            if portion is not None:
                return portion.data, portion.next
        found.check_core()
        kept = max(state.end - state.start, 1)
        size = min(_READ_LEAST + 2 * (behind - at) * state.ranges.total // kept, _PORTION)
        fetch = m.Fetch(asked.address, at, size, equal_stamps=True, tags=asked.tags)
        try:
            fetched = await _ask(session, fetch, 0)
            assert isinstance(fetched, m.Fetched)
            if fetched.next_offset <= at:
                raise Unavailable("the core did not send the granted messages: pull again")
        except WeirError as error:
            found.core_failed(error)
            raise
        reached = min(fetched.next_offset, behind)
        self.counts.from_core += reached - at
        return fetched.batches, reached

    async def _list(self, asked: a.ListClusters, session: ReaderSession) -> m.Reply:
        """Return what the core says of clusters, and which acks wait here for it. While it is away
        that is all there is to say. Raises what the core refuses.
        """
        group = asked.address.group
        _, held = self._requests.partition(asked.address)
        try:
            found = await _ask(session, asked, 0)
        except Unavailable:
            if self._host.is_reached:
                raise
            await session.check(topic_of(group))  # at a private relay the core said so before
            found = a.ClusterList(held.state.start, held.state.end, [], is_cut_off=True)
        assert isinstance(found, a.ClusterList)
        pending = self.counts.pending_of(group, session.user, asked.cluster)
        return structs.replace(found, pending=pending)

    # -- acks --------------------------------------------------------------------------------

    async def _ack(self, asked: m.Ack | m.MoveCursor, session: ReaderSession) -> m.Reply:
        """Return the core's answer to an ack, which waits while the core is away. It is done then,
        or told to be stale. Raises `Overloaded` if too many wait.
        """
        try:
            return await _ask(session, asked, 0)
        except Unavailable:
            self.counts.check_room(session)
        with self.counts.waiting(session, asked) as ends:
            while True:
                await asyncio.sleep(AGAIN_SECONDS)
                is_over = SYSTEM.get().monotonic() >= ends
                try:
                    if self._host.is_reached or is_over:
                        return await _ask(session, asked, 0)
                except Unavailable:
                    if is_over:
                        raise


def _common(some: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    """Return what two lists of runs in order have in common."""
    found, at = list[Run](), 0
    for first, end in some:
        while at < len(others) and others[at][1] <= first:
            at += 1
        here = at
        while here < len(others) and others[here][0] < end:
            found.append((max(first, others[here][0]), min(end, others[here][1])))
            here += 1
    return found


def _runs_of(granted: m.Granted) -> Sequence[Run]:
    return granted.runs or ((granted.offset, granted.next_offset),)


async def _give_back(
    session: ReaderSession, asked: m.Pull, fence: int, runs: list[Run], delay_ms: int
) -> bool:
    """Give back messages of a grant that nobody began. Where that may not have happened, the
    session in the core ends, with the whole grant, and the answer is False: a consumer that pulled
    again in order, and held what it does not know of, would be granted what lies behind it.
    """
    nack = m.Nack(asked.address, asked.cluster, fence, runs, delay_ms, untried=True)
    try:
        await _ask(session, nack, 0)
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
