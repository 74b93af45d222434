"""What a component of a shard finds that others must act on: it lies here until the turn looks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from weir.broker.replica.refusals import ReplicaHalt
from weir.model.topic import Topic
from weir.storage.scrub import MendPiece


@dataclass(frozen=True, slots=True)
class RottenEntry:
    """The scrub found the payload of an entry to be bad at a place."""

    group: int
    index: int
    place: int


@dataclass(frozen=True, slots=True)
class MendDone:
    """A piece that fills in an entry was run, and whether that entry is sound now."""

    piece: MendPiece
    is_sound: bool


@dataclass(frozen=True, slots=True)
class GroupComplete:
    """A group has all again that it lacked."""

    group: int


@dataclass(frozen=True, slots=True)
class ReplicaStopped:
    """A replica met what it cannot apply, and only listens from now on."""

    group: int
    halt: ReplicaHalt
    error: Exception


@dataclass(frozen=True, slots=True)
class RegistryRejoins:
    """The others gave the damaged replica of the registry a new voter number, to begin anew."""

    voter: int


@dataclass(frozen=True, slots=True)
class TopicOpened:
    """A topic is new here, or got more partitions."""

    topic: Topic


Finding = RottenEntry | MendDone | GroupComplete | ReplicaStopped | RegistryRejoins | TopicOpened
#: In the order in which they were found.
Findings = deque[Finding]
