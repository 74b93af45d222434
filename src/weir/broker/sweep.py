"""When a shard looks for messages that are past their retention."""

from __future__ import annotations

from weir.broker.topics import Topics
from weir.model.ids import topic_of
from weir.order.clock import Time

#: A tick looks at so many partitions at most: a look costs some microseconds.
_LOOKS_PER_TICK = 64


class Sweep:
    """Looks at every partition of a shard once in a while."""

    __slots__ = ("_due_ms", "_every_ms", "_left", "_time", "_topics")

    def __init__(self, topics: Topics, time: Time, every_ms: int) -> None:
        """Begin `every_ms` from now."""
        self._topics = topics
        self._time = time
        self._every_ms = every_ms
        self._due_ms = time.monotonic_ms() + every_ms
        self._left: list[int] = []

    def tick(self) -> None:
        """Look at the next partitions, if it is time."""
        now = self._time.monotonic_ms()
        if now >= self._due_ms and not self._left:
            self._due_ms = now + self._every_ms
            self._left = [partition.group.id for partition in self._topics.partitions()]
        if not self._left:
            return
        looked, self._left = self._left[:_LOOKS_PER_TICK], self._left[_LOOKS_PER_TICK:]
        for group in looked:
            topic = self._topics.catalog.by_id(topic_of(group))
            partition = self._topics.find(group)  # it may not have joined its topic yet
            if topic is not None and partition is not None:
                partition.retain(topic.settings)
