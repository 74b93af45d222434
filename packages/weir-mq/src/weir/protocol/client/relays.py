"""The request by which a relay pulls, which carries what `weir.relay.messages` makes, and the one
by which clients ask a relay how far it is.
"""

from __future__ import annotations

import msgspec

from weir.codec import Buffer
from weir.errors import WrongSystem
from weir.model.ids import Address, Natural
from weir.protocol.client.declaration import (
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)


class RelayTold(msgspec.Struct, frozen=True):
    """What a relay is told: a message of `docs/RELAYS.md`, an answer or the refusal of a pull; no
    bytes where nothing is to be said.
    """

    address: Address
    message: tuple[Buffer, ...] = ()


class AskRelay(ControlRequest, frozen=True, array_like=True):
    """A relay asks the leader of a partition: `message` is a pull, a question about a filter, or
    what a relay holds, as docs/RELAYS.md has them, of the same system and partition.

    A pull is answered once there is something to tell, or with nothing after a second. Of the pulls
    of one node the last one counts: an earlier one that still waits is refused. Only what is
    committed and decided is told. Where a topology is applied, the node must be in one of its
    tandem or access sets, and may ask for the tags that the topology gives to that set. Then the
    right to pull as that set is needed, and none to the topic: it gives these tags and no others.
    A topic of namespace `_weir` must be named there, and needs the right to read it as well.
    """

    declaration = Declaration(
        102,
        Scope.PARTITION,
        RelayTold,
        Retry.READ,
        rights=(Right("read", Resource.TOPIC), Right("pull", Resource.SET)),
        is_large=True,
        refusals=(WrongSystem,),
        answer_body=(("address", "address"), ("message", "batches")),
    )

    address: Address
    message: bytes


class RelayTopic(msgspec.Struct, frozen=True, array_like=True):
    """How far a relay is with the partitions of a topic that it has begun to pull.

    `barred` says why the core does not let the relay read it, or is empty. `lag_messages` are those
    that its upper nodes had when they last answered and it has not, about `lag_bytes` long; of the
    partition that is furthest behind, all was there `lag_ms` ago, and of the one that heard least,
    an upper node answered `news_ms` ago. It holds `held_bytes`; `lost` messages are lost in the
    core. It keeps messages with one of `tags` tags; -1: with any. It knows that it has all up to a
    stamp that is `mark_ms` old in the partition where it is oldest; -1: of none. It keeps messages
    for nodes below by `holds`, one for each node and partition: `hold_messages` are those that the
    furthest of these nodes has not made durable; the one silent for longest spoke `hold_ms` ago.
    """

    name: str
    barred: str
    partitions: Natural
    lag_messages: Natural
    lag_bytes: Natural
    lag_ms: Natural
    news_ms: Natural
    held_bytes: Natural
    lost: Natural
    tags: int
    mark_ms: int
    holds: Natural
    hold_messages: Natural
    hold_ms: Natural


class RelayInfo(ControlReply, frozen=True, array_like=True):
    """How far a relay is: its BrokerSet and node, and whether it reaches the core.

    By upper node, `pulled` has how many bytes of messages came from it; `sent` has BrokerSet and
    node of those below and how many bytes they were sent: on the first page alone, of 1,024 at
    most. The `topics` are in order of their names; with `more`, ask for those after the last one.
    """

    brokerset: Natural
    node: Natural
    reached: bool
    pulled: list[tuple[str, Natural]]
    sent: list[tuple[Natural, Natural, Natural]]
    topics: list[RelayTopic]
    more: bool = False


class DescribeRelay(ControlRequest, frozen=True, array_like=True):
    """Ask a relay how far it is, with the topics after a name. A node of a core set refuses it."""

    declaration = Declaration(
        109,
        Scope.HERE,
        RelayInfo,
        Retry.READ,
        rights=(Right("list", Resource.SYSTEM),),
        methods=("SystemTopology.describe_relay",),
    )

    after: str = ""


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (AskRelay, DescribeRelay)
