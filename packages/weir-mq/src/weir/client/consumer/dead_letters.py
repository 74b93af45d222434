"""Dead letters: messages that cannot be handled go to a topic of their own, and say why.

What is written on them:

weir-reason      why, in a line
weir-attempts    how often it was delivered
weir-topic, weir-partition, weir-offset, weir-cluster
                 where it lies, and whose handler it was
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from weir.client.producer.producer import Producer
from weir.model.message import Message

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
    """Whoever publishes to any topic: a client."""

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

    It may be published twice if whoever does it dies before the ack that follows.
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
