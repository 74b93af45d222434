"""What a scan learns of the groups: entries, hard states, installed snapshots, and what is lost.

A group that cannot be known to have all that it needs to go on is *damaged*: it may neither vote
nor lead. Where a hole hides whose frames it held, that is every group that began before it, and
every group that the log does not know, for good: the checkpoint remembers where the hole was.
"""

from __future__ import annotations

from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import CHECKPOINT, UNKNOWN, Checkpoint, Kept
from weir.storage.format.frame import Frame, Kind
from weir.storage.format.record import HardState
from weir.storage.format.rows import GONE
from weir.storage.format.segment import Segment
from weir.storage.format.snapshots import Gathering, Whole
from weir.storage.scan.class_scan import FoundCopies
from weir.storage.scan.entry_merge import Joining


class GroupScan:
    """The groups of one log, as the frames that a scan hands over tell of them."""

    def __init__(
        self, log: int, found: Checkpoint | None, copies: FoundCopies, holes: list[LogDamaged]
    ) -> None:
        """Begin with what the checkpoint says. `holes` is the scan's list of damaged places."""
        self.hard_states: dict[int, HardState] = {}
        #: What groups lost that they need to go on, and those of them that may have lost a vote.
        self.damage: dict[int, LogDamaged] = {}
        self.states_lost: set[int] = set()
        #: Those that lost a whole state, of which no header tells what it was.
        self._bereft: set[int] = set()
        #: By group, a snapshot that was installed and that the checkpoint does not hold.
        self.snapshots: dict[int, Whole] = {}
        #: The last place that may have held frames of any group; 0 if there was none.
        self.lost_at = found.lost_at if found else 0
        self.lost: LogDamaged | None = None
        self.replay = found.replay if found else 0
        if self.lost_at:
            reason = "an earlier start found a hole there, and could not tell whose frames it held"
            self.lost = LogDamaged(log, CHECKPOINT, self.lost_at, reason)
        self._gathering = Gathering()
        #: What the checkpoint says, and of groups that began anew behind it, how they do.
        self._kept: dict[int, Kept] = dict(found.groups) if found else {}
        self.joining = Joining(log, self._kept, copies, holes, self.replay)
        self.index = self.joining.index
        for group, kept in self._kept.items():
            if kept.start != GONE and any(kept.hard_state):
                self.hard_states[group] = kept.hard_state

    # -- frames ------------------------------------------------------------------------------

    def take(self, segment: Segment, frame: Frame, payload: memoryview) -> None:
        """Take a sound frame of a group."""
        if not self._counts(frame):
            return
        if frame.kind is Kind.HARD_STATE:
            state = HardState.unpack(payload)
            self.hard_states[frame.group] = _joined(self.hard_states.get(frame.group), state)
        elif frame.kind is Kind.SNAPSHOT:
            self._install(frame, payload)
        else:
            self.joining.add(segment, frame, frame.position)

    def lose(self, segment: Segment, frame: Frame, error: LogDamaged) -> None:
        """Take note of what a frame with a damaged payload held, as its header says."""
        if not self._counts(frame):
            return
        group, kept = frame.group, self._kept.get(frame.group, UNKNOWN)
        if frame.kind is Kind.HARD_STATE:
            if frame.position >= self.replay:
                self.damage.setdefault(group, error)
                self.states_lost.add(group)
        elif frame.kind is Kind.SNAPSHOT:
            if frame.index > kept.applied:
                self._restart(group, Kept(0, 0, 0, 0, 0, -1, -1, frame.position))
                self.damage.setdefault(group, error)
                self._bereft.add(group)
        elif kept.start <= frame.index and not self.joining.stale(frame):
            self.joining.add(segment, frame, frame.position)
            self.joining.lose(frame)
            if frame.index > kept.applied:
                self.damage.setdefault(group, error)

    def lose_all(self, error: LogDamaged, position: int) -> None:
        """Nobody knows whose frames lay in a place that reaches up to a position at or above
        `replay`, however far below it began.
        """
        self.lost_at = max(self.lost_at, position)
        self.lost = error

    def _counts(self, frame: Frame) -> bool:
        """Whether a frame is of its group as that began last; one of a group that is gone begins
        it anew.
        """
        kept = self._kept.get(frame.group, UNKNOWN)
        if frame.position < kept.floor:
            return False
        if kept.start == GONE:
            self._kept[frame.group] = UNKNOWN._replace(floor=kept.floor)
        return True

    def _install(self, frame: Frame, payload: memoryview) -> None:
        """Begin a group anew with a snapshot, when all of it is there."""
        whole = self._gathering.take(frame, payload)
        group, kept = frame.group, self._kept.get(frame.group, UNKNOWN)
        if whole is None or (whole.floor == kept.floor and frame.index <= kept.applied):
            return
        base = whole.base
        first = base.index + 1
        self._restart(group, Kept(0, 0, 0, first, 0, -1, -1, whole.floor, 0, base.term))
        self.hard_states.pop(group, None)
        if any(whole.hard_state):
            self.hard_states[group] = whole.hard_state
        self.snapshots[group] = whole
        self.damage.pop(group, None)
        self.states_lost.discard(group)
        self._bereft.discard(group)

    def _restart(self, group: int, kept: Kept) -> None:
        """Let nothing count of a group that was taken so far."""
        self._kept[group] = kept
        self.snapshots.pop(group, None)
        self.joining.restart(group, kept.start, kept.floor, kept.before)

    # -- in the end --------------------------------------------------------------------------

    def finish(self, tail: int) -> None:
        """All is taken, and the log ends at `tail`. Raises `LogDamaged` where an entry is missing
        and nothing says why.
        """
        self.joining.finish()
        for group in self.index.keys() | self.hard_states.keys():
            if self.lost is not None and self._floor(group) <= self.lost_at:
                self.damage.setdefault(group, self.lost)
                self.states_lost.add(group)
        for group in list(self.damage):
            applied = self._kept.get(group, UNKNOWN).applied
            if self._is_mendable(group) and max(self.rotten(group), default=0) <= applied:
                del self.damage[group]  # what it lost was superseded
        # A power cut may have taken what began a group, though a checkpoint knows of it.
        for index in self.index.values():
            index.floor = min(index.floor, tail)

    def rotten(self, group: int) -> tuple[int, ...]:
        """Return the entries of a group that it lacks, if their payloads are all that is damaged:
        their headers say what they were.
        """
        return self.joining.rotten(group) if self._is_mendable(group) else ()

    def _is_mendable(self, group: int) -> bool:
        return group not in self.states_lost and group not in self._bereft

    def floors(self, tail: int) -> dict[int, int]:
        """Return, by group, the position from which on its frames count; of the others all do."""
        return {g: min(kept.floor, tail) for g, kept in self._kept.items() if kept.floor}

    def installed(self) -> dict[int, tuple[int, int]]:
        """Return, by group, position and index of a snapshot that no checkpoint holds."""
        return {g: (whole.floor, whole.state.index) for g, whole in self.snapshots.items()}

    def _floor(self, group: int) -> int:
        return self._kept.get(group, UNKNOWN).floor


def _joined(one: HardState | None, other: HardState) -> HardState:
    """Return what both say: the higher term with its vote, the higher fence.

    A checkpoint may hold a later hard state than the frames that a power cut has left.
    """
    if one is None:
        return other
    term, vote = max(one[:2], other[:2])
    return HardState(term, vote, max(one.fence, other.fence))
