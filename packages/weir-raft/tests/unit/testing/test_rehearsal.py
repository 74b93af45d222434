"""Raft under a network and disks that fail, and planted faults that the checks must find.

WEIR_RAFT_SEEDS sets how many seeds are run.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

import weir_raft as raft
from weir_raft.follower import Follower
from weir_raft.leader import Leader
from weir_raft.log_view import LogView
from weir_raft.membership import Configuration
from weir_raft.ready import ReadState
from weir_raft.testing.rehearsal import Rehearsal

SEEDS = int(os.environ.get("WEIR_RAFT_SEEDS", "40"))
STEPS = 3_000


def rehearsal(seed: int, *, linked: bool) -> Rehearsal:
    """Groups of several shapes, whose limits are so small that every one is met."""
    voters: tuple[int, ...] = (1, 2, 3)
    spare: tuple[int, ...] = ()
    kept = 0
    match seed % 5:
        case 1:
            voters = (1, 2, 3, 4, 5)
        case 2:
            spare = (4, 5)
        case 3:
            voters, spare = (1,), (2, 3)
        case 4:
            spare, kept = (4,), 20
    return Rehearsal(
        seed,
        voters,
        spare,
        kept,
        linked=linked,
        max_append_bytes=60,
        max_inflight_bytes=200,
        max_apply_bytes=50,
        snapshot_chunk_bytes=3,
    )


def run(seed: int, *, linked: bool = False) -> Rehearsal:
    one = rehearsal(seed, linked=linked)
    one.run(STEPS)
    one.settle()
    return one


@pytest.mark.parametrize("linked", [False, True])
def test_nothing_that_was_promised_is_broken_on_bad_days(
    linked: bool, tell: Callable[..., None]
) -> None:
    elections = committed = 0
    for seed in range(SEEDS):
        one = run(seed, linked=linked)
        elections += one.checks.elections
        committed += one.checks.committed_through
    assert elections > 2 * SEEDS
    assert committed > 20 * SEEDS
    tell(seeds=SEEDS, elections=elections, committed=committed)


def test_a_seed_is_a_schedule() -> None:
    one, other = run(3), run(3)
    assert one.checks.committed == other.checks.committed
    assert one.counts == other.counts


def _ack_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    def answer(self: Follower) -> None:
        node_state = self._node_state
        if self.leader and self._owes:
            self._owes = False
            node_state.pending.messages.append(
                raft.AppendReply(
                    self.leader,
                    node_state.id,
                    node_state.term,
                    self._matched,
                    commit=node_state.log.committed,
                )
            )

    patch.setattr(Follower, "answer", answer)


def _repeated_append_acknowledged_again(patch: pytest.MonkeyPatch) -> None:
    def answer(self: Follower) -> None:
        node_state = self._node_state
        if (
            self.leader
            and node_state.durable_term == node_state.term
            and not node_state.pending.installing
        ):
            node_state.pending.messages.append(
                raft.AppendReply(
                    self.leader,
                    node_state.id,
                    node_state.term,
                    node_state.log.durable,
                    commit=node_state.log.committed,
                )
            )

    patch.setattr(Follower, "answer", answer)


def _votes_for_shorter_logs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogView, "end", property(lambda log: (0, 0)))


def _read_without_its_round(patch: pytest.MonkeyPatch) -> None:
    def read(self: Leader, context: int) -> None:
        self._node_state.pending.reads.append(ReadState(context, self._node_state.log.committed))

    patch.setattr(Leader, "read", read)


def _voters_changed_at_once(patch: pytest.MonkeyPatch) -> None:
    changed = Configuration.changed

    def at_once(self: Configuration, change: raft.Change) -> Configuration:
        return changed(self, change).left()

    patch.setattr(Configuration, "changed", at_once)


@pytest.mark.parametrize(
    ("plant", "found_by"),
    [
        (_ack_before_it_is_durable, 24),
        (_repeated_append_acknowledged_again, 52),
        (_votes_for_shorter_logs, 2),
        (_read_without_its_round, 36),
        (_voters_changed_at_once, 213),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], found_by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`found_by` finds it at once; where schedules have changed since, another seed soon does."""
    plant(monkeypatch)
    for seed in range(found_by, found_by + 500):
        try:
            run(seed)
        except AssertionError:
            return
    raise AssertionError("not found by 500 seeds")
