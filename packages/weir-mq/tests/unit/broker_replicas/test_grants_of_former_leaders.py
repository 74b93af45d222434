"""Grants that are committed though who proposed them leads no more, and its answer is gone."""

from __future__ import annotations

from typing import Any

import pytest

from rigs.replica_trio import PATIENCE_MS, STEP_MS
from weir.errors import NotLeader, refusal
from weir.model.topic import Mode
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

LEASE_MS = 2_000


class Crew:
    """Four messages in one partition, and the consumer of an ordered cluster at its leader."""

    def __init__(self, trio: Any, produce: Any) -> None:
        self.trio = trio
        self.info, grant = trio.topic(), trio.producer()
        self.group = self.info.addresses[0].group
        for sequence in range(4):
            self.trio.told(produce(self.info, grant, sequence, b"v%d" % sequence), self.group)
        self.leader = trio.leader(self.group)

    def pull(self, most: int) -> m.Pull:
        return m.Pull(self.info.addresses[0], "crew", most, 1 << 20, 0, LEASE_MS, Mode.ORDERED)

    def ask(self, most: int, session: int = 1) -> tuple[int, int]:
        granted = self.trio.answer(self.leader, self.pull(most), session)
        assert isinstance(granted, m.Granted)
        return granted.offset, granted.next_offset

    def hand_over(self, old: Any, new: Any) -> None:
        """Let another lead, in the middle of what is under way."""
        old.group(self.group).node.transfer_leadership(new.group(self.group).voter)
        old.group(self.group).process_ready()
        self.trio.until(lambda: self.trio.leader(self.group) is new)

    def hand_over_without_disk(self, old: Any, new: Any) -> None:
        """Let another lead while the old leader's own disk hangs."""
        old.group(self.group).node.transfer_leadership(new.group(self.group).voter)
        old.group(self.group).process_ready()
        (_, partition) = old.shard.topics.partition(self.group)
        for _ in range(PATIENCE_MS // STEP_MS):
            self.settle_without(old)
            if not partition.leads:
                break
            self.trio.pass_ms(STEP_MS)
        self.trio.until(lambda: self.trio.leader(self.group) is new)

    def settle_without(self, hung: Any) -> None:
        """Let all arrive, and all be done but what the disk of one node does."""
        others = [node for node in self.trio.live() if node is not hung]
        while self.trio.deliver() or any(node.jobs for node in others):
            for node in others:
                while node.jobs:
                    node.step()


@pytest.fixture
def crew(trio: Any, produce: Any) -> Crew:
    return Crew(trio, produce)


def test_what_is_behind_a_grant_waits_for_it_if_its_answer_died(crew: Crew) -> None:
    """Simulated set 844: back at its first leader, the consumer was taken for one that had it."""
    trio, first = crew.trio, crew.leader
    second = next(node for node in trio.live() if node is not first)
    asked = first.ask(crew.pull(1))
    crew.hand_over_without_disk(first, second)
    assert first.reply_to(asked).code == NotLeader.code
    crew.hand_over(second, first)
    (_, partition) = first.shard.topics.partition(crew.group)
    (grant,) = partition.state.clusters["crew"].grants.values()
    assert list(grant.left) == [(0, 1)], "it is committed all the same"
    assert crew.ask(3) == (0, 0)
    trio.run(LEASE_MS)
    assert crew.ask(1) == (0, 1)
    assert crew.ask(3) == (1, 4)


def test_a_grant_under_way_is_answered_before_another_leads(crew: Crew) -> None:
    """Its messages would be with nobody until its lease ended: the consumer was refused, and the
    next leader does not know that.
    """
    trio, first = crew.trio, crew.leader
    second = next(node for node in trio.live() if node is not first)
    asked = first.ask(crew.pull(1))
    first.group(crew.group).node.transfer_leadership(second.group(crew.group).voter)
    first.group(crew.group).process_ready()
    crew.settle_without(first)
    trio.until(lambda: trio.leader(crew.group) is second)
    granted = first.reply_to(asked)
    assert isinstance(granted, m.Granted)
    assert (granted.offset, granted.next_offset) == (0, 1)
    ranges = [(granted.fence, 0, 1)]
    assert trio.answer(second, m.Ack(crew.info.addresses[0], "crew", ranges)).done == 1


def test_a_consumer_goes_on_behind_what_it_has_done(crew: Crew) -> None:
    trio, first = crew.trio, crew.leader
    second = next(node for node in trio.live() if node is not first)
    granted = trio.answer(first, crew.pull(1))
    crew.hand_over(first, second)
    crew.hand_over(second, first)
    assert crew.ask(3) == (0, 0), "nobody here knows that it came"
    assert crew.ask(3, session=2) == (0, 0)
    ranges = [(granted.fence, granted.offset, granted.next_offset)]
    ack = trio.answer(first, m.Ack(crew.info.addresses[0], "crew", ranges))
    assert ack.done == 1
    assert crew.ask(3) == (1, 4)


def test_a_change_that_is_refused_while_leadership_is_handed_over_holds_nothing(crew: Crew) -> None:
    """Simulated set 1107: nobody took over, and the cluster was granted nothing any more."""
    trio, leader, address = crew.trio, crew.leader, crew.info.addresses[0]
    heir = next(node for node in trio.live() if node is not leader)
    granted = trio.answer(leader, crew.pull(1))
    trio.isolate(heir.id)
    leader.group(crew.group).node.transfer_leadership(heir.group(crew.group).voter)
    leader.group(crew.group).process_ready()
    assert not leader.group(crew.group).accepts
    nack = m.Nack(address, "crew", granted.fence, [(0, 1)])
    for request in (a.SeekCluster(address, "crew", 2), nack):
        refused = trio.answer(leader, request)
        assert refusal(refused.code, refused.message).retryable
    trio.until(lambda: leader.group(crew.group).accepts)
    assert crew.ask(3) == (1, 4)
    trio.run(LEASE_MS)
    # The first message of each grant counts an attempt, and a grant is of one number of attempts.
    assert crew.ask(3, session=2) == (0, 2)
