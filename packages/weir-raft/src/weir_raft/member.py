"""One member as its leader knows it: where its log stands, and what is on the way to it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from weir_raft.context import Contact
from weir_raft.storage import Snapshot


class ProgressState(Enum):
    """How a leader sends to a member."""

    #: One message at a time, to find where the logs agree.
    PROBE = "probe"
    #: A window of messages ahead of their replies.
    REPLICATE = "replicate"
    #: What it needs is no longer in the log.
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Progress:
    """One member as its leader sees it."""

    member: int
    #: Through here its log is durable and the same as the leader's.
    match: int
    state: ProgressState
    #: Bytes sent and not acknowledged.
    inflight_bytes: int
    #: Through here entries are there or on their way.
    sent: int


class Member:
    """What a leader sends next to one member, and how much more it may."""

    __slots__ = (
        "_flights",
        "committed",
        "contact",
        "id",
        "inflight_bytes",
        "load",
        "match",
        "next",
        "nudge_at",
        "paused",
        "position",
        "reread",
        "round",
        "since",
        "snapshot",
        "state",
        "vouched",
    )

    def __init__(self, id: int, next_index: int, contact: Contact, now: int) -> None:
        self.id = id
        self.contact = contact
        #: When this leader first counted on it.
        self.since = now
        self.match = 0
        #: The most it ever acknowledged, whatever its disk lost since: so far commits may count it.
        self.vouched = 0
        self.next = next_index
        self.state = ProgressState.PROBE
        #: A probe is under way: nothing more is sent before its reply or the next nudge.
        self.paused = False
        self.nudge_at = 0
        #: Through here it knows the log to be committed.
        self.committed = 0
        #: The newest round of heartbeats it answered.
        self.round = 0
        #: The Load under way for it; 0: none.
        self.load = 0
        self.inflight_bytes = 0
        self._flights: deque[tuple[int, int]] = deque()  # last index and bytes of each Append
        #: The snapshot it is sent; None while the host has yet to give one.
        self.snapshot: Snapshot | None = None
        #: The bytes of it that were sent, and whether it was asked how much of that came.
        self.position = 0
        self.reread = False

    def heard_since(self, time: int) -> bool:
        """Whether it was heard of later than `time`, a new leader's good faith included."""
        return self.contact.heard_at > time or self.since > time

    def sent(self, last_index: int, size: int) -> None:
        """Entries through `last_index` are on their way."""
        self.next = last_index + 1
        self.inflight_bytes += size
        self._flights.append((last_index, size))

    def acknowledged(self, index: int) -> None:
        """Its log holds the leader's durably through `index`: send on from there."""
        self.match = max(self.match, index)
        self.vouched = max(self.vouched, index)
        if self.state is ProgressState.PROBE:
            self.next = self.match + 1
            self._become(ProgressState.REPLICATE)
            return
        self.next = max(self.next, self.match + 1)
        flights = self._flights
        while flights and flights[0][0] <= index:
            self.inflight_bytes -= flights.popleft()[1]

    def probe(self, next_index: int) -> None:
        """Find out anew where the logs agree, beginning before `next_index`."""
        self.next = max(next_index, self.match + 1)
        self._become(ProgressState.PROBE)

    def forgets(self, index: int) -> None:
        """Its disk may have lost what it acknowledged behind `index`: begin there."""
        self.match = min(self.match, index)
        self.probe(index + 1)

    def need_snapshot(self) -> None:
        """Its next entry is gone: only a snapshot can help."""
        self._become(ProgressState.SNAPSHOT)

    def _become(self, state: ProgressState) -> None:
        self.state = state
        self.paused = False
        self.load = 0
        self.inflight_bytes = 0
        self._flights.clear()
        self.snapshot = None
        self.position = 0
        self.reread = False

    def progress(self) -> Progress:
        """This, for the host to show."""
        return Progress(self.id, self.match, self.state, self.inflight_bytes, self.next - 1)
