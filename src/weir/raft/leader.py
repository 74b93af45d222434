"""The role that extends the log: what it knows of each voter's log exists only here."""

from __future__ import annotations

from weir.raft.quorum import committed_index


class Leader:
    """The leader of one term. `first_index` is its NOOP, the first entry of that term."""

    __slots__ = ("_match", "announced", "fence", "first_index", "leader")

    def __init__(self, node: int, voters: tuple[int, ...], first_index: int, fence: int) -> None:
        self.leader = node
        self.first_index = first_index
        #: The highest fence that the votes carried which made this node leader.
        self.fence = fence
        #: Whether the host has been told, by Ready.became_leader.
        self.announced = False
        # The leader's own place starts at 0 like everyone's: it counts as one voter among others,
        # by what its disk holds and never by what it has merely proposed.
        self._match = dict.fromkeys(voters, 0)

    def durable(self, voter: int, index: int) -> int:
        """Note that `voter` holds the log durably through `index`; return what that commits, or 0.

        An entry of an older term may be durable on a majority and still be replaced, so it
        commits only together with an entry of this term. (§3.6.2, Figure 3.7)
        """
        self._match[voter] = index
        reached = committed_index(self._match.values())
        return reached if reached >= self.first_index else 0
