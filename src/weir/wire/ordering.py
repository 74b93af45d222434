"""What readers in total order ask: how far the one order of a topic's partitions is complete
(DESIGN §5 Aggregation).
"""

from __future__ import annotations

from weir.model.ids import Natural
from weir.wire.control import Control


class AskBarriers(Control, frozen=True, array_like=True):
    """Ask for the barriers of all partitions of a topic, by its id.

    The answer comes once all of them are at `stamp` or above, or after `wait_ms` with what is known
    by then; stamp 0 stands for the time at the shard that takes the question, which any shard of
    any node does. Leaders promise what they have to for it. Another shard is told of what is led
    here.
    """

    topic: Natural
    stamp: Natural = 0
    wait_ms: Natural = 0


class ReportJoined(Control, frozen=True, array_like=True):
    """Only a shard sends this, to who leads the registry: a partition that is new in a topic has
    joined its order above stamp `floor`, by an entry of partition 0.
    """

    topic: Natural
    partition: Natural
    floor: Natural


class Barriers(Control, frozen=True, array_like=True):
    """The barriers of partitions, (partition, stamp, through) each: all that is ever stamped at or
    below `stamp` lies below offset `through`, and is committed; 0 is one of which nothing is known.

    The order is complete through the least stamp of all partitions. `roster` are those that joined
    since the topic was made, as (partition, floor): they are stamped above that.
    """

    topic: Natural
    registers: list[tuple[Natural, Natural, Natural]]
    roster: tuple[tuple[Natural, Natural], ...] = ()
