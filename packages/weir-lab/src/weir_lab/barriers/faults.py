"""The rules of "Barrier safety", each taken away: what the explorer and scripts must find.

A fault is another actor, or a patch of the real classes for leading, voting and promising.
"""

from __future__ import annotations

from typing import Protocol

import weir_raft as raft
from weir.order.barrier import Barrier
from weir_lab.barriers.actor import OrderedActor
from weir_raft.config import Promise
from weir_raft.core import Core
from weir_raft.election import Candidate
from weir_raft.groups import multi
from weir_raft.groups.multi import Multi
from weir_raft.groups.slots import GroupSlot, GroupSlots
from weir_raft.leader import Leader
from weir_raft.membership import VoteResult


class Patching(Protocol):
    """What pytest's monkeypatch can do."""

    def setattr(self, target: object, name: str, value: object) -> None:
        """Replace an attribute until the end of the test."""


class Forgetful(OrderedActor):
    """A voter that starts again stands by nothing it promised (counterexample 2)."""

    def start(self) -> None:
        """Start with no bound; what lies on the disk is still there for the next start."""
        bound, self._durable_bound = self._durable_bound, 0
        super().start()
        self._durable_bound = bound
        self.multi.fence_bound = bound


class Hasty(OrderedActor):
    """A voter promises further than a bound on its disk."""

    def tick(self, elapsed_ms: int) -> None:
        """Promise up to what is being written."""
        super().tick(elapsed_ms)
        self.multi.fence_bound = max([self.multi.fence_bound, *self._bounds])

    def sync(self, count: int) -> None:
        """Keep that when something is durable."""
        bound = self.multi.fence_bound
        super().sync(count)
        self.multi.fence_bound = max(bound, self.multi.fence_bound)


class Heedless(OrderedActor):
    """A leader goes on to stamp below what it asked others to promise."""

    def ask(self) -> None:
        """Ask, and do not hold itself to that."""
        promised = self.highest.promised
        super().ask()
        self.highest.promised = promised


class Blind(OrderedActor):
    """A new leader stamps above its log, and not above what its voters had promised."""

    def leads(self, leadership: raft.Leadership) -> None:
        """Take over without the voters' promises."""
        super().leads(raft.Leadership(leadership.term, 0))


class Short(OrderedActor):
    """A new leader stamps above what its voters had promised, and not above its log."""

    def leads(self, leadership: raft.Leadership) -> None:
        """Take over without a look at the log."""
        tail, self.tail = self.tail, {}
        last, self.last_stamp = self.last_stamp, 0
        super().leads(leadership)
        self.tail, self.last_stamp = tail, last


class Eager(OrderedActor):
    """A leader hands out what is promised above what it stamped and has not committed."""

    def hand_out(self) -> Barrier:
        """Forget what is not committed."""
        tail, self.tail = self.tail, {}
        barrier = super().hand_out()
        self.tail = tail
        return barrier


class Placeless(OrderedActor):
    """A barrier is said to be complete through an offset that is not reached yet."""

    def hand_out(self) -> Barrier:
        """Name the offset one too low: an entry that lies there was never counted."""
        barrier = super().hand_out()
        return Barrier(barrier.stamp, max(barrier.through - 1, 0))


class Unstamped(OrderedActor):
    """Nothing is stamped in front of a change of the members (counterexample 3)."""

    def change(self, change: raft.Change) -> None:
        """Propose the change by itself."""
        self.node.change(change)


def without_an_entry_of_its_own_term(patch: Patching) -> None:
    """A leader promises before an entry of its own term is committed (counterexample 1)."""
    patch.setattr(multi, "_is_established", lambda node_state, leader: True)


def by_the_new_half(patch: Patching) -> None:
    """In a joint configuration promises count by one of its halves."""
    honest = GroupSlots.lead

    def lead(self: GroupSlots, slot: GroupSlot, leader: Leader) -> None:
        honest(self, slot, leader)
        del slot.halves[1:]

    patch.setattr(GroupSlots, "lead", lead)


def with_the_learners(patch: Patching) -> None:
    """The promises of learners count towards the majority of the voters."""
    honest = Multi.fenced

    def fenced(self: Multi, group: int) -> int:
        fence, slot = honest(self, group), self._slots.all[group]
        leader = slot.established
        if leader is None or leader is not slot.node.core.state or not slot.peers:
            return fence
        own = min(self.fence_bound, self.fence_asked)
        contacts = [leader.members[id].contact for id in slot.node.configuration.learners]
        learners = [
            link.outward.promises(group)
            for link in self._slots.links.values()
            if any(link.outward.contact is contact for contact in contacts)
        ]
        fences = []
        for half in slot.halves:
            promised = [link.outward.promises(group) if link else own for link in half]
            fences.append(sorted(promised + learners, reverse=True)[len(half) // 2])
        return min(fences)

    patch.setattr(Multi, "fenced", fenced)


def without_the_own_promise(patch: Patching) -> None:
    """A new leader does not count what it promised itself (counterexample 2)."""
    honest = Candidate.voted

    def voted(self: Candidate, voter: int, granted: bool, fence: int) -> VoteResult:
        return honest(self, voter, granted, 0 if voter == self._node_state.id else fence)

    def take_leadership(self: Core) -> raft.Leadership | None:
        state = self.state
        if not isinstance(state, Leader) or state.announced:
            return None
        state.announced = True
        return raft.Leadership(self.node_state.term, state.fence)

    patch.setattr(Candidate, "voted", voted)
    patch.setattr(Core, "take_leadership", take_leadership)


def unsaid(patch: Patching) -> None:
    """Votes say nothing of promises that were given since the start."""
    patch.setattr(Promise, "raise_to", lambda self, fence: None)


#: What is missing, by a name: an actor that does without it.
ACTORS: dict[str, type[OrderedActor]] = {
    actor.__name__: actor
    for actor in (Forgetful, Hasty, Heedless, Blind, Short, Eager, Placeless, Unstamped)
}
#: The same for patches.
PATCHES = {
    patch.__name__: patch
    for patch in (
        without_an_entry_of_its_own_term, by_the_new_half, with_the_learners,
        without_the_own_promise, unsaid,
    )
}  # fmt: skip
