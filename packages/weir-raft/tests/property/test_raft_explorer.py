"""Random groups on bad days, and planted faults that they must find.

Beside what `Rehearsal` does by itself (crashes, torn writes, loss, repetition, reordering, cuts,
slow disks, changes, transfers, snapshots) whole nodes are paused here, and wake with their old mail
and a clock that has jumped. Two seeds of three are rough: impatient voters, slower disks and more
crashes. All five properties of Figure 3.2 are checked: four as things happen, leader append-only
after every step.

WEIR_RAFT_EXPLORER_SEEDS sets how many seeds are run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import pytest

import weir_raft as raft
from weir_raft import election
from weir_raft.core import Core
from weir_raft.follower import Follower
from weir_raft.leader import Leader
from weir_raft.log_view import LogView
from weir_raft.membership import Configuration, committed_index, vote_result
from weir_raft.node_state import NodeState
from weir_raft.ready import Pending
from weir_raft.replication import Replication
from weir_raft.testing.actor import Actor
from weir_raft.testing.rehearsal import STEPS, Beaten, Rehearsal

SEEDS = int(os.environ.get("WEIR_RAFT_EXPLORER_SEEDS", "10"))
LENGTH = 2_500
#: A fault shows as a broken property, or as one that the library itself refuses to break.
CAUGHT = (AssertionError, raft.StorageError)

#: On a rough day elections are many, and disks so slow that crashes take much away.
ROUGH = {
    **{"deliver": 80, "propose": 16, "tick": 20, "crash": 2, "start": 6, "heal": 3},
    **{"campaign": 4, "duel": 3},
}

Patch = pytest.MonkeyPatch


class Explorer(Rehearsal):
    """A group of a shape drawn by the seed, whose nodes may be paused."""

    def __init__(self, seed: int) -> None:
        self._paused: dict[int, Actor] = {}
        self._held: list[raft.Message | Beaten] = []
        #: By node and term, how far a leader's log went and the term of its last entry.
        self._led: dict[tuple[int, int], tuple[int, int]] = {}
        shapes: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = (
            ((1, 2, 3), (), 0),
            ((1, 2, 3, 4, 5), (), 0),
            ((1, 2, 3), (4, 5), 0),
            ((1, 2, 3), (4, 5), 15),
        )
        voters, spare, kept = shapes[seed % len(shapes)]
        self._weights = {"pause": 1, "wake": 2, **(ROUGH if seed % 3 else {})}
        super().__init__(
            seed,
            voters,
            spare,
            kept,
            linked=seed // len(shapes) % 2 == 1,
            max_append_bytes=60,
            max_inflight_bytes=200,
            max_apply_bytes=50,
            snapshot_chunk_bytes=3,
            election_ms=200 if seed % 3 else 500,
        )

    def run(self, steps: int, weights: Mapping[str, int] = STEPS) -> None:
        weights = {**weights, **self._weights}
        for name in self.dice.choices(list(weights), list(weights.values()), k=steps):
            self.counts[name] = self.counts.get(name, 0) + 1
            getattr(self, f"_{name}")()
            self._check_leaders()

    def explore(self) -> None:
        """A bad day, and then a good one on which all must come to rest."""
        self.run(LENGTH)
        while self._paused:
            self._wake()
        self.settle()

    def _check_leaders(self) -> None:
        """Leader append-only: it never replaces or drops what is in its log."""
        for id, actor in self.actors.items():
            node = actor.node
            if not actor.up or node.role is not raft.Role.LEADER:
                continue
            last, term = self._led.get((id, node.term), (0, 0))
            assert node.log.last_index >= last, f"seed {self.seed}: leader {id} drops {last}"
            if last >= node.log.first_index:
                assert node.log.term(last) == term, f"seed {self.seed}: leader {id} replaces {last}"
            self._led[id, node.term] = (node.log.last_index, node.log.term(node.log.last_index))

    def _campaign(self) -> None:
        if actor := self._any():
            actor.node.campaign()
            actor.serve()

    def _duel(self) -> None:
        """A leader hands over to one, and, as it does not hear how that went, to another."""
        leader = self._leader()
        voters = leader.node.configuration.voters if leader else ()
        if leader and len(voters) > 1:
            for id in self.dice.sample(voters, 2):
                self.post([raft.TimeoutNow(id, leader.id, leader.node.term)])

    def _pause(self) -> None:
        if len(self.actors) > 2:
            id = self.dice.choice(sorted(self.actors))
            self._paused[id] = self.actors.pop(id)

    def _wake(self) -> None:
        if not self._paused:
            return
        id = self.dice.choice(sorted(self._paused))
        actor = self.actors[id] = self._paused.pop(id)
        held, self._held = self._held, []
        first = self.dice.random() < 0.5
        if actor.up and first:
            actor.tick(self.dice.randint(100, 3_000))
        for message in held:
            self.hand_over(message)
        if actor.up and not first:
            actor.tick(self.dice.randint(100, 3_000))
            actor.serve()

    def hand_over(self, message: raft.Message | Beaten) -> None:
        if message.to in self._paused:
            if len(self._held) < 200:
                self._held.append(message)
        else:
            super().hand_over(message)


def explore(seed: int) -> Explorer:
    one = Explorer(seed)
    one.explore()
    return one


def test_the_five_properties_hold_whatever_happens() -> None:
    elections = committed = paused = 0
    for seed in range(SEEDS):
        one = explore(seed)
        elections += one.checks.elections
        committed += one.checks.committed_through
        paused += one.counts["pause"]
    assert elections > 2 * SEEDS
    assert committed > 20 * SEEDS
    assert paused > 5 * SEEDS


def test_an_exploration_replays() -> None:
    one, other = explore(6), explore(6)
    assert one.checks.committed == other.checks.committed
    assert one.counts == other.counts


# Faults. Each replaces one rule by what somebody in a hurry might have written.


def vote_before_it_is_durable(patch: Patch) -> None:
    def grant(node_state: NodeState, state: Follower, sender: int) -> None:
        state.heard()
        node_state.enter(node_state.term, sender)
        node_state.pending.messages.append(
            raft.VoteReply(sender, node_state.id, node_state.term, granted=True)
        )

    patch.setattr(election, "_grant", grant)


def two_votes_in_a_term(patch: Patch) -> None:
    patch.setattr(election, "_free", lambda node_state, state, sender: True)


def longer_logs_win_whatever_their_terms(patch: Patch) -> None:
    patch.setattr(LogView, "end", property(lambda log: (0, log.last_index)))


def leader_counts_itself_before_its_disk(patch: Patch) -> None:
    def match(self: Replication) -> dict[int, int]:
        found = {id: member.match for id, member in self.members.items()}
        found[self._node_state.id] = self._node_state.log.last_index
        return found

    patch.setattr(Replication, "match", match)


def follower_acknowledges_its_whole_log(patch: Patch) -> None:
    append = Follower.append

    def whole(self: Follower, message: raft.Append) -> None:
        append(self, message)
        self._matched = self._node_state.log.last_index

    patch.setattr(Follower, "append", whole)


def follower_keeps_what_conflicts(patch: Patch) -> None:
    def unknown(
        self: Follower, entries: tuple[raft.Entry, ...], sure: int
    ) -> tuple[raft.Entry, ...]:
        return tuple(entry for entry in entries if entry.index > self._node_state.log.last_index)

    patch.setattr(Follower, "_unknown", unknown)


def superseded_writes_count_as_durable(patch: Patch) -> None:
    patch.setattr(Pending, "supersede", lambda self, index: None)


def elections_count_the_new_half_alone(patch: Patch) -> None:
    patch.setattr(Configuration, "vote_result", lambda self, votes: vote_result(self.voters, votes))


def commits_count_the_new_half_alone(patch: Patch) -> None:
    patch.setattr(
        Configuration,
        "committed",
        lambda self, match: committed_index([match.get(voter, 0) for voter in self.voters]),
    )


def reads_before_the_first_commit_of_the_term(patch: Patch) -> None:
    def read(core: Core, context: int) -> None:
        if isinstance(core.state, Leader):
            core.state.read(context)
        else:
            honest(core, context)

    honest = Core.read
    patch.setattr(Core, "read", read)


FAULTS: tuple[tuple[Callable[[Patch], None], int], ...] = (
    (vote_before_it_is_durable, 164),
    (two_votes_in_a_term, 223),
    (longer_logs_win_whatever_their_terms, 131),
    (leader_counts_itself_before_its_disk, 32),
    (follower_acknowledges_its_whole_log, 258),
    (follower_keeps_what_conflicts, 1),
    (superseded_writes_count_as_durable, 241),
    (elections_count_the_new_half_alone, 403),
    (commits_count_the_new_half_alone, 56),
    (reads_before_the_first_commit_of_the_term, 0),
)


@pytest.mark.parametrize(
    ("plant", "seed"), FAULTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_fault_is_caught(
    plant: Callable[[Patch], None], seed: int, monkeypatch: Patch
) -> None:
    """`seed` catches it at once; where schedules have changed since, another soon does."""
    plant(monkeypatch)
    for other in range(seed, seed + 300):
        try:
            explore(other)
        except CAUGHT:
            return
    raise AssertionError("not caught by 300 seeds")
