"""The registers of a switch: the highest barriers that came by each input, and their minima."""

from __future__ import annotations

from dataclasses import dataclass

#: Registers begin so far in the past: below every barrier of the network, and far from the wrap.
START_NS = 3_600 * 1_000_000_000
#: Above each time.
_ABOVE_ALL = 1 << 64


@dataclass(slots=True)
class Input:
    """One input of a half: its registers, and whether they count."""

    epoch: int
    barrier: int
    commit: int
    heard_at: int
    #: How high the barrier was when it was last seen to have risen by an interval, and when.
    risen: int
    risen_at: int
    #: What a process was told to begin above. Until its clock has come so far, its barrier stands.
    floor: int = 0
    #: Whether packets are accepted, and the barrier is in the minimum.
    live: bool = True
    #: How many were.
    packets: int = 0
    #: What its beacons hold beside their barriers in this epoch, once one of them was checked.
    beacon: bytes = b""
    #: Whether the commit register no longer follows what comes in, and in which epoch it was last
    #: frozen.
    frozen: bool = False
    frozen_epoch: int = 0
    #: Whether the commit register is out of the minimum; and whether it was, and has not come up to
    #: the minimum yet.
    removed: bool = False
    is_behind: bool = False
    #: Whether the controller has fenced it, or holds it after its removal: it may not come back.
    held: bool = False
    #: When the port last came back, None if it never did; and how often in a row it fell silent
    #: soon after that. Until `held_until` it does not come back.
    returned_at: int | None = None
    relapses: int = 0
    held_until: int = 0

    def rise(self, barrier: int, interval: int, now: int) -> int:
        """Look how high the barrier is; return when it was last seen to have risen enough.

        A process that sends before its clock has come to the floor gives the stamps above it.
        """
        if barrier - self.risen >= interval or barrier - self.floor < interval:
            self.risen, self.risen_at = barrier, now
        return self.risen_at


class Half:
    """The up or the down half of a switch: registers and their minima."""

    def __init__(self, start: int) -> None:
        self.inputs: dict[int, Input] = {}
        self.barrier = start
        self.commit = start
        #: The last beacon of this half, and of which epoch and barriers: outputs share them.
        self.beacon = b""
        self.beacon_of = 0, 0, 0

    def add(self, neighbour: int, epoch: int, now: int) -> None:
        """Take another input. The minima stand still until its registers have passed them."""
        start = now - START_NS
        self.inputs[neighbour] = Input(epoch, start, start, now, start, now)

    def raise_to(self, one: Input, barrier: int, commit: int, now: int) -> bool:
        """Take the barriers of a packet; return whether a minimum of this half moved."""
        return self.take(one, barrier, commit, now) and self.aggregate(now)

    def take(self, one: Input, barrier: int, commit: int, now: int) -> bool:
        """Take the barriers of a packet; return whether a minimum may have moved by that."""
        one.heard_at = now
        may_move = False
        if barrier > one.barrier:
            may_move = one.barrier <= self.barrier
            one.barrier = barrier
        if commit > one.commit and not one.frozen:
            may_move = may_move or one.commit <= self.commit
            one.commit = commit
        return may_move

    def aggregate(self, now: int) -> bool:
        """Compute both minima anew; return whether one of them moved. They never decrease."""
        barrier = commit = _ABOVE_ALL
        for one in self.inputs.values():  # most packets of a network come through here
            if one.live and one.barrier < barrier:
                barrier = one.barrier
            if not one.removed and one.commit < commit:
                commit = one.commit
        if barrier == _ABOVE_ALL:
            barrier = now
        if commit == _ABOVE_ALL:
            commit = now
        moved = False
        if barrier > self.barrier:
            self.barrier, moved = barrier, True
        if commit > self.commit:
            self.commit, moved = commit, True
        return moved
