"""Many Raft nodes in one process on a network and disks that fail by the dice of one seed.

`Rehearsal` checks, after whatever happens, the properties of Figure 3.2 of the dissertation:
election safety, leader append-only with log matching, leader completeness, state machine safety;
and that reads see all that was committed when they were asked for. A broken one is an
AssertionError that names the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from zlib import crc32

from weir import raft

#: What may happen, and how often beside the rest.
STEPS: Mapping[str, int] = {
    "deliver": 60,
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
    "read": 2,
}


class Actor:
    """A host of one node: its disk, what is not synced yet, and a state machine that is a CRC."""

    def __init__(self, id: int, stage: Rehearsal) -> None:
        self.id = id
        self._stage = stage
        self.disk = raft.MemoryStorage()
        self.node: raft.Node
        self.up = False

    def start(self) -> None:
        """Come up on what the disk holds."""
        snapshot = self.disk.snapshot()
        self.applied = snapshot.index if snapshot else 0
        self.crc = int.from_bytes(bytes(snapshot.data), "little") if snapshot else 0  # type: ignore[call-overload]
        self.kept: dict[int, int] = {self.applied: self.crc}
        self.unsynced: list[raft.Ready] = []
        self.node = raft.Node(self._stage.config(self.id), self.disk)
        self.up = True

    def crash(self, dice: random.Random) -> None:
        """Lose all that is not synced but for the first few writes, the last of them in part."""
        whole = dice.randint(0, len(self.unsynced))
        for ready in self.unsynced[:whole]:
            self._write(ready)
        if whole < len(self.unsynced):
            torn = self.unsynced[whole]
            if torn.snapshot is None:
                self.disk.save(torn.hard_state, torn.entries[: dice.randint(0, len(torn.entries))])
        self.up = False

    def _write(self, ready: raft.Ready) -> None:
        self.disk.save(ready.hard_state, ())
        if ready.snapshot is not None:
            self.disk.install(ready.snapshot)
        self.disk.save(None, ready.entries)

    def sync(self, count: int) -> None:
        """Make the first `count` writes durable."""
        for ready in self.unsynced[:count]:
            self._write(ready)
            self.node.persisted(ready.number)
        del self.unsynced[:count]

    def serve(self) -> None:
        """Do what the node is ready for, but leave the writes to sync()."""
        while self.node.has_ready:
            ready = self.node.ready()
            self._stage.post(ready.messages)
            if ready.became_leader:
                self._stage.elected(self, ready.became_leader.term)
            if ready.snapshot is not None:
                self._restore(ready.snapshot)
            for entry in ready.entries:
                self._stage.check_entry(self.node, entry)
            if ready.must_persist:
                self.unsynced.append(ready)
            for entry in ready.committed:
                assert entry.index == self.applied + 1
                self.applied = entry.index
                self.crc = crc32(repr((entry.index, entry.term, entry.data)).encode(), self.crc)
                self.kept[entry.index] = self.crc
                self._stage.check_applied(entry.index, entry.term, self.crc)
                self.node.applied(entry.index)
            self._stage.check_reads(ready.reads)
            for load in ready.loads:
                found = self.disk.entries(load.lo, load.hi, load.max_bytes)
                self.node.loaded(load.number, found)
            for voter in ready.wants_snapshot:
                self._offer(voter)

    def _restore(self, snapshot: raft.Snapshot) -> None:
        assert isinstance(snapshot.data, bytes)
        self.applied, self.crc = snapshot.index, int.from_bytes(snapshot.data, "little")
        self.kept = {self.applied: self.crc}
        self._stage.check_applied(self.applied, snapshot.term, self.crc)

    def _offer(self, voter: int) -> None:
        self.node.send_snapshot(voter, self._snapshot(self.node.applied_index))

    def _snapshot(self, index: int) -> raft.Snapshot:
        node = self.node
        base = max(node.first_index - 1, index - self._stage.kept_entries)
        return raft.Snapshot(
            index,
            node.term_at(index) if index <= node.last_index else self._stage.term_of[index],
            self.kept[index].to_bytes(4, "little"),
            node.configuration_at(index),
            base,
            node.term_at(base),
        )

    def compact(self) -> None:
        """Take a snapshot and drop what lies below its base."""
        node = self.node
        index = node.applied_index
        if self.disk.last_index() < index or index < node.first_index:
            return
        if any(ready.snapshot is not None for ready in self.unsynced):
            return
        snapshot = self._snapshot(index)
        self.disk.save_snapshot(snapshot)
        node.compact(snapshot.base_index)
        self.disk.discard(snapshot.base_index)


class Rehearsal:
    """A group on a bad day. `kept_entries`: how many stay in the log below a snapshot."""

    def __init__(
        self,
        seed: int,
        voters: Iterable[int] = (1, 2, 3),
        spare: Iterable[int] = (),
        kept_entries: int = 0,
        **config: int,
    ) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.kept_entries = kept_entries
        self._first = tuple(voters)
        self._config = config
        self.actors = {id: Actor(id, self) for id in (*self._first, *spare)}
        self.mail: list[raft.Message] = []
        self.severed: set[tuple[int, int]] = set()
        self._leader_of: dict[int, int] = {}
        self._entries: dict[tuple[int, int], tuple[object, int]] = {}
        self._committed: dict[int, tuple[int, int]] = {}
        self.committed_through = 0
        self._asked: dict[int, int] = {}
        self._proposed = 0
        self.counts: dict[str, int] = {}
        for actor in self.actors.values():
            actor.start()

    def config(self, id: int) -> raft.Config:
        """What a node starts with; the spare ones know of nobody."""
        voters = self._first if id in self._first else ()
        return raft.Config(id, voters, random=self.dice.random, **self._config)  # type: ignore[arg-type]

    @property
    def term_of(self) -> Mapping[int, int]:
        """The terms of all committed entries by index."""
        return {index: term for index, (term, _) in self._committed.items()}

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
        if self.mail:
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
            actor.node.tick(self.dice.choice((20, 50, 100, 200)))
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

    def _start(self) -> None:
        if actor := self._any(up=False):
            actor.start()

    def _cut(self) -> None:
        """One way between two nodes, or a node from all others."""
        one, other = self.dice.sample(sorted(self.actors), 2)
        self.severed.add((one, other))
        if self.dice.random() < 0.5:
            for third in self.actors:
                self.severed |= {(one, third), (third, one)}

    def _heal(self) -> None:
        self.severed.clear()

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
            leader.node.change(raft.Change(tuple(one), tuple(learner), tuple(removed)))
        except (raft.NotReady, raft.InvalidChange):
            return
        leader.serve()

    def _read(self) -> None:
        if leader := self._leader():
            context = len(self._asked)
            self._asked[context] = self.committed_through
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

    def hand_over(self, message: raft.Message) -> None:
        """Deliver one message, unless the way or the node is down."""
        actor = self.actors[message.to]
        if actor.up and (message.sender, message.to) not in self.severed:
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
                    actor.node.tick(50)
            self.flow()

    def settle(self, rounds: int = 400) -> None:
        """Start everybody, mend everything, and go on until all know all that is committed."""
        self.severed.clear()
        for actor in self.actors.values():
            if not actor.up:
                actor.start()
        for _ in range(rounds):
            for actor in self.actors.values():
                actor.node.tick(50)
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
            leader.node.applied_index >= max(self._committed, default=0)
            and not leader.node.configuration.joint
            and leader.node.applied_index == leader.node.last_index
            and all(
                self.actors[id].applied == leader.applied
                and self.actors[id].node.last_index == leader.node.last_index
                for id in members
            )
        )

    # The properties

    def elected(self, actor: Actor, term: int) -> None:
        """Election safety, and leader completeness."""
        other = self._leader_of.setdefault(term, actor.id)
        assert other == actor.id, f"seed {self.seed}: {other} and {actor.id} lead term {term}"
        node = actor.node
        for index, (committed, _) in self._committed.items():
            if index >= node.first_index and committed < term:
                assert index <= node.last_index, f"seed {self.seed}: leader lacks {index}"
                assert node.term_at(index) == committed, f"seed {self.seed}: leader differs {index}"

    def check_entry(self, node: raft.Node, entry: raft.Entry) -> None:
        """Log matching: an index and a term name one entry, and one history below it."""
        before = node.term_at(entry.index - 1)
        kept = self._entries.setdefault((entry.index, entry.term), (entry.data, before))
        assert kept == (entry.data, before) or not before, (
            f"seed {self.seed}: two entries {entry.index} of term {entry.term}"
        )

    def check_applied(self, index: int, term: int, crc: int) -> None:
        """State machine safety: one entry at an index, everywhere and for ever."""
        kept = self._committed.setdefault(index, (term, crc))
        assert kept == (term, crc), f"seed {self.seed}: two entries {index} are committed"
        self.committed_through = max(self.committed_through, index)

    def check_reads(self, reads: Iterable[raft.ReadState]) -> None:
        """A read sees what anybody had applied when it was asked for."""
        for read in reads:
            needed = self._asked[read.context]
            assert read.index >= needed, f"seed {self.seed}: a read at {read.index} of {needed}"
