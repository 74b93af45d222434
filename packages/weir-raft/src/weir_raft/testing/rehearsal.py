"""Many Raft nodes in one process on a network and disks that fail by the dice of one seed.

`Rehearsal` checks, after whatever happens, the properties of Figure 3.2 of the dissertation:
election safety, leader append-only with log matching, leader completeness, state machine safety;
and that reads see all that was committed when they were asked for. A broken one is an
AssertionError that names the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import weir_raft as raft
from weir_raft.testing.actor import Actor
from weir_raft.testing.checks import Checks

#: What may happen, and how often beside the rest.
STEPS: Mapping[str, int] = {
    "deliver": 40,
    "tick": 14,
    "sync": 30,
    "propose": 12,
    "lose": 3,
    "repeat": 3,
    "crash": 1,
    "start": 2,
    "cut": 1,
    "heal": 1,
    "compact": 1,
    "transfer": 1,
    "change": 1,
    "read": 6,
}


class Beaten(NamedTuple):
    """What one host told another on their link."""

    sender: int
    to: int
    message: raft.LinkMessage


class Rehearsal:
    """A group on a bad day.

    `kept_entries`: how many stay in the log below a snapshot; `linked`: heartbeats go by link.
    """

    def __init__(
        self,
        seed: int,
        voters: Iterable[int] = (1, 2, 3),
        spare: Iterable[int] = (),
        kept_entries: int = 0,
        *,
        linked: bool = False,
        **config: int,
    ) -> None:
        self.seed = seed
        self._linked = linked
        self.dice = random.Random(seed)
        self.checks = self._check(f"seed {seed}")
        self.actors: dict[int, Actor] = {}
        first = tuple(voters)
        for id in (*first, *spare):
            # The spare ones know of nobody yet.
            known = first if id in first else ()
            settings = raft.Config(id, known, random=self.dice.random, **config)  # type: ignore[arg-type]
            self.actors[id] = self._make(settings, kept_entries)
        self.mail: list[raft.Message | Beaten] = []
        self.severed: set[tuple[int, int]] = set()
        self._proposed = 0
        self.counts: dict[str, int] = {}
        for actor in self.actors.values():
            actor.start()
        self.link_all()

    def _check(self, name: str) -> Checks:
        return Checks(name)

    def _make(self, settings: raft.Config, kept_entries: int) -> Actor:
        post_link = self._post_link if self._linked else None
        return Actor(settings, self.checks, self.post, kept_entries, post_link)

    # What may happen

    def run(self, steps: int, weights: Mapping[str, int] = STEPS) -> None:
        """Let so many things happen, each drawn by its weight."""
        names = list(weights)
        for name in self.dice.choices(names, [weights[name] for name in names], k=steps):
            self.counts[name] = self.counts.get(name, 0) + 1
            step: Callable[[], None] = getattr(self, f"_{name}")
            step()

    def _any(self, *, up: bool = True) -> Actor | None:
        actors = [actor for actor in self.actors.values() if actor.up is up]
        return self.dice.choice(actors) if actors else None

    def _deliver(self) -> None:
        for _ in range(min(len(self.mail), self.dice.randint(1, 5))):
            # Mostly in order, for chaos alone gets nothing done.
            place = 0 if self.dice.random() < 0.8 else self.dice.randrange(len(self.mail))
            self.hand_over(self.mail.pop(place))

    def _lose(self) -> None:
        if self.mail:
            self.mail.pop(self.dice.randrange(len(self.mail)))

    def _repeat(self) -> None:
        if self.mail and len(self.mail) < 500:
            self.mail.append(self.dice.choice(self.mail))

    def _tick(self) -> None:
        if actor := self._any():
            actor.tick(self.dice.choice((20, 50, 100, 200)))
            actor.serve()

    def _sync(self) -> None:
        actor = self._any()
        if actor and actor.unsynced:
            actor.sync(self.dice.randint(1, len(actor.unsynced)))
            actor.serve()

    def _propose(self) -> None:
        leaders = [a for a in self.actors.values() if a.up and a.node.accepts]
        if leaders:
            actor = self.dice.choice(leaders)
            for _ in range(self.dice.randint(1, 3)):
                self._proposed += 1
                try:
                    actor.node.propose(self._proposed, self.dice.choice((1, 10, 40)))
                except raft.Overloaded:
                    break
            actor.serve()

    def _crash(self) -> None:
        if actor := self._any():
            actor.crash(self.dice)
            for other in self.actors.values():
                if other.up and self.dice.random() < 0.8:
                    other.multi.link_down(actor.id)

    def _start(self) -> None:
        if actor := self._any(up=False):
            actor.start()
            self.link_all(actor.id)

    def link_all(self, id: int = 0) -> None:
        for actor in self.actors.values():
            for peer in self.actors:
                if actor.up and peer != actor.id and id in (0, peer, actor.id):
                    actor.multi.link_up(peer)

    def _cut(self) -> None:
        """One way between two nodes, or a node from all others."""
        one, other = self.dice.sample(sorted(self.actors), 2)
        self.severed.add((one, other))
        if self.dice.random() < 0.5:
            for third in self.actors:
                self.severed |= {(one, third), (third, one)}

    def _heal(self) -> None:
        self.severed.clear()
        self.link_all()

    def _compact(self) -> None:
        if actor := self._any():
            actor.compact()

    def _leader(self) -> Actor | None:
        leaders = [a for a in self.actors.values() if a.up and a.node.role is raft.Role.LEADER]
        return self.dice.choice(leaders) if leaders else None

    def _transfer(self) -> None:
        if leader := self._leader():
            leader.node.transfer_leadership(self.dice.choice(leader.node.configuration.voters))
            leader.serve()

    def _change(self) -> None:
        leader = self._leader()
        if leader is None:
            return
        members = sorted(self.actors)
        self.dice.shuffle(members)
        count = self.dice.randint(0, 2)
        one, rest = members[:count], members[count:]
        learner = rest[:1] if self.dice.random() < 0.3 else []
        removed = [m for m in rest[1:2] if len(leader.node.configuration.voters) > 2]
        try:
            leader.change(raft.Change(tuple(one), tuple(learner), tuple(removed)))
        except (raft.NotReady, raft.InvalidChange):
            return
        leader.serve()

    def _read(self) -> None:
        if leader := self._leader():
            context = len(self.checks.asked)
            self.checks.asked[context] = self.checks.committed_through
            try:
                leader.node.read_index(context)
            except raft.NotReady:
                return
            leader.serve()

    # The network

    def post(self, messages: Iterable[raft.Message]) -> None:
        """Take messages on their way."""
        for message in messages:
            if (message.sender, message.to) not in self.severed:
                self.mail.append(message)

    def _post_link(self, sender: int, to: int, message: raft.LinkMessage) -> None:
        if (sender, to) not in self.severed:
            self.mail.append(Beaten(sender, to, message))

    def hand_over(self, message: raft.Message | Beaten) -> None:
        """Deliver one message, unless the way or the node is down."""
        actor = self.actors[message.to]
        if not actor.up or (message.sender, message.to) in self.severed:
            return
        if isinstance(message, Beaten):
            actor.multi.step_link(message.sender, message.message)
        else:
            actor.node.step(message)
        actor.serve()

    # A good day

    def flow(self) -> None:
        """Deliver and write everything, in order, until nothing moves; no time passes."""
        for _ in range(1000):
            for actor in self.actors.values():
                if actor.up:
                    actor.serve()
                    actor.sync(len(actor.unsynced))
                    actor.serve()
            mail, self.mail = self.mail, []
            for message in mail:
                self.hand_over(message)
            if not self.mail and not any(a.up and a.unsynced for a in self.actors.values()):
                return
        raise AssertionError(f"seed {self.seed}: it never comes to rest")

    def lead(self, id: int) -> Actor:
        """Let `id` win an election, if the others let it."""
        actor = self.actors[id]
        actor.node.campaign()
        self.flow()
        assert actor.node.accepts, f"seed {self.seed}: {id} does not lead"
        return actor

    def pass_ms(self, milliseconds: int) -> None:
        """Let time pass for everybody in small steps, and everything arrive."""
        for _ in range(0, milliseconds, 50):
            for actor in self.actors.values():
                if actor.up:
                    actor.tick(50)
            self.flow()

    def settle(self, rounds: int = 400) -> None:
        """Start everybody, mend everything, and go on until all know all that is committed."""
        self.severed.clear()
        for actor in self.actors.values():
            if not actor.up:
                actor.start()
        self.link_all()
        for _ in range(rounds):
            for actor in self.actors.values():
                actor.tick(50)
                actor.serve()
                actor.sync(len(actor.unsynced))
                actor.serve()
            mail, self.mail = self.mail, []
            for message in mail:
                self.hand_over(message)
            if self._is_settled():
                return
        states = [(a.id, a.node.role, a.node.term, a.applied) for a in self.actors.values()]
        raise AssertionError(f"seed {self.seed}: not settled after {rounds} rounds: {states}")

    def _is_settled(self) -> bool:
        leaders = [a for a in self.actors.values() if a.node.accepts]
        if not leaders or self.mail:
            return False
        leader = max(leaders, key=lambda a: a.node.term)
        members = leader.node.configuration.members
        return (
            leader.node.log.applied >= self.checks.committed_through
            and not leader.node.configuration.joint
            and leader.node.log.applied == leader.node.log.last_index
            and all(
                self.actors[id].applied == leader.applied
                and self.actors[id].node.log.last_index == leader.node.log.last_index
                for id in members
            )
        )
