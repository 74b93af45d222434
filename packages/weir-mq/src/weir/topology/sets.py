"""BrokerSets as the topology declares them: one form for the file, the wire and the registry.

A core set holds replicas of partitions. Tandem and access sets hold what can be pulled again from
the sets that they name as their uppers, in order of preference (DESIGN §9).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weir.model.ids import NODE_MAX, Natural
from weir.model.limits import (
    HOLD_SECONDS_DEFAULT,
    HOST_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    SET_ID_MAX,
    SET_NODES_MAX,
    SET_TOPICS_MAX,
    SET_UPPERS_MAX,
    SETS_MAX,
    TAG_BYTES_MAX,
    TAGS_PER_BATCH_MAX,
    TIER_LEVEL_MAX,
)
from weir.model.topic import RESERVED_NAMESPACE

Tier = Literal["core", "tandem", "access"]
SetId = Annotated[int, Meta(ge=0, le=SET_ID_MAX)]
_Name = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
_Tag = Annotated[str, Meta(max_length=TAG_BYTES_MAX)]
_Level = Annotated[int, Meta(ge=0, le=TIER_LEVEL_MAX)]


class SetNode(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A node of a set, and where others reach it."""

    number: Annotated[int, Meta(ge=1, le=NODE_MAX)]
    host: Annotated[str, Meta(max_length=HOST_CHARACTERS_MAX)]
    port: Annotated[int, Meta(ge=1, le=65_535)]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.number}={host}:{self.port}"


class TopicTags(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Which messages of a topic (`NAMESPACE/TOPIC`) a set holds: those with one of these tags, `""`
    for those without a tag; None: all.
    """

    topic: Annotated[str, Meta(max_length=2 * NAME_CHARACTERS_MAX + 1)]
    tags: Annotated[tuple[_Tag, ...], Meta(max_length=TAGS_PER_BATCH_MAX)] | None = None

    def lacks(self, of: TopicTags) -> tuple[str, ...]:
        """Return which tags another one has beyond these; `("*",)` if that one has all."""
        if self.tags is None:
            return ()
        if of.tags is None:
            return ("*",)
        return tuple(sorted({*of.tags} - {*self.tags}))


class Caps(msgspec.Struct, frozen=True, array_like=True):
    """What a set may use, 0 where nothing limits it: how many bytes the sets above keep for it, for
    how many seconds after its last word, and how many bytes a node of it stores.
    """

    hold_bytes: Natural = 0
    hold_seconds: Natural = HOLD_SECONDS_DEFAULT
    disk_bytes: Natural = 0


class SetRow(msgspec.Struct, frozen=True, array_like=True):
    """A BrokerSet. `level` is 0 in the core and rises from tier to tier; `tags` of None are all
    topics but those of the brokers; `upper` are the ids of the sets that it pulls from, the
    preferred one first.
    """

    id: SetId
    name: _Name
    tier: Tier
    level: _Level = 0
    region: _Name = ""
    carrier: _Name = ""
    nodes: Annotated[tuple[SetNode, ...], Meta(max_length=SET_NODES_MAX)] = ()
    tags: Annotated[tuple[TopicTags, ...], Meta(max_length=SET_TOPICS_MAX)] | None = None
    caps: Caps = Caps()
    upper: Annotated[tuple[SetId, ...], Meta(max_length=SET_UPPERS_MAX)] = ()

    def tags_of(self, topic: str) -> TopicTags | None:
        """Return what it holds of a topic; None if nothing. Outside the core, a topic of the
        reserved namespace is held only where it is named.
        """
        if self.tags is None:
            is_left_out = self.tier != "core" and topic.startswith(f"{RESERVED_NAMESPACE}/")
            return None if is_left_out else TopicTags(topic)
        return next((one for one in self.tags if one.topic == topic), None)


class Topology(msgspec.Struct, frozen=True, array_like=True):
    """All sets of a system. `home` is the core set in which all vote while there are but two."""

    home: SetId = 0
    sets: Annotated[tuple[SetRow, ...], Meta(max_length=SETS_MAX)] = ()

    def __len__(self) -> int:
        return len(self.sets)

    def by_id(self, id: int) -> SetRow | None:
        """Return a set by its id."""
        return next((one for one in self.sets if one.id == id), None)

    def by_name(self, name: str) -> SetRow | None:
        """Return a set by its name."""
        return next((one for one in self.sets if one.name == name), None)

    def core(self) -> list[SetRow]:
        """Return the core sets."""
        return [one for one in self.sets if one.tier == "core"]

    def core_nodes(self) -> dict[int, int]:
        """Return by number of a core set's node the id of its set."""
        return {node.number: one.id for one in self.core() for node in one.nodes}

    def children(self, id: int) -> Iterator[SetRow]:
        """Yield the sets that name a set among their uppers."""
        return (one for one in self.sets if id in one.upper)


def name_of(topology: Topology, id: int) -> str:
    """Return the name of a set as messages have it; of one that is not there its id."""
    found = topology.by_id(id)
    return found.name if found is not None else f"{id} (without a name)"
