"""Rehearsals of the barrier rule: executions of ordered actors, explored step by step."""

from __future__ import annotations

import weir_raft as raft
from weir_lab.barriers.actor import BarrierChecks, OrderedActor
from weir_raft.testing.checks import Checks
from weir_raft.testing.rehearsal import STEPS, Rehearsal

#: How much happens in a seed.
LENGTH = 1_500
_WEIGHTS = {
    **STEPS,
    **{"tick": 40, "sync": 90, "deliver": 260, "propose": 16, "ask": 16, "hand_out": 24},
    **{"crash": 2, "start": 6, "cut": 1, "heal": 6, "campaign": 2, "jump": 2, "compact": 2},
    **{"change": 3, "read": 0},
}
#: Three sorts of days: of all troubles, of crashes on slow disks, of members that come and go.
_DAYS = (
    _WEIGHTS,
    {
        **_WEIGHTS,
        "crash": 5,
        "start": 12,
        "sync": 40,
        "campaign": 6,
        "jump": 4,
        "propose": 4,
        "drop": 8,
    },
    {**_WEIGHTS, "change": 8, "swap": 6, "cut": 3, "campaign": 5, "jump": 5, "propose": 3},
)


class OrderedRehearsal(Rehearsal):
    """What `Rehearsal` has, and questions for promises, barriers and clocks."""

    actor: type[OrderedActor] = OrderedActor

    def _make(self, settings: raft.Config, kept_entries: int) -> OrderedActor:
        return self.actor(settings, self.barriers, self.post, kept_entries, self._post_link)

    def _check(self, name: str) -> Checks:
        self.barriers = BarrierChecks(name)
        return self.barriers

    def of(self, id: int) -> OrderedActor:
        """One of the actors."""
        actor = self.actors[id]
        assert isinstance(actor, OrderedActor)
        return actor

    @property
    def leaders(self) -> list[OrderedActor]:
        """The nodes that lead, or still believe so."""
        up = (self.of(id) for id, actor in self.actors.items() if actor.up)
        return [actor for actor in up if actor.node.role is raft.Role.LEADER]

    # What may happen

    def _propose(self) -> None:
        for actor in self.leaders:
            if actor.node.accepts:
                self._proposed += 1
                actor.propose(self._proposed)
                actor.serve()

    def _ask(self) -> None:
        for actor in self.leaders:
            actor.ask()
            actor.serve()

    def _hand_out(self) -> None:
        for actor in self.leaders:
            self.barriers.hand_out(actor.hand_out())

    def _campaign(self) -> None:
        if actor := self._any():
            actor.node.campaign()
            actor.serve()

    def _drop(self) -> None:
        """Entries are lost, and beats are not: they are on different connections."""
        self.mail = [m for m in self.mail if not isinstance(m, raft.Append)]

    def _swap(self) -> None:
        """All spare members are to come in, and those who are to go hear nothing of it."""
        leader = self._leader()
        if leader is None or leader.node.configuration.joint:
            return
        voters = leader.node.configuration.voters
        spare = tuple(id for id in self.actors if id not in voters)
        gone = tuple(id for id in voters if id != leader.id)[: len(spare)]
        try:
            leader.change(raft.Change(add_voters=spare, remove=gone))
        except (raft.NotReady, raft.InvalidChange):
            return
        for id in gone:
            self.severed |= {(leader.id, id), (id, leader.id)}
        leader.serve()

    def _jump(self) -> None:
        """A clock is set: by a little, or by hours."""
        actor = self.of(self.dice.choice(sorted(self.actors)))
        most = self.dice.choice((300, 2_000, 2_000_000))
        actor.wall_ms = max(actor.wall_ms + self.dice.randint(-most, most), 1_000_000)

    # What is written as it happens

    def keep_apart(self, *sides: tuple[int, ...]) -> None:
        """Let only members of one side reach each other."""
        self.severed = {
            (one, other)
            for one in self.actors
            for other in self.actors
            if one != other and not any(one in side and other in side for side in sides)
        }

    def flow_without_entries(self) -> None:
        """Deliver everything but entries until nothing moves; no time passes."""
        for _ in range(100):
            for actor in self.actors.values():
                if actor.up:
                    actor.serve()
                    actor.sync(len(actor.unsynced))
                    actor.serve()
            self._drop()
            mail, self.mail = self.mail, []
            if not mail:
                return
            for message in mail:
                self.hand_over(message)

    def elect(self, id: int, *, entries: bool = True) -> OrderedActor:
        """Let `id` stand, as one does to whom leadership is handed, and be elected by its side."""
        actor = self.of(id)
        term = max(other.node.term for other in self.actors.values() if other.up)
        actor.node.step(raft.TimeoutNow(id, actor.node.leader or id, max(term, actor.node.term)))
        if entries:
            self.flow()
        else:
            self.flow_without_entries()
        assert actor.node.role is raft.Role.LEADER, f"{self.seed}: {id} is not elected"
        return actor

    def promise(self, id: int, *, entries: bool = True) -> None:
        """Let a leader ask for promises, take the answers, and tell a reader."""
        self.of(id).ask()
        if entries:
            self.flow()
        else:
            self.flow_without_entries()
        self.barriers.hand_out(self.of(id).hand_out())

    def publish(self, id: int) -> None:
        """Let a leader append an entry, and everybody that it reaches take it."""
        self._proposed += 1
        self.of(id).propose(self._proposed)
        self.flow()


class Explorer(OrderedRehearsal):
    """A group of a shape drawn by the seed, on a day drawn by it."""

    def __init__(self, seed: int, actor: type[OrderedActor] = OrderedActor) -> None:
        """Make a group of `actor`s whose clocks differ by seconds."""
        voters, spare, kept = (
            ((1, 2, 3), (), 0), ((1, 2, 3, 4, 5), (), 0), ((1, 2, 3), (4, 5), 0),
            ((1, 2, 3), (4, 5), 15),
        )[seed % 4]  # fmt: skip
        self.actor = actor
        super().__init__(seed, voters, spare, kept, linked=True, election_ms=200)
        for id in self.actors:
            self.of(id).wall_ms += self.dice.randint(-3_000, 3_000)

    def explore(self, length: int = LENGTH) -> BarrierChecks:
        """A bad day, and then a good one on which all must come to rest. Raises `AssertionError`
        for a barrier, or a property of Raft, that does not hold.
        """
        self.run(length, _DAYS[self.seed // 4 % len(_DAYS)])
        self.settle()
        return self.barriers
