"""The role every node starts in: it answers others and waits."""

from __future__ import annotations

from weir.raft.storage import NOBODY


class Follower:
    """A voter that neither leads nor seeks to; what it hears from a leader belongs here."""

    __slots__ = ("leader",)

    def __init__(self) -> None:
        self.leader = NOBODY

    def tick(self) -> bool:
        """Whether to campaign now: yes, because a lone voter has nobody to wait for. (§3.4)"""
        return True
