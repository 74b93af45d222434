"""Dead letters go back to where they came from: `redrive`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from weir.client.client import Client
from weir.client.connection.system import SYSTEM
from weir.client.consumer.delivery import Delivery
from weir.client.consumer.settlement import CLUSTER, HEADERS, TOPIC, copy
from weir.errors import BadRequest
from weir.model.message import Message

#: Seconds to wait for more before it is asked whether there is any.
_LOOK = 0.5
_TOGETHER = 256


class Redriven(msgspec.Struct, frozen=True):
    """How many dead letters went back, by topic; `others` are those of other clusters."""

    topics: Mapping[str, int]
    others: int

    @property
    def messages(self) -> int:
        """How many went back in all."""
        return sum(self.topics.values())


async def redrive(
    client: Client, topic: str, cluster: str, to: str | None = None, patience: float = 60.0
) -> Redriven:
    """Publish a cluster's dead letters in `topic` to where they came from, or to the topic `to`.

    All that is there now; each is acked once its copy is confirmed, and the next redrive goes on
    behind them. One that is killed may have published some that the next one publishes again.
    Raises `UnknownTopic`, also for where a letter came from; `BadRequest` at a message that is no
    dead letter: it may be one that the cluster has yet to handle. Such a letter stays, and those
    beside it go. `TimeoutError` if nothing moves for `patience` seconds.
    """
    ends = (await client.positions(topic))[1]
    work = _Redrive(client, cluster, to)
    if not await client.clusters(topic, cluster):  # of another topic it is not to be made
        await _look(client, topic)
    async with client.consumer(topic, cluster=cluster) as consumer:
        now = SYSTEM.get().monotonic
        letters, moved = consumer.deliveries(), now()
        while await _left(client, topic, cluster, ends):
            try:
                async with asyncio.timeout(_LOOK):
                    await letters.more()
            except TimeoutError:
                if now() > moved + patience:
                    raise TimeoutError(
                        f"{sum(work.topics.values()):,} went back, and others hold the rest: is "
                        f"another redrive running? `weir cluster lag {topic} {cluster}` tells"
                    ) from None
                continue
            while taken := [one for one in (letters.at_hand() for _ in range(_TOGETHER)) if one]:
                there = [one for one in taken if _was_there(one, ends)]
                await work.take([one for one in there if await _begins(one)])
            await consumer.flush()
            moved = now()
    return Redriven(dict(work.topics), work.others)


async def _begins(letter: Delivery) -> bool:
    """Return whether a letter may go; one that went halfway before is reported, or given back."""
    if not letter.was_tried or await letter.begin():
        return True
    letter.give_back()
    return False


class _Redrive:
    """Counts what goes back."""

    def __init__(self, client: Client, cluster: str, to: str | None) -> None:
        self.topics: Counter[str] = Counter()
        self.others = 0
        self._client = client
        self._cluster = cluster.encode()
        self._to = to

    async def take(self, letters: Sequence[Delivery]) -> None:
        """Publish them, and say that they are done; raise what keeps one from going back, once all
        others have gone. Raises `BadRequest`.
        """
        for letter in letters:
            try:
                _check(letter.message)
            except BadRequest:
                for one in letters:
                    one.give_back()
                raise
        failures: list[Exception] = []
        outcomes = await asyncio.gather(*map(self._back, letters), return_exceptions=True)
        for letter, outcome in zip(letters, outcomes, strict=True):
            if outcome is None:
                letter.done()
                continue
            letter.give_back()
            if not isinstance(outcome, Exception):
                raise outcome
            failures.append(outcome)
        if failures:
            raise failures[0]

    async def _back(self, letter: Delivery) -> None:
        message = letter.message
        if message.headers[CLUSTER] != self._cluster:
            self.others += 1
            return
        to = self._to or message.headers[TOPIC].decode()
        kept = {name: value for name, value in message.headers.items() if name not in HEADERS}
        await copy(self._client, to, message, kept)
        self.topics[to] += 1


async def _look(client: Client, topic: str) -> None:
    """Raise `BadRequest` if the first message of a topic is no dead letter."""
    async with client.reader(topic, follow=False) as reader:
        async for message in reader:
            _check(message)
            return


def _check(message: Message) -> None:
    if not {TOPIC, CLUSTER} <= message.headers.keys():
        raise BadRequest(
            f"offset {message.offset} of {message.topic}/{message.partition} is no dead letter: "
            "name the topic that dead_letter= does"
        )


def _was_there(letter: Delivery, ends: Sequence[int]) -> bool:
    """Tell a letter of the beginning from one that died since: that is the next redrive's."""
    partition = letter.message.partition
    return partition < len(ends) and letter.message.offset < ends[partition]


async def _left(client: Client, topic: str, cluster: str, ends: Sequence[int]) -> bool:
    """Return whether some of what was there is not done."""
    found = await client.clusters(topic, cluster)
    if not found:
        starts, _ = await client.positions(topic)
        return any(start < end for start, end in zip(starts, ends, strict=False))
    return any(share.cursor < end for share, end in zip(found[0].shares, ends, strict=False))
