"""The registry's replicated state: which topics there are, and who holds which producer id."""

from __future__ import annotations

from typing import Any

from weir.broker.control import ProducerOpened, TopicCreated
from weir.model.topic import Topic

_VERSION = 0


class Catalog:
    """Topics by name and id, and producers by id. Topic ids rise from 1 and are never reused."""

    __slots__ = ("_by_id", "_next_topic", "_producers", "_topics")

    def __init__(self) -> None:
        """Begin empty."""
        self._topics: dict[tuple[str, str], Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._producers: dict[int, tuple[int, str]] = {}
        self._next_topic = 1

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, namespace: str, name: str) -> Topic | None:
        """Return a topic by its names."""
        return self._topics.get((namespace, name))

    def by_id(self, topic: int) -> Topic | None:
        """Return a topic by its id."""
        return self._by_id.get(topic)

    def topics(self, namespace: str = "") -> list[Topic]:
        """Return the topics of a namespace, or all, in the order of their names."""
        return [t for key, t in sorted(self._topics.items()) if namespace in ("", key[0])]

    def producer(self, producer: int) -> tuple[int, str] | None:
        """Return the newest epoch and the principal of a producer id."""
        return self._producers.get(producer)

    @property
    def last_stamp(self) -> int:
        """The highest stamp that was given to a topic or as a producer id."""
        created = (topic.created for topic in self._topics.values())
        return max((*created, *self._producers), default=0)

    def create(self, record: TopicCreated) -> tuple[Topic, bool]:
        """Apply a creation; return the topic of that name, and whether it is new."""
        key = (record.namespace, record.name)
        existing = self._topics.get(key)
        if existing is not None:
            return existing, False
        topic = Topic(
            self._next_topic,
            record.namespace,
            record.name,
            record.partitions,
            "total" if record.order == "total" else "partition",
            record.stamp,
        )
        self._next_topic += 1
        self._add(topic)
        return topic, True

    def open(self, record: ProducerOpened) -> ProducerOpened:
        """Apply a new producer id or epoch; return what was granted.

        Two requests that were proposed together name the same epoch: the later one gets the next.
        """
        held = self._producers.get(record.producer)
        if held is not None and record.epoch <= held[0]:
            record = ProducerOpened(record.producer, held[0] + 1, record.principal)
        self._producers[record.producer] = (record.epoch, record.principal)
        return record

    def _add(self, topic: Topic) -> None:
        self._topics[topic.namespace, topic.name] = topic
        self._by_id[topic.id] = topic

    def encode(self) -> object:
        """Return the state as MessagePack can hold it."""
        topics = [
            (t.id, t.namespace, t.name, t.partitions, t.order, t.created)
            for t in self._topics.values()
        ]
        producers = [(p, epoch, owner) for p, (epoch, owner) in self._producers.items()]
        return (_VERSION, self._next_topic, topics, producers)

    @classmethod
    def decode(cls, data: Any) -> Catalog:
        """Return the state that `encode` gave."""
        version, next_topic, topics, producers = data
        if version != _VERSION:
            raise ValueError(f"a registry snapshot of version {version}; known is {_VERSION}")
        catalog = cls()
        catalog._next_topic = next_topic
        for row in topics:
            catalog._add(Topic(*row))
        catalog._producers = {p: (epoch, owner) for p, epoch, owner in producers}
        return catalog
