"""Topics: their names, settings, which partition a key falls into, and how consumers share them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import permutations
from typing import Annotated, Literal, NamedTuple, cast, get_args

import msgspec
import xxhash

from weir.codec import U64
from weir.errors import BadName, BadRequest, NotTogether
from weir.model.ids import Natural, group_of
from weir.model.limits import (
    NAME_CHARACTERS_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    RETENTION_MS_DEFAULT,
    RETENTION_MS_MIN,
    TOPICS_TOGETHER_MAX,
    UNTIL_DONE_MAX,
)

#: What of a topic has one order for all who read it: each partition, or all of them together.
Order = Literal["partition", "total"]
#: What gives the messages of devices a key: nothing, or their hub, as 8 bytes little-endian.
KeyBy = Literal["", "device"]
#: The value of a retention without a limit.
FOREVER = 0
#: In `until_done`: every cluster that there is.
EVERY_CLUSTER = "*"
DEFAULT_NAMESPACE = "default"
#: The namespace of topics that only brokers write to, and the one that says who did what.
RESERVED_NAMESPACE, AUDIT_TOPIC = "_weir", "audit"
#: A key that finds only partitions that have ended at so many places goes to partition 0.
_PLACES_MAX = 64
#: The end of the name of a topic for values of another that do not parse.
BAD = ".bad"
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARACTERS_MAX}}}")


class Mode(IntEnum):
    """How a cluster shares a topic's messages; its first grant sets it for good."""

    #: Each message to one consumer, in no order.
    SHARED = 0
    #: Shared, and the messages of a key in order, one consumer at a time.
    KEYED = 1
    #: One consumer at a time gets everything, in order; the others stand by.
    ORDERED = 2


class AckOutcome(IntEnum):
    """What an ack did to messages of a grant."""

    #: This grant did them: this ack marked them as done, or an earlier one of the same grant did.
    DONE = 0
    #: The grant had lost them. Another grant did them, or retention or a seek passed over them.
    DONE_ELSEWHERE = 1
    #: The grant had lost them, and they are not done: the cluster does them again.
    EXPIRED = 2
    #: Several of the above.
    PARTLY = 3


class Presence(IntEnum):
    """Whether a message is where somebody looks for it."""

    STORED = 0
    #: Its scattering was aborted: the offset holds no message.
    ABORTED = 1
    #: This relay keeps messages with other tags.
    SKIPPED = 2
    #: The partition, or what has come of it here, ends before it.
    AWAITED = 3
    #: Retention deleted it.
    DELETED = 4
    #: It was lost before it came to this relay.
    LOST = 5


class Progress(IntEnum):
    """How far a cluster is with a message."""

    #: It is to be granted.
    WAITING = 0
    #: A consumer has it.
    GRANTED = 1
    #: It was given back, and nobody is granted it for a while; or a scattering with its ack is not
    #: decided.
    HELD_BACK = 2
    DONE = 3


def check_name(name: str, what: str = "name") -> str:
    """Return `name` if it is 1 to 128 of A-Z a-z 0-9 . _ - and not `.` or `..`, else `BadName`."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise BadName(
            f"{what} {name[: NAME_CHARACTERS_MAX + 1]!r} is not allowed: use 1 to "
            f"{NAME_CHARACTERS_MAX} of the characters A-Z a-z 0-9 . _ -"
        )
    return name


@lru_cache(maxsize=1024)
@lru_cache(maxsize=1_024)
def split_name(name: str) -> tuple[str, str]:
    """Split `namespace/topic`, or `topic` of the default namespace, into its two checked names."""
    namespace, slash, topic = name.rpartition("/")
    return (
        check_name(namespace if slash else DEFAULT_NAMESPACE, "namespace"),
        check_name(topic, "topic"),
    )


def full_name_of(namespace: str, topic: str) -> str:
    """Return a topic's name as users write it: the default namespace goes without saying."""
    return topic if namespace == DEFAULT_NAMESPACE else f"{namespace}/{topic}"


