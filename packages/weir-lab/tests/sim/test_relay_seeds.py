"""Worlds in which some read and consume by relay nodes as they ship, which are killed, too.

WEIR_RELAY_NODE_SEEDS says how many are played of one node, and of three nodes a quarter as many,
but one.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from rigs.drawn_mutants import one_in
from weir.protocol.client import messages as m
from weir.relay_node.gate import RelayGate
from weir.relay_node.requests import AnswerRoom
from weir.relay_node.sessions import ReaderSession
from weir_lab.sim.run import run_drawn, run_seed, run_seeds
from weir_lab.sim.shape import NODE_TIERS, SET_TIERS

SEEDS = int(os.environ.get("WEIR_RELAY_NODE_SEEDS", "2"))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    """How often relays answered by each reply."""
    found = Counter[type]()
    answer = RelayGate.answer

    async def counted(
        gate: RelayGate, request: m.Request, room: AnswerRoom, session: ReaderSession
    ) -> m.Reply:
        reply = await answer(gate, request, room, session)
        found[type(reply)] += 1
        return reply

    monkeypatch.setattr(RelayGate, "answer", counted)
    return found


@pytest.mark.timeout(120 + 15 * SEEDS)
def test_what_comes_by_relays_is_whole_and_in_order_and_done_once(answered: Counter[type]) -> None:
    at_stake = Counter[str]()
    for shape, seeds in {NODE_TIERS: SEEDS, SET_TIERS: max(SEEDS // 4, 1)}.items():
        outcomes = list(run_seeds(0, seeds, shape))
        broken = [one.report() for one in outcomes if one.violations]
        assert not broken, "\n\n".join(broken[:3])
        at_stake.update(name for one in outcomes for name in one.promises)
    assert all(at_stake[name] for name in ("OneOrder", "ReadWhole", "AckedOnce"))
    # Readers and consumers are answered by relays, and not by the core alone.
    assert answered[m.Fetched] >= 20
    assert answered[m.Granted] >= 20
    assert answered[m.Acked] >= 20


@one_in(3)
@pytest.mark.timeout(120)
def test_a_seed_with_relays_replays_to_the_byte() -> None:
    first, again = (run_seed(5, NODE_TIERS).trace_hash for _ in range(2))
    assert first == again


@one_in(3)
@pytest.mark.timeout(120)
def test_a_reader_goes_on_behind_what_its_relay_lacks() -> None:
    """What a relay kept began in front of what went past retention before it came there. From the
    beginning its readers came to that again and again: the simulation's own fault.
    """
    outcome = run_seed(83, NODE_TIERS)
    assert not outcome.violations, outcome.report()


@pytest.mark.timeout(120)
def test_a_grant_that_is_dropped_while_its_lease_is_extended_goes_to_others() -> None:
    assert not run_drawn(993521442).violations


@pytest.mark.timeout(120)
def test_what_comes_for_a_consumer_in_order_that_leaves_a_relay_goes_to_others_at_once() -> None:
    """Grant 91 of the cluster `order` came when its consumer was closed, and the core kept it for
    that one: no other consumer got what comes behind it before its lease of 8 s was over.
    """
    outcome = run_drawn(214590869)
    assert not outcome.violations, outcome.report()


@pytest.mark.timeout(120)
def test_a_report_while_a_grant_is_moved_to_another_relay_loses_nothing() -> None:
    """Grant 89 of the cluster `order` was moved by its consumer while that reported its message, 9:
    the report was refused, the consumer held it no more, and was granted 10, which came before 9.
    """
    outcome = run_drawn(889983797)
    assert not outcome.violations, outcome.report()
