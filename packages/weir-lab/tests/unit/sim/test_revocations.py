"""Worlds with users that come and go: nobody is served what was taken from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rigs.drawn_mutants import cases
from weir_lab.sim.mutants.planting import Mutant
from weir_lab.sim.mutants.registry import ACCESS, hunt
from weir_lab.sim.run import run_scenario
from weir_lab.sim.scenarios.audited_changes import AuditedRealm
from weir_lab.sim.scenarios.revocations import play_revocations
from weir_lab.sim.shape import NODE


def test_nobody_is_served_what_was_taken_from_them() -> None:
    outcomes = [play_revocations(seed, NODE) for seed in (1,)]
    broken = [one.report() for one in outcomes if one.violations]
    assert not broken, "\n\n".join(broken)
    assert all(one.operations > 200 for one in outcomes)
    assert sum(one.faults for one in outcomes) > 5
    assert all("Authorized" in one.promises for one in outcomes)


def test_a_world_that_broke_its_promise_is_played_again_by_what_it_says() -> None:
    found = replace(run_scenario(1, "users"), violations=[("Authorized", "said")])
    assert found.replay == "weir sim run --scenario users --seed 1 --seeds 1"
    assert "Authorized" in found.promises


def test_everything_is_tried_and_each_change_is_in_the_audit_topic_once() -> None:
    realm = AuditedRealm(3)
    assert realm.play() == []
    assert len(realm.found) >= sum(realm.answered.values()) > 6
    assert {verb for verb, _, _ in realm.answered} == {
        "create", "revoke", "set-password", "set-roles", "alter", "set-mode"
    }  # fmt: skip
    kept = realm.history
    assert kept.losses > 4
    assert any(one.served and one.is_lost for one in kept.accounts)
    assert all(one.served for one in kept.accounts if one.is_kept)


@pytest.mark.parametrize("mutant", cases(ACCESS, 1))
def test_a_rule_that_is_taken_away_is_missed(mutant: Mutant) -> None:
    found = hunt(mutant, more=10)
    assert found.caught, f"all play on as if nothing were gone: {mutant.rule}"
    assert found.promise in mutant.breaks