class TopicSettings(msgspec.Struct, frozen=True, array_like=True):
    """What may be changed in an existing topic; a field may be added at the end with a default.

    Messages older than `retention_ms` are deleted, and the oldest of a partition that holds more
    than `retention_bytes`; `FOREVER` sets no such limit. A scattering publishes to several topics
    only if each of them is to `scatter_with` the others, by their full names: readers of one may
    have to wait for the others. Messages that all clusters named by `until_done` have acked are
    deleted too, if it names any; `EVERY_CLUSTER` alone stands for all clusters.
    """

    retention_ms: int = RETENTION_MS_DEFAULT
    retention_bytes: int = FOREVER
    scatter_with: tuple[str, ...] = ()
    until_done: tuple[str, ...] = ()


#: Topics' names, as they come from a peer.
Names = Annotated[tuple[str, ...], msgspec.Meta(max_length=TOPICS_TOGETHER_MAX - 1)]
#: Clusters' names, as they come from a peer.
ClusterNames = Annotated[tuple[str, ...], msgspec.Meta(max_length=UNTIL_DONE_MAX)]

DEFAULT_SETTINGS = TopicSettings()


class SettingsChange(msgspec.Struct, frozen=True, array_like=True):
    """Settings that somebody asks for; None leaves one as it is, or at its default."""

    retention_ms: Natural | None = None
    retention_bytes: Natural | None = None
    scatter_with: Names | None = None
    until_done: ClusterNames | None = None

    def over(self, settings: TopicSettings) -> TopicSettings:
        """Return `settings` with this change made. Raises `BadRequest` for a retention so short
        that messages would be gone before anybody could read them, and `BadName`.
        """
        ms, size = self.retention_ms, self.retention_bytes
        if ms is not None and FOREVER < ms < RETENTION_MS_MIN:
            raise BadRequest(
                f'a retention of {ms} ms: give at least {RETENTION_MS_MIN:,} ms, or "forever"',
                RETENTION_MS_MIN,
            )
        return TopicSettings(
            settings.retention_ms if ms is None else ms,
            settings.retention_bytes if size is None else size,
            settings.scatter_with if self.scatter_with is None else _full_names(self.scatter_with),
            settings.until_done if self.until_done is None else _clusters(self.until_done),
        )

    def agrees(self, settings: TopicSettings) -> bool:
        """Return whether `settings` are what is asked for, where something is asked for."""
        return self.over(settings) == settings


def as_change(settings: TopicSettings) -> SettingsChange:
    """Return what asks for all of these settings."""
    return SettingsChange(*msgspec.structs.astuple(settings))


class End(NamedTuple):
    """A partition that is to end: nothing is published to it any more. Once it is sealed, all of it
    is stamped below `stamp` and lies below `offset`; it is `done` once partition 0 has that.
    """

    partition: int
    stamp: int = 0
    offset: int = 0
    done: bool = False


class ClusterPause(NamedTuple):
    """Whether a cluster is paused, by the change of that number: those of a topic rise from 1."""

    cluster: str
    paused: bool
    revision: int


