"""Executions that broke earlier wordings of the rule of barriers, step by step: they do no harm,
and do where the part of the rule that forbids them is missing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import weir_raft as raft
from weir_lab.barriers.actor import OrderedActor
from weir_lab.barriers.faults import (
    Forgetful,
    Hasty,
    Unstamped,
    by_the_new_half,
    with_the_learners,
    without_an_entry_of_its_own_term,
    without_the_own_promise,
)
from weir_lab.barriers.rehearsal import OrderedRehearsal

BROKEN = "was handed out"
HOUR_MS = 3_600_000


def _group(
    actor: type[OrderedActor], voters: tuple[int, ...], spare: tuple[int, ...] = ()
) -> OrderedRehearsal:
    class Group(OrderedRehearsal):
        pass

    Group.actor = actor
    group = Group(1, voters, spare, linked=True)
    for member in group.actors:
        group.of(member).syncs_a_bound = 1
    return group


def _bounds(group: OrderedRehearsal) -> None:
    """Let everybody extend its bound, and have it on disk."""
    for id, actor in group.actors.items():
        if actor.up:
            actor.tick(50)
            group.of(id).sync(0)
    group.flow()


def promise_before_an_entry_of_its_own_term(actor: type[OrderedActor]) -> None:
    """Counterexample 1: what is inherited is committed below the promise of a leader between."""
    group = _group(actor, (1, 2, 3, 4, 5))
    _bounds(group)
    group.elect(1)
    group.keep_apart((1, 2), (3, 4, 5))
    group.publish(1)
    for id in (3, 4, 5):
        group.of(id).wall_ms += 400
    group.elect(3, entries=False)
    group.promise(3, entries=False)
    group.of(3).crash(group.dice)
    group.keep_apart((2, 4, 5))
    group.elect(2)
    group.publish(2)


def forgotten_promise(actor: type[OrderedActor]) -> None:
    """Counterexample 2: who promised starts again, and votes for one whose clock is behind."""
    group = _group(actor, (1, 2, 3))
    _bounds(group)
    group.of(3).wall_ms -= HOUR_MS
    group.elect(1)
    group.keep_apart((1, 2), (3,))
    group.promise(1)
    group.of(2).crash(group.dice)
    group.of(1).crash(group.dice)
    group.of(2).start()
    group.keep_apart((2, 3))
    group.link_all()
    group.elect(3)
    group.publish(3)


def promise_of_the_leader_itself(actor: type[OrderedActor]) -> None:
    """Counterexample 2: the leader counts its own promise before its bound is on disk."""
    group = _group(actor, (1, 2, 3))
    group.of(1).syncs_a_bound = 1_000_000
    _bounds(group)
    group.of(3).wall_ms -= HOUR_MS
    group.elect(1)
    group.keep_apart((1, 2), (3,))
    group.promise(1)
    group.of(1).crash(group.dice)
    group.of(1).start()
    group.keep_apart((1, 3))
    group.link_all()
    group.elect(3)
    group.publish(3)


def promise_of_the_next_leader_itself(actor: type[OrderedActor]) -> None:
    """Counterexample 2: {1, 2} promise, and {2, 3} elect 2, whose voter knows of no promise."""
    group = _group(actor, (1, 2, 3))
    _bounds(group)
    group.of(2).wall_ms -= HOUR_MS
    group.elect(1)
    group.keep_apart((1, 2), (3,))
    group.promise(1)
    group.of(1).crash(group.dice)
    group.keep_apart((2, 3))
    group.elect(2)
    group.publish(2)


def membership(actor: type[OrderedActor]) -> None:
    """Counterexample 3: those who promised are voted out, and the others know of nothing."""
    group = _group(actor, (1, 2, 3), spare=(4,))
    for id in (3, 4):
        group.of(id).wall_ms -= HOUR_MS
    _bounds(group)
    group.elect(1)
    group.keep_apart((1, 2), (3, 4))
    group.promise(1)
    group.keep_apart((1, 3, 4))
    group.link_all()
    group.of(1).change(raft.Change(add_voters=(4,), remove=(2,)))
    group.pass_ms(300)
    group.of(1).crash(group.dice)
    group.keep_apart((3, 4))
    group.elect(3)
    group.publish(3)


def new_half(actor: type[OrderedActor]) -> None:
    """Members that are to come promise, and those of before elect somebody without them."""
    group = _group(actor, (1, 2, 3), spare=(4, 5))
    _bounds(group)
    for id in (2, 3):
        group.of(id).wall_ms -= HOUR_MS
    group.elect(1)
    group.keep_apart((1, 4, 5), (2, 3))
    group.of(1).change(raft.Change(add_voters=(4, 5), remove=(2, 3)))
    for _ in range(4):
        group.of(1).tick(50)
        group.flow()
    group.promise(1)
    group.of(1).crash(group.dice)
    group.elect(2)
    group.publish(2)


def promise_of_a_learner(actor: type[OrderedActor]) -> None:
    """The leader and a learner promise, and the other voters elect somebody without them."""
    group = _group(actor, (1, 2, 3), spare=(4,))
    _bounds(group)
    for id in (2, 3):
        group.of(id).wall_ms -= HOUR_MS
    group.elect(1)
    group.of(1).change(raft.Change(add_learners=(4,)))
    group.flow()
    group.keep_apart((1, 4), (2, 3))
    for _ in range(4):
        group.of(1).tick(50)
        group.flow()
    group.promise(1)
    group.of(1).crash(group.dice)
    group.elect(2)
    group.publish(2)


def _nothing(patch: pytest.MonkeyPatch) -> None:
    """The part that is missing is the actor's."""


Script = Callable[[type[OrderedActor]], None]
Patch = Callable[[pytest.MonkeyPatch], None]
#: Each with what must be missing for it to do harm.
SCRIPTS: dict[Script, tuple[type[OrderedActor], Patch]] = {
    promise_before_an_entry_of_its_own_term: (OrderedActor, without_an_entry_of_its_own_term),
    forgotten_promise: (Forgetful, _nothing),
    promise_of_the_leader_itself: (Hasty, _nothing),
    promise_of_the_next_leader_itself: (OrderedActor, without_the_own_promise),
    membership: (Unstamped, _nothing),
    new_half: (OrderedActor, by_the_new_half),
    promise_of_a_learner: (OrderedActor, with_the_learners),
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_it_does_no_harm(script: Script) -> None:
    script(OrderedActor)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_it_breaks_a_barrier_without_the_part_of_the_rule_that_forbids_it(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, patch = SCRIPTS[script]
    patch(monkeypatch)
    with pytest.raises(AssertionError, match=BROKEN):
        script(actor)
