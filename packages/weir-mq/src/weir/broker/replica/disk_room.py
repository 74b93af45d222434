"""Whether disks have room for publishes: those of this node, and of the others of the set.

A node whose disk is full refuses publishes to what it leads, though others of the set could take
them: it lets them lead. While its disk stays full it says so, again and again, and leads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from weir.broker.api.effects import MakeSpare
from weir.broker.api.events import SpareMade
from weir.broker.replica.group import Group
from weir.broker.replica.node_state import TELL_EVERY_MS, Clocks, Voting
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.errors import Overloaded, Refused, Unavailable
from weir.model.ids import node_of, partition_of, place_node, topic_of
from weir.order.clock import Time
from weir.storage.log import Log

#: How long a disk without room is left alone before it is asked again.
SPARE_RETRY_MS = 1_000
#: A node that has not said for so long that its disk is full has room again, or is gone.
_FULL_FORGET_MS = 3 * TELL_EVERY_MS


class DiskRoom:
    """What room the disk of one log has: a reserve of segment files, and whether it takes more."""

    __slots__ = ("_asks_after_ms", "_log", "_outbox", "_time", "cannot_grow")

    def __init__(self, log: Log, outbox: Outbox, time: Time) -> None:
        """Have room as far as is known."""
        self._log = log
        self._outbox = outbox
        self._time = time
        #: Whether the last file that was asked for could not be made, and until when none is.
        self.cannot_grow = False
        self._asks_after_ms = time.monotonic_ms()

    @property
    def is_full(self) -> bool:
        """Whether there is no room to fill the reserve, so that publishes are refused soon."""
        reserve = self._log.settings.spares * self._log.settings.segment_bytes
        return self.cannot_grow and self._log.room_bytes < reserve

    @property
    def needed_bytes(self) -> int:
        """The free space that is needed before publishes are taken again; 0 if they are."""
        settings = self._log.settings
        left = self._log.room_bytes - settings.segment_bytes
        if self.cannot_grow and left < settings.entry_bytes_max:
            return settings.segment_bytes
        return 0

    def check(self, pending: int) -> None:
        """Raise `Overloaded` if a publish would take the room that acks, votes and configuration
        need on a full disk; `pending` bytes are admitted already (DESIGN §4: the reserve).
        """
        if self.cannot_grow and self._log.room_bytes - pending < self._log.settings.segment_bytes:
            raise Overloaded(
                "the disk is full: free space or add a disk; acks and reads continue",
                SPARE_RETRY_MS,
            )

    def fill_reserve(self) -> None:
        """Ask for a segment file if the reserve lacks one, unless the disk had no room for it."""
        if not self.cannot_grow:
            self._ask()

    def ask_again(self) -> None:
        """Ask a disk that had no room, if it is time."""
        if self.cannot_grow and self._time.monotonic_ms() >= self._asks_after_ms:
            self._ask()

    def _ask(self) -> None:
        spare = self._log.next_spare()
        if spare is not None:
            self._asks_after_ms = self._time.monotonic_ms() + SPARE_RETRY_MS
            self._outbox.put(MakeSpare(self._log.settings.log, spare))

    def spare_made(self, event: SpareMade) -> None:
        """Take a made segment file into the reserve, or learn that there is no room for one."""
        self.cannot_grow = not event.made
        if event.made:
            self._log.spares.made(event.spare)
        else:
            self._log.spares.failed(event.spare)
            self._asks_after_ms = self._time.monotonic_ms() + SPARE_RETRY_MS


class Full(NamedTuple):
    """Nodes whose disks are full, and how much each of them is to free, at most."""

    nodes: tuple[int, ...]
    needed_bytes: int

    def __str__(self) -> str:
        if len(self.nodes) == 1:
            return f"node {self.nodes[0]} has a full disk"
        return f"nodes {' and '.join(map(str, self.nodes))} have full disks"


class FullDisks:
    """The nodes that are full, and whether this one `is_full`, which its logs tell; if it takes no
    publishes any more, `needed_bytes` are to be freed.
    """

    __slots__ = ("_said", "_time", "is_full", "needed_bytes")

    def __init__(self, time: Clocks) -> None:
        """Have room, as all others."""
        self.is_full = False
        self.needed_bytes = 0
        self._time = time
        #: By place, when it said last that its disk is full, and how much it needs.
        self._said: dict[int, tuple[int, int]] = {}

    def told(self, place: int, needed_bytes: int) -> None:
        """A shard of another node says that its disk is full."""
        self._said[place] = self._time.monotonic_ms(), needed_bytes

    def suits(self, group: Voting, voter: int) -> bool:
        """Whether a voter could lead a group for long: its disk has room, and its clock is near."""
        return node_of(voter) not in self._full() and self._time.is_near(group, voter)

    def short(self, led: Iterable[Voting]) -> dict[int, Full]:
        """Return by id those groups led here whose publishes no majority has room for, though this
        node has, and which nodes lack it.
        """
        found: dict[int, Full] = {}
        needs = {node: needed for node, needed in self._full().items() if needed}
        if not needs:
            return found
        for group in led:
            voters = group.node.configuration.voters
            others = {node_of(voter) for voter in voters if voter != group.voter}
            lacking = sorted(others & needs.keys())
            if 2 * (len(voters) - len(lacking)) <= len(voters):
                found[group.id] = Full(tuple(lacking), max(needs[node] for node in lacking))
        return found

    def _full(self) -> dict[int, int]:
        """Return by node that is full how many bytes it is to free; 0 while it takes publishes."""
        now_ms, found = self._time.monotonic_ms(), dict[int, int]()
        for place, (said_ms, needed) in self._said.items():
            if now_ms - said_ms <= _FULL_FORGET_MS:
                node = place_node(place)
                found[node] = max(needed, found.get(node, 0))
        return found


class Disk(Protocol):
    """A log of this shard, as far as admission knows it."""

    room: DiskRoom

    @property
    def led(self) -> list[Group]:
        """The groups of this log that are led here and that others could lead."""


class Stallable(Protocol):
    """A partition, as far as admission knows it."""

    group: Group

    def stall(self, error: Refused) -> None:
        """Answer those who wait for publishes with an error."""


class Admission:
    """Refuses publishes that would find no room on the disks of this node, or of a majority."""

    __slots__ = ("_budget", "_disks", "_full_clusters", "_full_disks", "_no_news", "_short",
                 "full_topics", "is_closed")  # fmt: skip

    def __init__(self, disks: Sequence[Disk], budget: Budget, full_disks: FullDisks) -> None:
        """Take publishes to the logs on `disks`, as long as `budget` and disks have room."""
        self._disks = disks
        self._budget = budget
        self._full_disks = full_disks
        #: The groups led here that other nodes' full disks keep from taking publishes.
        self._short: dict[int, Full] = {}
        #: By topic, why it takes no publishes, or no new clusters: its namespace has all it may.
        self.full_topics: Mapping[int, Refused] = {}
        self._full_clusters: Mapping[int, Refused] = {}
        #: Why no cluster begins here at all: there was no news of the metadata for long.
        self._no_news: Refused | None = None
        #: Whether this shard has handed over what it led, and takes nothing more.
        self.is_closed = False

    @property
    def needed_bytes(self) -> int:
        """The free space that full disks need before publishes are taken again; 0 if they are."""
        return sum(disk.room.needed_bytes for disk in self._disks)

    @property
    def short(self) -> Full | None:
        """Which other nodes' disks are full, so that publishes to groups led here are refused."""
        return max(self._short.values(), default=None)

    def check(self, group: int) -> None:
        """Raise `Unavailable` once this shard stops, `Overloaded` while disks have no room for
        publishes to a group; 0 stands for no group but the own disks.
        """
        if self.is_closed:
            raise Unavailable("this node is stopping: try another, or again shortly")
        for disk in self._disks:
            if disk.room.cannot_grow:
                disk.room.check(self._budget.used)
        if (full := self._short.get(group)) is not None:
            text = f"{full}: free space there or add disks; acks and reads go on"
            raise Overloaded(text, SPARE_RETRY_MS)

    def is_full(self, group: int) -> bool:
        """Return whether the namespace of a group may store no more."""
        return bool(self.full_topics) and topic_of(group) in self.full_topics

    def check_stored(self, group: int) -> None:
        """Raise `QuotaExceeded` while the namespace of a group may store no more. What was taken
        before is answered all the same: a batch that is sent again is no more bytes.
        """
        if self.full_topics and (error := self.full_topics.get(topic_of(group))) is not None:
            raise type(error)(str(error), error.detail)

    def check_cluster(self, group: int, is_known: bool) -> None:
        """Raise `QuotaExceeded` while the namespace of a group may have no more clusters, or
        `Unavailable` while none may begin here, unless this one `is_known` there. Partition 0 of a
        topic decides.
        """
        if is_known or partition_of(group):
            return
        if self._full_clusters or self._no_news is not None:
            error = self._no_news or self._full_clusters.get(topic_of(group))
            if error is not None:
                raise type(error)(str(error), error.detail)

    def hold_clusters(self, no_news: Refused | None) -> None:
        """Let no cluster begin from now on, which `no_news` explains; with None they may again."""
        self._no_news = no_news

    def limit(self, topics: Mapping[int, Refused], clusters: Mapping[int, Refused]) -> None:
        """Refuse publishes to these topics from now on, and new clusters of those, by id."""
        self.full_topics, self._full_clusters = topics, clusters

    def look_at_disks(self, partitions: Iterable[Stallable]) -> None:
        """See which disks are full. Answer those who wait for publishes that other nodes' full
        disks hold up: no majority may have had room for them.
        """
        full_disks = self._full_disks
        full_disks.is_full = any(disk.room.is_full for disk in self._disks)
        full_disks.needed_bytes = self.needed_bytes
        self._short = full_disks.short(chain.from_iterable(one.led for one in self._disks))
        for partition in partitions if self._short else ():
            if (full := self._short.get(partition.group.id)) is not None:
                text = f"{full}: free space there; writes under way may still be stored"
                partition.stall(Unavailable(text))
