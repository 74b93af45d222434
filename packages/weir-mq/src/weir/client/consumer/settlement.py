"""One consumer: what it hands out, and how each of that comes to its outcome.

The consumer with async and the one without are two ways to speak to it. All of it belongs to the
event loop's thread, but where it says otherwise. What cannot be handled is a *dead letter*: it goes
to a topic of its own, and says why. Written on it is:

weir-reason      why, in a line
weir-attempts    how often it was delivered
weir-topic, weir-partition, weir-offset, weir-cluster
                 where it lies, and whose handler it was
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from weir.client.arguments import Delay, delay_ms
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.delivery import (
    AckResult,
    Delivery,
    Holding,
    Settled,
    expired_result,
    run_of,
)
from weir.client.consumer.leases import ConsumerLeases
from weir.client.consumer.messages import Deliveries, Holder, InHand
from weir.client.consumer.pulls import with_values
from weir.client.consumer.subscription import ConsumerOptions, Subscription, lease_seconds
from weir.client.core.grants import Grant, Prefetch, Run, joined, within
from weir.client.core.retries import Dead, policy_of, seconds
from weir.client.producer.producer import Producer
from weir.errors import BadRequest, Reject
from weir.model.message import Message
from weir.model.topic import Mode

REASON = "weir-reason"
ATTEMPTS = "weir-attempts"
TOPIC = "weir-topic"
PARTITION = "weir-partition"
OFFSET = "weir-offset"
CLUSTER = "weir-cluster"
HEADERS = frozenset((REASON, ATTEMPTS, TOPIC, PARTITION, OFFSET, CLUSTER))
#: Characters of a reason: an exception may carry a whole document.
_REASON_MAX = 1_000


class Publisher(Protocol):
    """Publishes to any topic: a client."""

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        tag: str | None = None,
        time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> object:
        """Return once it is confirmed."""

    def producer(self, topic: str) -> Producer:
        """Return a producer, which streams what is too large to be held."""


async def bury(
    client: Publisher, topic: str, message: Message, cluster: str, attempts: int, reason: str
) -> None:
    """Publish a message to a dead-letter topic; return when that is confirmed.

    It may be published twice if the consumer dies before the ack that follows.
    """
    headers = {
        **message.headers,
        REASON: reason[:_REASON_MAX].encode(),
        ATTEMPTS: b"%d" % attempts,
        TOPIC: message.topic.encode(),
        PARTITION: b"%d" % message.partition,
        OFFSET: b"%d" % message.offset,
        CLUSTER: cluster.encode(),
    }
    await copy(client, topic, message, headers)


async def copy(
    client: Publisher, topic: str, message: Message, headers: Mapping[str, bytes]
) -> None:
    """Publish a message as it is, but for its headers; return when that is confirmed."""
    key, tag, when = message.key, message.tag, message.time
    if message.loaded:
        await client.publish(topic, message.value, key=key, tag=tag, time=when, headers=headers)
        return
    async with client.producer(topic) as producer:
        pieces = message.chunks()
        await producer.publish_from(pieces, key=key, tag=tag, time=when, headers=headers)


class BatchLease(msgspec.Struct, eq=False):
    """A grant that was handed out whole, until all of it has its outcome."""

    holding: Holding
    grant: Grant
    state: Settled = Settled.OPEN

    @property
    def attempts(self) -> int:
        """The how-manieth time it was handed to a consumer: 1, unless work failed."""
        return self.grant.attempts

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return sum(len(part) for part in self.grant.batches)


#: What has an outcome: a message, or a batch.
Leased = Delivery | BatchLease


class Settlement:
    """Hands out the messages of a consumer, one by one or in batches, and settles them."""

    def __init__(
        self,
        home: NetworkClient,
        subscription: Subscription,
        options: ConsumerOptions,
        publisher: Publisher,
        in_hand: InHand,
    ) -> None:
        """Take the connections, who publishes dead letters, and what is to know of outcomes."""
        self.leases = ConsumerLeases(home, subscription, options)
        self.closed = False
        self.cluster = options.cluster
        self._options = options
        self._mode = options.number
        self._work_seconds = options.max_work_seconds
        self._policy = policy_of(options.retry, options.dead_letter)
        self._publisher = publisher
        self._in_hand = in_hand
        self._dice = home.system.dice()
        pace = Prefetch(options.max_messages, seconds(options.lease))
        monotonic = home.system.monotonic
        self.deliveries = Deliveries(self.leases, pace, options, monotonic, in_hand)
        #: A grant that was taken and is not handed out yet.
        self._ready: Holding | None = None
        #: Where it was opened; None before that.
        self.loop: asyncio.AbstractEventLoop | None = None
        #: Outcomes that other threads have told, and whether the loop is to look at them.
        self._posted: deque[tuple[Delivery, Settled]] = deque()
        self._is_posted = False

    async def open(self) -> None:
        """Connect and ask for the partitions. Raises `UnknownTopic`, `Disconnected`."""
        await self.leases.open()
        self.loop = asyncio.get_running_loop()
        self.closed = False

    async def close(self) -> None:
        """Stop pulling, and ack what is done; what is not goes to others at once."""
        self.closed = True
        self._ready = None
        await self.leases.close()

    # Handing out.

    def at_hand(self, holder: Holder | None) -> Delivery | None:
        """Return the next message if it is here, as handed to a task; None: await `more`."""
        deliveries = self.deliveries
        delivery = deliveries.at_hand()
        if delivery is not None:
            self._in_hand.put(delivery, holder)
            delivery.holding.work_ends = deliveries.looked + self._work_seconds
        return delivery

    def hand(self, delivery: Delivery, holder: Holder | None) -> None:
        """Note the task that holds a message, and extend the message's lease for a while."""
        self._in_hand.put(delivery, holder)
        self.leases.keep(delivery.holding)

    async def more(self) -> None:
        """Wait until a message may be here. A cancelled caller loses none."""
        if self.loop is None or self.closed:
            await self.open()
        await self.deliveries.more()

    def ahead(self, most: int) -> list[Delivery]:
        """Return up to so many messages that are here, of which only the first is worked on: who
        takes another says so by `mark_begun`, and `give_back`s what is left.
        """
        found: list[Delivery] = []
        while len(found) < most and (delivery := self.deliveries.ahead()) is not None:
            if not found and not delivery.was_tried:
                delivery.mark_begun()  # before the next pull tells what is worked on
            found.append(delivery)
        return found

    async def several(self, most: int, thread: int) -> list[Delivery]:
        """Wait for messages; return up to so many, as handed to a thread: see `ahead`."""
        while True:
            if not self._in_hand.free:
                await self._in_hand.room(thread)
            found = self.ahead(min(most, self._in_hand.free))
            for delivery in found:
                self.hand(delivery, thread)
            if alive := await self._begun(found):
                return alive
            if not found:
                if self.deliveries.waits_for_outcome:
                    await self._in_hand.outcome(thread)
                await self.more()

    async def _begun(self, found: Sequence[Delivery]) -> list[Delivery]:
        """Return those that may be worked on. Raises as `begin`: then all of them go back."""
        alive = list[Delivery]()
        try:
            for one in found:
                if one.state is not Settled.OPEN:
                    continue  # it went back, with one that failed before it
                if one.attempts == 1 or await self.begin(one):
                    alive.append(one)
        except BaseException:
            for one in found:
                one.give_back()
            raise
        return alive

    async def begin(self, delivery: Delivery) -> bool:
        """Report that a message which was tried before is about to be worked on; False if it is not
        to be: it goes back, or none of its attempts came to an end and it is a dead letter now.

        Raises what a request does: then it goes back, too.
        """
        dead = self._policy.delivered(delivery.attempts, forgiven=False)
        if dead is not None:
            await self._bury(delivery, dead.reason)
            return False
        delivery.mark_begun()
        begun = False
        try:
            offset = delivery.message.offset
            await delivery.holding.lessor.report(delivery.holding, [(offset, offset + 1)])
            begun = delivery.held
        finally:
            if not begun:  # also if who waits for it gives up
                delivery.give_back()
        return begun

    async def batches(self, holder: Holder | None = None) -> AsyncIterator[BatchLease]:
        """Yield grants of up to `max_messages`."""
        options = self._options
        while True:
            if not self._in_hand.free:
                await self._in_hand.room(holder or asyncio.current_task())
            if self._ready is None or self._ready.over or not self._ready.left:
                if self.loop is None or self.closed:
                    await self.open()
                self._ready = await self.leases.take(options.max_messages, self._ready)
                if self._mode is not Mode.ORDERED:
                    self._ready.let_next_come()
            holding = self._ready
            grant = await with_values(holding.grant, options.value_bytes_max)
            if not holding.left:
                continue  # it went back meanwhile
            if not await self._begins(holding):
                continue
            if self._mode is not Mode.KEYED:
                holding.forget_batches()
            holding.handed = grant.next_offset
            self._ready = None
            self.leases.keep(holding)
            lease = BatchLease(holding, grant)
            self._in_hand.put_batch(lease, holder or asyncio.current_task(), lease.count)
            yield lease
            # A task that asks for the next one may have it while this is in hand.
            holding.let_next_come()

    async def _begins(self, holding: Holding) -> bool:
        """Report that all of a grant is about to be worked on, if it was tried before; False if it
        is not to be, for its lease has ended. Raises what a request does; it is at hand still then.
        """
        holding.all_begun = True
        if holding.grant.attempts > 1:
            try:
                await holding.lessor.report(holding, [*holding.left])
            finally:
                holding.all_begun = False  # also if who waits for it gives up
            holding.all_begun = not holding.over
        return holding.all_begun

    # Blocks.

    def enter(self, leased: Leased, holder: Holder | None) -> None:
        """Somebody works on it in a block: its lease is extended for as long as that lasts."""
        leased.holding.blocks += 1
        if leased.state is Settled.OPEN:
            self._in_hand.enter(leased, holder)

    async def leave(self, leased: Leased, error: BaseException | None) -> bool:
        """Give it the outcome that the end of its block says, unless it has one. Return whether
        that has dealt with the error.
        """
        leased.holding.blocks -= 1
        self.leases.keep(leased.holding)
        if error is None:
            self.done(leased)
            return False
        if leased.state is not Settled.OPEN:
            return isinstance(error, Reject)
        if not isinstance(error, Exception):  # it was cancelled
            self.give_back(leased, 0.0, untried=True)
            return False
        if isinstance(error, Reject):
            reason = " ".join(str(error).split()) or "rejected"
            await self.reject(leased, reason)
            return True
        verdict = self._policy.failed(leased.attempts, error, self._dice.random(), forgiven=False)
        if isinstance(verdict, Dead):
            await self._bury(leased, verdict.reason)
        else:
            self.give_back(leased, verdict.delay, untried=False)
        return False

    # Outcomes. The first one counts.

    def post(self, delivery: Delivery, outcome: Settled) -> None:
        """Let the loop note that a message is done, or goes back untried. Of any thread."""
        assert self.loop is not None  # it was handed out
        self._posted.append((delivery, outcome))
        if not self._is_posted:
            self._is_posted = True
            self.loop.call_soon_threadsafe(self._note_posted)

    def _note_posted(self) -> None:
        self._is_posted = False  # before it looks, so that what comes meanwhile is posted anew
        while self._posted:
            delivery, outcome = self._posted.popleft()
            if outcome is Settled.DONE:
                delivery.done()
            else:
                delivery.give_back()

    def done(self, leased: Leased) -> None:
        """Note that all of it is done."""
        if isinstance(leased, Delivery):
            leased.done()
        elif leased.state is Settled.OPEN:
            self._part_done(leased, leased.grant.leased)

    def some_done(self, lease: BatchLease, messages: Iterable[Message]) -> None:
        """Note that some of a batch are done."""
        self._part_done(lease, _runs_of(messages))

    async def ack(self, leased: Leased, messages: Iterable[Message] | None = None) -> AckResult:
        """Say that it is done, or some of a batch; return when a majority knows."""
        if isinstance(leased, Delivery):
            return await self.deliveries.ack(leased)
        runs: Sequence[Run] = leased.grant.leased if messages is None else _runs_of(messages)
        if leased.state is Settled.GIVEN_BACK:
            return expired_result(runs)
        holding = leased.holding
        holding.lessor.outcomes.take_out(holding, runs)
        self._note_settled(leased, Settled.DONE)
        return await holding.lessor.outcomes.ack(holding, runs)

    def give_back(self, leased: Leased, delay: Delay | None, untried: bool) -> None:
        """Note that it goes back, to be granted again after a while; None: as `retry` says."""
        wait = self._delay(leased, delay)
        if isinstance(leased, Delivery):
            if untried:
                leased.give_back(wait)
            else:
                leased.nack(wait)
        elif leased.state is Settled.OPEN:
            holding = leased.holding
            offsets = [offset for run in holding.left for offset in range(*run)]
            holding.lessor.outcomes.give_back(holding, offsets, delay_ms(wait), untried)
            self._note_settled(leased, Settled.GIVEN_BACK)

    async def nack(
        self, leased: Leased, delay: Delay | None, messages: Iterable[Message] | None = None
    ) -> bool:
        """Say that it failed; return when a majority knows, False if it was too late."""
        wait = self._delay(leased, delay)
        if isinstance(leased, Delivery):
            return await self.deliveries.nack(leased, wait)
        holding = leased.holding
        if leased.state is not Settled.OPEN:
            return False
        if messages is None:
            runs, behind = [*holding.left], list[Run]()
        else:
            runs, behind = _runs_of(messages), self._behind(leased, messages)
        try:
            return await holding.lessor.outcomes.nack(holding, runs, behind, delay_ms(wait))
        finally:
            self._note_settled(leased, Settled.GIVEN_BACK)

    async def reject(self, leased: Leased, reason: str) -> None:
        """Publish it to the dead-letter topic, then note that it is done.

        Raises `BadRequest` without `dead_letter=`, and what the publish raises: then it goes back.
        """
        if self._policy.dead_letter is None:
            self.give_back(leased, None, untried=False)
            topic = leased.holding.grant.topic
            raise BadRequest(
                f"a message of {topic} is rejected, and goes back: its consumer has no "
                "dead_letter=. Say which topic takes such messages, or nack() them"
            )
        await self._bury(leased, reason)

    async def _bury(self, leased: Leased, reason: str) -> None:
        if leased.state is not Settled.OPEN:
            return
        messages = [leased.message] if isinstance(leased, Delivery) else leased.grant.messages()
        topic, cluster = self._policy.dead_letter, self._options.cluster
        assert topic is not None  # the policy says that nothing is dead without
        try:
            for message in messages:
                await bury(self._publisher, topic, message, cluster, leased.attempts, reason)
        except BaseException:
            self.give_back(leased, None, untried=True)  # an attempt more would be another reason
            raise
        self.done(leased)

    def take_out(self, leased: Leased) -> list[Run]:
        """Let a scattering tell that it is done; return what of it is left to be told."""
        holding = leased.holding
        runs = leased.grant.leased if isinstance(leased, BatchLease) else [run_of(leased.message)]
        there = holding.lessor.outcomes.take_out(holding, runs)
        if isinstance(leased, Delivery):
            self.deliveries.take_out(leased)
        else:
            self._note_settled(leased, Settled.DONE)
        return there

    def put_back(self, leased: Leased, runs: Sequence[Run]) -> None:
        """Take it back, as the scattering came to nothing: it is in hand again."""
        holding = leased.holding
        holding.lessor.outcomes.put_back(holding, runs)
        if isinstance(leased, Delivery):
            self.deliveries.put_back(leased)
        else:
            leased.state = Settled.OPEN
            self._in_hand.put_batch(leased, None, leased.count)

    async def extend(self, leased: Leased, lease: str | float | None) -> bool:
        """Let its lease run for so long from now on; False if it had ended."""
        length = lease_seconds(self._options.lease if lease is None else lease)
        if leased.state is not Settled.OPEN:
            return False
        return await leased.holding.lessor.extend(leased.holding, length)

    async def flush(self) -> None:
        """Tell the broker of every outcome; return when a majority knows."""
        await self.leases.flush()

    def dropped(self, leased: Leased) -> None:
        """Nobody has it any more, and it has no outcome: it goes back, and that is told. Of any
        thread.
        """
        if self.closed or self.loop is None:
            return  # its consumer gave it back
        try:
            self.loop.call_soon_threadsafe(self._give_back_dropped, leased)
        except RuntimeError:
            return  # the loop has ended, and the connection with it
        warnings.warn(
            f"what {leased.holding.grant.topic}/{leased.holding.partition} handed out was dropped "
            "without an outcome, and goes back: `await message.ack()`, or work on it within "
            "`async with message:`",
            ResourceWarning,
            stacklevel=3,
        )

    def _give_back_dropped(self, leased: Leased) -> None:
        if leased.state is Settled.OPEN and not self.closed:
            self.give_back(leased, None, untried=False)

    def _delay(self, leased: Leased, delay: Delay | None) -> Delay:
        if delay is None:
            return self._policy.retry.delay(leased.attempts, self._dice.random())
        return delay

    # Of batches.

    def _part_done(self, lease: BatchLease, runs: Sequence[Run]) -> None:
        for first, behind in runs:
            lease.holding.lessor.outcomes.settle(lease.holding, first, behind)
        lease.holding.lessor.outcomes.soon()
        self._note_settled(lease, Settled.DONE)

    def _note_settled(self, lease: BatchLease, state: Settled) -> None:
        """Note the outcome of a batch once nothing of it is left."""
        if lease.holding.left:
            return
        lease.state = state
        lease.holding.lessor.outcomes.settled_all()
        self._in_hand.settled(lease)
        # In order, the next one is not pulled before it is known what became of this.
        lease.holding.let_next_come()

    def _behind(self, lease: BatchLease, messages: Iterable[Message]) -> list[Run]:
        """Return what of a batch goes back with the first of its messages that failed."""
        if self._mode is Mode.SHARED:
            return []
        failed = {message.offset for message in messages}
        holding, first = lease.holding, min(messages, key=lambda message: message.offset)
        later = first.offset + 1
        if self._mode is Mode.ORDERED:
            behind = [*within(holding.left, later, holding.grant.next_offset)]
            return joined(o for run in behind for o in range(*run) if o not in failed)
        if first.key is None:
            return []
        offsets = [
            other.offset
            for other in lease.grant.messages()
            if other.key == first.key
            and other.offset >= later
            and other.offset not in failed
            and holding.holds(other.offset)
        ]
        holding.skipped.update(offsets)
        return joined(offsets)


def _runs_of(messages: Iterable[Message]) -> list[Run]:
    return joined(run_of(message)[0] for message in messages)