class Topic(msgspec.Struct, frozen=True):
    """A named stream of partitions. `id` is never reused; `created` is the stamp of its entry.

    It was `founded_with` so many partitions: by these, and not by later ones, a hub has its place.
    Later ones join the topic's order one by one, until there are as many as `joining`, which is 0
    if there are; `floors` are what those that have joined are stamped above. `ends` are those that
    have ended or are about to, by number. `pauses` are the clusters that were paused or resumed, by
    name: a setting of the whole cluster, which each partition's leader brings to its partition.
    `key_by` says what the messages of devices have as their key; it stays for the topic's life.
    """

    id: int
    namespace: str
    name: str
    partitions: int
    founded_with: int
    order: Order = "partition"
    created: int = 0
    settings: TopicSettings = DEFAULT_SETTINGS
    joining: int = 0
    floors: tuple[int, ...] = ()
    ends: tuple[End, ...] = ()
    pauses: tuple[ClusterPause, ...] = ()
    key_by: KeyBy = ""

    @property
    def full_name(self) -> str:
        """The name as users write it: the default namespace goes without saying."""
        return full_name_of(self.namespace, self.name)

    def groups(self) -> list[int]:
        """Return the group ids of all partitions, in order."""
        return [group_of(self.id, p) for p in range(self.partitions)]

    def groups_to_be(self) -> list[int]:
        """Return the group ids of all partitions, also of those that have not joined yet."""
        return [group_of(self.id, p) for p in range(max(self.partitions, self.joining))]

    def floor_of(self, partition: int) -> int:
        """Return the stamp above which all of a partition is; 0 for those it was founded with."""
        later = partition - self.founded_with
        return self.floors[later] if 0 <= later < len(self.floors) else 0

    def end_of(self, partition: int) -> End | None:
        """Return how a partition ends; None of one that does not."""
        return next((end for end in self.ends if end.partition == partition), None)

    @property
    def closed(self) -> frozenset[int]:
        """The partitions to which nothing is published any more."""
        return frozenset(end.partition for end in self.ends)

    def partition_of_hub(self, hub: int) -> int:
        """Return where a hub publishes unless it names a partition. That changes only if it ends:
        only there is known what it has published, so that nothing it sends again comes twice.
        """
        return partition_for(key_of_hub(hub), self.founded_with, self.closed)

    def places_of_hub(self, hub: int) -> list[int]:
        """Return where a hub publishes, and all places that it may have had before those ended."""
        key, closed, left = key_of_hub(hub), self.closed, set[int]()
        while (place := partition_for(key, self.founded_with, left)) in closed:
            left.add(place)
        return sorted((*left, place))


def check_together(topics: Sequence[Topic]) -> None:
    """Raise `NotTogether` unless one scattering may publish to all of these."""
    for one, other in permutations(topics, 2):
        if other.full_name not in one.settings.scatter_with:
            raise NotTogether(
                f"a scattering publishes to {one.full_name} and {other.full_name} only if each is "
                f"told so: weir topic alter {one.full_name} --scatter-with {other.full_name}, and "
                "the other way round"
            )


def _full_names(names: Iterable[str]) -> tuple[str, ...]:
    pairs = {split_name(name) for name in names}
    return tuple(full_name_of(*pair) for pair in sorted(pairs))


def _clusters(names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(sorted(set(names)))
    if found == (EVERY_CLUSTER,):
        return found
    if EVERY_CLUSTER in found:
        raise BadRequest(
            f"until_done names {EVERY_CLUSTER!r} and others: give {EVERY_CLUSTER!r} alone, for "
            "every cluster there is, or the clusters' names"
        )
    return tuple(check_name(name, "cluster") for name in found)


def check_settings(partitions: int, order: str) -> None:
    """Raise `BadRequest` unless these settings make a topic."""
    if not 1 <= partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise BadRequest(
            f"{partitions} partitions: a topic has 1 to {PARTITIONS_PER_TOPIC_MAX}",
            PARTITIONS_PER_TOPIC_MAX,
        )
    check_order(order)


def check_order(order: str) -> Order:
    """Return what is an `Order`. Raises `BadRequest` for what is none."""
    if order not in get_args(Order):
        raise BadRequest(
            f"order={order!r}: give 'partition' (each has one order) or 'total' (all together have "
            "one)"
        )
    return cast(Order, order)


def check_key_by(key_by: str) -> KeyBy:
    """Return what is a `KeyBy`. Raises `BadRequest` for what is none."""
    if key_by not in get_args(KeyBy):
        raise BadRequest(
            f"key_by={key_by!r}: give 'device' (a hub's messages have its number as their key) or "
            "leave it out"
        )
    return cast(KeyBy, key_by)


def key_of_hub(hub: int) -> bytes:
    """Return the key by which a hub has its partition, and its messages their order."""
    return U64.pack(hub)


def partition_for(key: bytes, partitions: int, closed: Container[int] = ()) -> int:
    """Return the partition of a key: xxh3-64 modulo the number of partitions; where that is one of
    the `closed`, with the next seed. So no key moves but those of a partition that ends.
    """
    found = int(xxhash.xxh3_64_intdigest(key)) % partitions
    if found not in closed:
        return found
    for seed in range(1, _PLACES_MAX):
        found = int(xxhash.xxh3_64_intdigest(key, seed)) % partitions
        if found not in closed:
            return found
    return 0
