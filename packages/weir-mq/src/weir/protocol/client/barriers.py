"""What readers in total order ask: how far the one order of a topic's partitions is complete
(DESIGN §5 Aggregation).
"""

from __future__ import annotations

from weir.errors import UnknownTopic
from weir.model.ids import Address, Natural
from weir.protocol.client.declaration import (
    Asker,
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)


class Barriers(ControlReply, frozen=True, array_like=True):
    """The barriers of partitions, as (partition, stamp, through) each: all messages that are ever
    stamped at or below `stamp` lie below offset `through`, and are committed. A stamp of 0 says
    that nothing is known of the partition.

    The order is complete through the least stamp of all partitions. With `reached`, all of them
    are at the stamp that was asked for; else the time was up. `roster` are the partitions that
    joined since the topic was made, as (partition, floor): they are stamped above the floor.
    `ends` are those that have ended, as (partition, stamp, offset): none of their messages is
    stamped above that stamp, or lies at that offset or behind it.
    """

    topic: Natural
    registers: list[tuple[Natural, Natural, Natural]]
    roster: tuple[tuple[Natural, Natural], ...] = ()
    reached: bool = False
    ends: tuple[tuple[Natural, Natural, Natural], ...] = ()


class AskBarriers(ControlRequest, frozen=True, array_like=True):
    """Ask for the barriers of all partitions of a topic, by its id.

    The answer comes once all of them are at `stamp` or above, or after `wait_ms` with what is known
    by then. Leaders make the promises that this needs. With `anew`, or stamp 0, all leaders are
    asked after this request arrived: then everything that was confirmed before is stamped at or
    below their barriers. Any shard of any node answers it; another shard gets an answer for what
    this shard leads.
    """

    declaration = Declaration(
        10,
        Scope.HERE,
        Barriers,
        Retry.READ,
        rights=(Right("read", Resource.TOPIC),),
        refusals=(UnknownTopic,),
        methods=("Client.reader",),
    )

    topic: Natural
    stamp: Natural = 0
    wait_ms: Natural = 0
    anew: bool = False


class ReportJoined(ControlRequest, frozen=True, array_like=True):
    """Only a shard sends this, to who leads the registry: a partition that is new in a topic has
    joined its order above stamp `floor`, by an entry of partition 0.
    """

    declaration = Declaration(
        55,
        Scope.REGISTRY,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    topic: Natural
    partition: Natural
    floor: Natural


class ReportEnded(ControlRequest, frozen=True, array_like=True):
    """Only a shard sends this, to who leads the registry: a partition that is to end is sealed at
    `stamp`, and all of it lies below `offset`; partition 0 has that in an entry if it is `done`.
    """

    declaration = Declaration(
        56,
        Scope.REGISTRY,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    topic: Natural
    partition: Natural
    stamp: Natural
    offset: Natural
    done: bool = False


class ReportDone(ControlRequest, frozen=True, array_like=True):
    """Only a shard sends this, from who leads partition 0 of a topic to who leads another one: the
    offset of that partition below which each cluster is done that reads in total order.
    """

    declaration = Declaration(
        57,
        Scope.PARTITION,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    address: Address
    done: tuple[tuple[str, Natural], ...]


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (AskBarriers, ReportJoined, ReportEnded, ReportDone)
