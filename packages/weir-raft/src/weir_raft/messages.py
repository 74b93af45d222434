"""What nodes of a group tell each other. A host carries them and may lose, repeat or reorder them.

`sender` and `to` are the ids of members; `term` is the sender's, but for pre-votes, which speak of
the term that an election would open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from weir_raft.membership import Configuration
from weir_raft.storage import Entry


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for a vote; `last_*` is the end of its log. (§3.4, Figure 3.1)"""

    to: int
    sender: int
    term: int
    last_index: int
    last_term: int
    #: Only whether a vote would be granted; nobody's term changes. (§9.6)
    pre: bool = False
    #: The leader itself asked for this election, so nobody protects it. (§3.10)
    forced: bool = False


@dataclass(frozen=True, slots=True)
class VoteReply:
    """A durable vote, or a refusal; a granted vote carries the voter's fence, a pre-vote 0."""

    to: int
    sender: int
    term: int
    granted: bool
    pre: bool = False
    fence: int = 0


class Append(NamedTuple):
    """Entries that follow (prev_index, prev_term), and how far the log is committed. (§3.5)"""

    to: int
    sender: int
    term: int
    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int
    #: A majority without whoever gets this holds an entry of this term, and all that it ever
    #: acknowledged to this leader: so all that was ever committed by its help.
    spared: bool = False


class AppendReply(NamedTuple):
    """Through `index` the sender's log is durable and the same as the leader's.

    Rejected: there is no entry (index, prev_term) in it; by the hint, the two logs can agree at
    `hint_index`, whose entry is of `hint_term` there, or below.
    """

    to: int
    sender: int
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0
    #: Through here the sender knows the log to be committed.
    commit: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A leader without a link of its own to beat on says that it is there. (§3.4)"""

    to: int
    sender: int
    term: int
    commit: int
    #: Counts the leader's rounds; a reply to it confirms the leadership then. (§6.4)
    round: int


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The sender follows, as of `round`."""

    to: int
    sender: int
    term: int
    round: int


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """What a snapshot is, without its bytes: see storage.Snapshot."""

    index: int
    term: int
    configuration: Configuration
    base_index: int
    base_term: int
    #: Bytes of the whole snapshot.
    size: int


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """A piece of a snapshot: its bytes from `position` on. (§5.2, Figure 5.3)"""

    to: int
    sender: int
    term: int
    snapshot: SnapshotMeta
    position: int
    data: bytes
    done: bool
    #: As in Append.
    spared: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotReply:
    """The sender has the snapshot's bytes below `position`, in memory; rejected: not this one."""

    to: int
    sender: int
    term: int
    position: int
    rejected: bool = False


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader hands over: campaign at once. (§3.10)"""

    to: int
    sender: int
    term: int


Message = (
    VoteRequest
    | VoteReply
    | Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | InstallSnapshot
    | SnapshotReply
    | TimeoutNow
)


class Beat(NamedTuple):
    """One link's heartbeat for all groups led here with a member there."""

    #: Rises by one or more with every beat.
    number: int
    #: The number of the beat that told what is led now.
    version: int
    #: (group, term, leader's id) of every group, only when the version is new; else None.
    led: tuple[tuple[int, int, int], ...] | None
    #: The fence that the host would like promised; opaque.
    fence: int = 0


class BeatReply(NamedTuple):
    """The answer to beat `number`: of the groups in `version` all follow but the dropped ones."""

    number: int
    #: The version of `led` that this side knows; 0 asks for the whole.
    version: int
    #: (group, term): not followed here; a term above the leader's ends its leadership.
    dropped: tuple[tuple[int, int], ...]
    #: What is promised of the fence asked for: at most that.
    fence: int = 0


LinkMessage = Beat | BeatReply
