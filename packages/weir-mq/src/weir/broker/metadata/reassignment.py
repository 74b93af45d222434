"""How a group gets to where the registry wants it: its leader changes who belongs to it, in steps.

A node that is to hold a group first only learns. Once it has all, or that is on its way, those who
are to vote take over in one joint change from those who did. A leader that is to go hands over
first. So there are never fewer voters up to date than before.

Each step is decided only from what Raft knows at the moment, so the next leader can continue. An
operator sees how the replicas stand as those of them that are here see it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

import weir_raft as raft
from weir.broker.metadata.placement import Nodes, Placement
from weir.errors import BadRequest, Refused, Unavailable
from weir.model.ids import REGISTRY_GROUP, node_of
from weir.order.clock import Time
from weir.protocol.client.nodes import SETTLED_MAX, ReportSettled
from weir_raft.membership import Change, Configuration
from weir_raft.replication import ProgressState

#: How often a group is looked at that is on its way, or that another is to lead.
LOOK_EVERY_MS = 250
#: As often, so many of the others are looked at: of a thousand, each every four seconds.
LOOK_AT = 64
#: Groups of a shard that may learn at the same time: each is a copy that takes disk and network.
LEARNING_MAX = 4
#: The preferred leader must have been up to date for so long before leadership goes back to it.
STEADY_MS = 5_000
#: Leaderships that a shard gives back to preferred leaders: one in so long.
_DRIFT_EVERY_MS = 1_000
#: Entries that an up-to-date member may lack at a moment, because they are on their way.
_BEHIND_MAX = 256


class Transfer(msgspec.Struct, frozen=True):
    """Hand the leadership to this voter."""

    voter: int


def next_step(
    me: int,
    now: Configuration,
    voters: Placement,
    learners: Placement,
    is_current: Callable[[int], bool],
    is_near: Callable[[int], bool],
) -> Change | Transfer | None:
    """Return what the leader `me` is to do so that a group gets to `voters` and `learners`; None if
    it is there, or a member must catch up first: new voters must be up to date, and the next leader
    and a majority must be nearly so.
    """
    if now.joint:
        return None
    wanted = (*voters, *learners)
    if missing := tuple(member for member in wanted if member not in now.members):
        return Change(add_learners=missing)
    promoted = tuple(voter for voter in voters if voter not in now.voters)
    if not all(map(is_current, promoted)):
        return None
    demoted = tuple(voter for voter in now.voters if voter in learners)
    gone = tuple(member for member in now.members if member not in wanted)
    if me in gone or me in demoted:
        heirs = [voter for voter in voters if voter in now.voters and is_near(voter)]
        if heirs:
            return Transfer(heirs[0])
        voters, demoted, gone = (*now.voters, *promoted), (), ()
    if 2 * sum(map(is_near, voters)) <= len(voters):
        return None  # nothing could be committed while they catch up
    if promoted or demoted or gone:
        return Change(promoted, demoted, gone)
    return None


def current_members(node: raft.Node) -> Callable[[int], bool]:
    """Return what tells whether a member has all but the newest entries of the group led here."""
    least = node.log.committed - _BEHIND_MAX
    current = {
        one.member
        for one in node.progress()
        if one.state is ProgressState.REPLICATE and one.match >= least
    }
    return current.__contains__


def near_members(node: raft.Node) -> Callable[[int], bool]:
    """Return what tells whether a member has all within moments: what is committed is there or on
    its way. The group stands still while a new leader is waited for, or a vote that counts anew.
    """
    is_current, all_sent = current_members(node), node.log.committed
    near = {
        one.member for one in node.progress() if one.sent >= all_sent and is_current(one.member)
    }
    return near.__contains__


class Changing(Protocol):
    """What a group drives."""

    def changing(self) -> None:
        """The members are about to be changed. Raises `Refused` if that cannot be just now."""


class Led(Protocol):
    """A group that is led here."""

    id: int
    #: The id by which the group knows this node.
    voter: int
    node: raft.Node

    @property
    def machine(self) -> Changing:
        """What it drives."""

    @property
    def leads(self) -> bool:
        """Whether this node leads the group."""

    def process_ready(self) -> None:
        """Go on, for the node was told something."""


class Fitness(Protocol):
    """Knows of nodes that should not lead."""

    def suits(self, group: Led, voter: int, /) -> bool:
        """Return whether a voter could lead a group for long, whatever its log."""


class Anybody:
    """Takes nobody to be less fit to lead than others."""

    def suits(self, group: Led, voter: int) -> bool:
        """Return True."""
        return True


ANYBODY = Anybody()


class GroupMover:
    """Looks at the groups that this shard leads, again and again, and moves what is to be moved."""

    __slots__ = ("_astray", "_drift_ms", "_due_ms", "_fitness", "_learning", "_left", "_steady",
                 "_time")  # fmt: skip

    def __init__(self, time: Time, fitness: Fitness = ANYBODY) -> None:
        """Look at once; a node that `fitness` does not accept gets no leadership back."""
        self._time = time
        self._fitness = fitness
        self._due_ms = self._drift_ms = 0
        self._learning = 0
        #: Groups led here that were not where they are wanted when they were last looked at.
        self._astray: dict[int, None] = {}
        #: Groups that are yet to have their turn before all begin again.
        self._left: list[int] = []
        #: Since when the preferred leader of a group that is led here could lead it, and what was
        #: committed then, by group.
        self._steady: dict[int, tuple[int, int]] = {}

    @property
    def moving(self) -> int:
        """How many groups led here are not yet where they are wanted."""
        return len(self._astray)

    @property
    def is_due(self) -> bool:
        """Whether it is time to look."""
        return self._time.monotonic_ms() >= self._due_ms

    def turn(self, here: Iterable[int], unsettled: Iterable[int]) -> list[int]:
        """Return which groups to `look` at now, in rising order: those with something to do, and
        as many of those that are `here` as cost little, so that each has its turn.
        """
        if not self._left:
            self._left = list(here)
        some, self._left = self._left[:LOOK_AT], self._left[LOOK_AT:]
        return sorted({REGISTRY_GROUP, *some, *unsettled, *self._astray, *self._steady})

    def look(self, led: Iterable[Led], nodes: Nodes) -> None:
        """Take the next step with each of the groups led here whose `turn` it is."""
        now = self._time.monotonic_ms()
        self._due_ms = now + LOOK_EVERY_MS
        self._learning = 0
        self._astray.clear()
        before, self._steady = self._steady, {}
        for group in led:
            voters = nodes.voters(group.id)
            if not voters:
                continue
            learners = nodes.learners(group.id)
            there = group.node.configuration
            if set(there.voters) == set(voters) and set(there.learners) == set(learners):
                if not there.joint:
                    self._drift(group, voters, before, now)
                continue
            self._astray[group.id] = None
            self._move(group, there, voters, learners)

    def _move(
        self, group: Led, there: Configuration, voters: Placement, learners: Placement
    ) -> None:
        if set(there.learners) - set(learners):  # they are to vote, or go
            self._learning += 1
        me = group.voter
        is_current, is_near = current_members(group.node), near_members(group.node)
        step = next_step(me, there, voters, learners, is_current, lambda m: m == me or is_near(m))
        if isinstance(step, Change) and step.add_learners and not (step.add_voters or step.remove):
            if self._learning >= LEARNING_MAX:
                return
            self._learning += 1
        if step is not None:
            take(group, step)

    def _drift(
        self, group: Led, voters: Sequence[int], before: dict[int, tuple[int, int]], now: int
    ) -> None:
        """Give the leadership back to the preferred leader, once that is safe to last: a disk that
        hangs acknowledges nothing meanwhile.
        """
        preferred = voters[0]
        if preferred == group.voter or not self._fitness.suits(group, preferred):
            return
        if not near_members(group.node)(preferred):
            return
        node = group.node
        since, committed = self._steady[group.id] = before.get(group.id, (now, node.log.committed))
        has = max(one.match for one in node.progress() if one.member == preferred)
        late = now - since >= STEADY_MS and now - self._drift_ms >= _DRIFT_EVERY_MS
        if late and has >= committed:
            self._drift_ms = now
            del self._steady[group.id]  # if it fails, not at once again
            take(group, Transfer(preferred))


def report_of(led: Iterable[Led], nodes: Nodes) -> ReportSettled | None:
    """Return what the registry is to be told of groups led here that were not where it wants them:
    who votes in those that are by now, and who is learning in those that somebody comes back to.
    """
    rows, learning = [], []
    for group in led:
        there = group.node.configuration
        if there.joint:
            continue
        if set(there.voters) == set(nodes.voters(group.id)):
            rows.append((group.id, list(there.voters)))
        elif nodes.returning(group.id):
            learning.append((group.id, list(there.learners)))
    if not rows and not learning:
        return None
    return ReportSettled(rows[:SETTLED_MAX], learning[:SETTLED_MAX])


def take(group: Led, step: Change | Transfer) -> bool:
    """Let Raft begin with a step; False if it cannot just now, and will be asked again."""
    try:
        if isinstance(step, Transfer):
            group.node.transfer_leadership(step.voter)
        else:
            group.machine.changing()
            group.node.change(step)
    except (raft.NotLeader, raft.NotReady, raft.Overloaded, Refused):
        return False
    group.process_ready()
    return True


def heir(group: Led, node: int, nodes: Nodes) -> int:
    """Return the voter of a node; of the group's preferred leader if `node` is 0.

    Raises `BadRequest` if the node could not lead, and `Unavailable` while it is catching up:
    nothing is taken in until it has all, or the leader gives up.
    """
    there = group.node.configuration.voters
    if node:
        found = nodes.voter(group.id, node)
        if found not in there:
            holders = ", ".join(map(str, sorted(map(node_of, there))))
            raise BadRequest(
                f"node {node} has no vote in this partition: only nodes {holders} could lead it"
            )
    else:
        voters = nodes.voters(group.id)
        found = voters[0] if voters and voters[0] in there else there[0]
    is_near = near_members(group.node)
    for one in group.node.progress():
        # A member that is probed is not known yet, or silent: it has its chance.
        is_known = one.state is not ProgressState.PROBE
        if one.member == found and is_known and not is_near(found):
            raise Unavailable(
                f"node {node_of(found)} lacks entries of this partition that its leader has: it "
                "can lead once it has caught up"
            )
    return found


def give_away(led: Iterable[Led], fit: Callable[[Led, int], bool] = ANYBODY.suits) -> None:
    """Let others that are `fit` lead groups that are led here, where one could within moments."""
    for group in led:
        is_near = near_members(group.node)
        others = (voter for voter in group.node.configuration.voters if voter != group.voter)
        heirs = [voter for voter in others if is_near(voter) and fit(group, voter)]
        if heirs:
            # Each time another, so that not all goes to one node.
            take(group, Transfer(heirs[group.id % len(heirs)]))


class Standing(msgspec.Struct):
    """Groups of one shard: how many it holds and leads, and how many know no leader here.

    `lagging` counts, by node, the replicas of groups led here that are not up to date.
    """

    held: int = 0
    led: int = 0
    leaderless: int = 0
    lagging: Counter[int] = msgspec.field(default_factory=Counter)


def standing_of(groups: Iterable[Led]) -> Standing:
    """Return how the groups of a shard stand now."""
    found = Standing()
    for group in groups:
        found.held += 1
        # A node that has yet to join a group knows nobody there.
        found.leaderless += bool(group.node.configuration.members) and not group.node.leader
        found.led += group.leads
        found.lagging.update(behind(group))
    return found


def holders(group: Led) -> list[int]:
    """Return the nodes that hold a group, rising; [] as far as none is known here."""
    return sorted({node_of(member) for member in group.node.configuration.members})


def behind(group: Led) -> list[int]:
    """Return the nodes whose replica of a group is not up to date; [] where it is not led here."""
    node = group.node
    if not group.leads:
        return []
    is_current = current_members(node)
    members = node.configuration.members
    return sorted(node_of(m) for m in members if m != group.voter and not is_current(m))
