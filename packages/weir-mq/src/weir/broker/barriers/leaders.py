"""Where the partitions of a topic are led, as one shard sees it at a moment."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from weir.broker.api.layout import Layout
from weir.broker.barriers.waiters import Scope
from weir.broker.forwarding.forwarder import Passing
from weir.broker.partition.leader import Leading
from weir.broker.partition.topics import Topics
from weir.broker.state.state import PartitionState
from weir.errors import NotLeader
from weir.model.ids import group_of
from weir.model.topic import Topic


class Led(NamedTuple):
    """A partition that this shard leads."""

    partition: int
    group: int
    leading: Leading
    state: PartitionState


class Plan(NamedTuple):
    """All partitions of a scope: those led here, those that others lead, and where to ask."""

    partitions: list[int]
    led: list[Led]
    others: list[int]
    #: By partition, the place that leads it as far as is known, for some of the others.
    places: dict[int, int]


class Planner:
    """Finds out where partitions are led."""

    __slots__ = ("_layout", "_passing", "_topics")

    def __init__(self, topics: Topics, passing: Passing, layout: Layout) -> None:
        """Look at what is served here, and ask `passing` about the rest."""
        self._topics = topics
        self._passing = passing
        self._layout = layout

    def plan(self, topic: Topic, scope: Scope, joined: int) -> Plan:
        """Return where partitions of a topic are led, of which so many have `joined` for sure."""
        count = max(topic.partitions, topic.founded_with + joined)
        led: list[Led] = []
        others: list[int] = []
        places: dict[int, int] = {}
        for partition in self._of(topic.id, range(count), scope):
            group = group_of(topic.id, partition)
            here = self._topics.find(group)
            if here is not None and here.leading is not None:
                led.append(Led(partition, group, here.leading, here.state))
            elif scope is not Scope.LED:
                others.append(partition)
                with suppress(NotLeader):  # whoever asks learns by itself who leads it
                    place = self._passing.routes.toward(group)
                    if place != self._passing.shard:
                        places[partition] = place
        partitions = sorted([one.partition for one in led] + others)
        return Plan(partitions, led, others, places)

    def _of(self, topic: int, partitions: range, scope: Scope) -> Iterable[int]:
        if scope is not Scope.OWN:
            return partitions
        shard, shard_of = self._passing.shard, self._layout.shard_of
        return [p for p in partitions if shard_of(group_of(topic, p)) == shard]
