"""Requests and replies that look after topics and consumer clusters.

A topic is altered and deleted by name. What one partition holds is asked and changed by its
address, for each partition knows only its own: a client gathers.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from weir.model.ids import Address, Natural
from weir.model.topic import SettingsChange
from weir.protocol.client.control import Control

#: The number of a hub: all 64 bits of it, which is as large as the encoding lets a number be.
Hub = Annotated[int, Meta(ge=0)]


class AlterTopic(Control, frozen=True, array_like=True):
    """Change a topic's settings, or give it more `partitions` (0: as many as it has).

    More partitions change which one a key falls into from then on. Answered by `TopicInfo`.
    """

    name: str
    settings: SettingsChange = SettingsChange()
    partitions: Natural = 0


class EndPartition(Control, frozen=True, array_like=True):
    """End a partition: nothing is published to it any more, and what it holds is read on. Answered
    by `TopicInfo` once it has ended; one that has ended before is answered the same.
    """

    name: str
    partition: Natural


class DeleteTopic(Control, frozen=True, array_like=True):
    """Delete a topic and all of its messages, for good. Its `id` is never given again.

    An `id` of 0 deletes whichever topic has the name.
    """

    name: str
    id: Natural = 0


class Deleted(Control, frozen=True, array_like=True):
    """The topic of this id is gone."""

    id: int


class DescribePartition(Control, frozen=True, array_like=True):
    """Ask what a partition holds."""

    address: Address


class PartitionInfo(Control, frozen=True, array_like=True):
    """First offset kept, the offset behind the last committed, and the stored bytes of messages;
    the nodes that hold it, and those of them that are not up to date.
    """

    start: int
    end: int
    bytes: int
    clusters: list[str]
    nodes: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)


class AskLeader(Control, frozen=True, array_like=True):
    """Ask any node who leads a partition. It answers at once with what it knows itself: it asks no
    other node, so a leader that stands still delays nobody.
    """

    address: Address


class LeaderInfo(Control, frozen=True, array_like=True):
    """The node that leads a partition in Raft term `term`, and the nodes that are to hold it.

    `node` is 0 if no leader is known. `term` is 0 if the node that answers holds no replica.
    """

    node: Natural
    term: Natural
    nodes: tuple[Natural, ...] = ()


class ListClusters(Control, frozen=True, array_like=True):
    """Ask how far the clusters of a partition are, or one of them."""

    address: Address
    cluster: str = ""


class ClusterInfo(Control, frozen=True, array_like=True):
    """How far a cluster is in one partition.

    All below `cursor` is done. Of the `lag` messages that are not done, `granted` are with
    consumers; `attempts` is the most grants that one of the lag took, and `oldest_ms` how long ago
    the oldest message that is not done was published, as far as it is known (-1: it is not).
    `skipped` went past retention before anybody was done with them. `consumers` wait or hold a
    grant now. Its `mode` is a `Mode`, or -1 before its first grant. The `held_back` messages were
    given back and not granted again, the `delayed` ones are not due. A cluster that reads the
    topic in total order is in partition 0 alone: all below `offsets`, by partition, is done.
    """

    name: str
    cursor: int
    lag: int
    granted: int
    attempts: int
    oldest_ms: int
    skipped: int
    consumers: int
    paused: bool
    mode: int = 0
    held_back: int = 0
    delayed: int = 0
    offsets: tuple[int, ...] = ()


class ClusterList(Control, frozen=True, array_like=True):
    """The clusters of a partition, by name, and the offsets it holds: from `start`, below `end`.

    Offsets in `voids` hold no message, for their scatterings were aborted. Of many runs the last
    ones are told; the field is left out if there are none.
    """

    start: int
    end: int
    clusters: list[ClusterInfo]
    voids: tuple[tuple[int, int], ...] = ()


class SeekCluster(Control, frozen=True, array_like=True):
    """Let a cluster go on at `offset`, ending all grants under way; one that is not there begins.

    Answered by `ClusterChanged`.
    """

    address: Address
    cluster: str
    offset: Natural


class PauseCluster(Control, frozen=True, array_like=True):
    """Grant a cluster nothing from now on; or, with `paused` False, go on. Consumers wait.

    Any address of the topic stands for all of its partitions, also for those to come.
    """

    address: Address
    cluster: str
    paused: bool = True


class DeleteCluster(Control, frozen=True, array_like=True):
    """Forget a cluster; refused while it has consumers."""

    address: Address
    cluster: str


class ClusterChanged(Control, frozen=True, array_like=True):
    """A change of a cluster is durable on a majority; `cursor` is where it is now."""

    cursor: int


class ListHubs(Control, frozen=True, array_like=True):
    """Ask where the devices stand that published with a sequence to a partition: those of `hub`, or
    some of all, from `part` on.
    """

    address: Address
    hub: Hub | None = None
    part: Natural = 0


class HubList(Control, frozen=True, array_like=True):
    """Devices (hub, sn, boot, next sequence, last offset), in no order, and the part to ask for
    next; 0: there is none.
    """

    devices: list[tuple[int, int, int, int, int]]
    next_part: int = 0


class ForgetHub(Control, frozen=True, array_like=True):
    """Forget where the devices of a hub stand in a partition: they begin anew, with any boot."""

    address: Address
    hub: Hub


class HubForgotten(Control, frozen=True, array_like=True):
    """It is durable on a majority that so many devices of a hub are forgotten."""

    devices: int


Request = (
    AlterTopic
    | EndPartition
    | DeleteTopic
    | DescribePartition
    | AskLeader
    | ListClusters
    | SeekCluster
    | PauseCluster
    | DeleteCluster
    | ListHubs
    | ForgetHub
)
Reply = Deleted | PartitionInfo | LeaderInfo | ClusterList | ClusterChanged | HubList | HubForgotten
