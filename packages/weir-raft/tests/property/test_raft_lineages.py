"""Learners go on without the voters, while those live on: what each side knows stays, and nothing
of the other side comes in. Three planted faults must be found.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import weir_raft as raft
from weir_raft.core import Core
from weir_raft.membership import VoteResult
from weir_raft.node_state import NodeState
from weir_raft.testing.rehearsal import STEPS, Rehearsal

HOME, AWAY = (1, 2, 3), (4, 5, 6)
SEEDS = 24
WEIGHTS = {name: weight for name, weight in STEPS.items() if name not in ("change", "read")}
Patch = pytest.MonkeyPatch


class Promotion(Rehearsal):
    """Voters at home, learners away; the latter are forced while all goes on."""

    def __init__(self, seed: int) -> None:
        self.forced = False
        super().__init__(
            seed, HOME, AWAY, kept_entries=15 * (seed % 2), linked=seed % 3 == 0,
            max_append_bytes=60, max_inflight_bytes=200, snapshot_chunk_bytes=3,
        )  # fmt: skip
        one = self.lead(1)
        one.node.change(raft.Change(add_learners=AWAY))
        self.flow()

    def force(self) -> None:
        """Force the learners, and check them apart from home from here on."""
        known = max(self.actors[id].node.log.committed for id in AWAY)
        self.away = self.checks.apart(f"seed {self.seed}, away", known)
        self.known, self.forced = dict(self.away.committed), True
        for id in AWAY:
            self.actors[id].check_by(self.away)
            if self.actors[id].up:
                self.actors[id].node.lineages.force(1, AWAY)

    def _start(self) -> None:
        super()._start()
        self.told_again()

    def told_again(self) -> None:
        for id in AWAY if self.forced else ():
            if self.actors[id].up:
                self.actors[id].node.lineages.force(1, AWAY)

    def calm(self) -> None:
        """A good day, on which both sides come to rest."""
        self.severed.clear()
        for actor in self.actors.values():
            if not actor.up:
                actor.start()
        self.link_all()
        self.told_again()
        for _ in range(300):
            for actor in self.actors.values():
                actor.tick(50)
                actor.serve()
                actor.sync(len(actor.unsynced))
                actor.serve()
            mail, self.mail = self.mail, []
            for message in mail:
                self.hand_over(message)


def promote(seed: int) -> Promotion:
    one = Promotion(seed)
    one.run(400, WEIGHTS)
    one.force()
    one.run(600, WEIGHTS)
    one.calm()
    away = [one.actors[id] for id in AWAY]
    leaders = [actor for actor in away if actor.node.accepts]
    assert len(leaders) == 1, f"seed {seed}: {[actor.node.role for actor in away]}"
    assert {actor.node.lineages.current for actor in away} == {1}
    assert leaders[0].node.configuration == raft.Configuration(AWAY)
    assert {actor.applied for actor in away} == {leaders[0].applied}
    assert len({actor.crc for actor in away}) == 1
    for index, kept in one.known.items():
        assert one.away.committed[index] == kept
    home = [one.actors[id] for id in HOME]
    assert {actor.node.lineages.current for actor in home} == {0}
    assert any(actor.node.accepts for actor in home), f"seed {seed}: home lost its leader"
    return one


def test_learners_go_on_with_all_that_any_of_them_knew_while_home_lives() -> None:
    differing = 0
    for seed in range(SEEDS):
        one = promote(seed)
        both = one.checks.committed.keys() & one.away.committed.keys()
        differing += any(one.checks.committed[i] != one.away.committed[i] for i in both)
    assert differing > SEEDS // 2  # the lineages were two


def _promote_many() -> None:
    for seed in range(4 * SEEDS):
        promote(seed)


def a_majority_elects(patch: Patch) -> None:
    def vote_result(self: NodeState, votes: dict[int, bool]) -> VoteResult:
        return self.configuration.vote_result(votes)

    patch.setattr(NodeState, "vote_result", vote_result)


def other_lineages_are_heard(patch: Patch) -> None:
    patch.setattr(NodeState, "is_foreign", lambda self, term: False)


def nobody_writes_who_votes(patch: Patch) -> None:
    configure = Core.configure

    def only_changes(self: Core, state: raft.core.Leader, configuration: raft.Configuration) -> int:
        if self.node_state.history.is_forced:
            return 0
        return configure(self, state, configuration)

    patch.setattr(Core, "configure", only_changes)


@pytest.mark.parametrize(
    "plant", [a_majority_elects, other_lineages_are_heard, nobody_writes_who_votes]
)
def test_planted_faults_are_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, raft.StorageError, raft.OutOfOrder)):
        _promote_many()
