"""What consumers at a relay work on is told to the leaders, whichever shard the relay is at."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rigs.shards_of_a_node import Node
from weir.broker.api import events as ev
from weir.client.connection.connection import Connection, OnAnswer
from weir.errors import BadRequest, Disconnected
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX, MIB
from weir.model.topic import Mode
from weir.protocol.client import messages as m
from weir.relay_node.sessions import BEGUN_CLUSTERS_MAX, BEGUN_PARTITIONS_MAX, BegunReports

AT = Address(0, 0, 1 << 16, 7)
TOKEN = bytes(range(16))
PULL = m.Pull(AT, "crew", 3, MIB, 500, 9_000, Mode.KEYED, [(4, 5)], ("a",), True, TOKEN)


class Upstream:
    """A connection to the core that takes what is offered, or not."""

    def __init__(self) -> None:
        self.takes = True
        self.offered: list[Any] = []
        self.answers: list[OnAnswer] = []

    def offer(self, request: m.Request, on_answer: OnAnswer) -> int | None:
        if not self.takes:
            return None
        self.offered.append(request)
        self.answers.append(on_answer)
        return len(self.offered)

    def told(self, reports: BegunReports, *begun: Any) -> int:
        """Return how many reports a ping brings."""
        before = len(self.offered)
        reports.tell(m.Ping(begun), cast(Connection, self))
        return len(self.offered) - before


@pytest.fixture
def reports() -> BegunReports:
    found = BegunReports()
    found.granted(PULL)
    return found


def test_a_message_that_ends_its_consumer_counts_whichever_shard_leads(
    reports: BegunReports,
) -> None:
    node = Node(3)
    for shard in range(3):
        node.connect(shard)
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(one for one in info.addresses if one.shard == 2)
    for number in range(3):
        node.answer(1, node.batch(address, grant, number))
    pull = m.Pull(Address(0, 0, address.group), "crew", 3, MIB)
    assert node.answer(1, pull).next_offset == 3
    reports.granted(pull)
    upstream = Upstream()
    assert upstream.told(reports, (address, "crew", [(1, 2)])) == 1
    assert node.answer(1, upstream.offered[0]).fence == 0
    node.all[1].handle(ev.Closed(1))
    node.settle()
    again = m.Pull(address, "crew", 3, MIB)
    found = [node.answer(0, again) for _ in range(3)]
    assert {one.offset: one.attempts for one in found} == {0: 1, 1: 2, 2: 1}


def test_a_report_is_a_pull_of_no_message_in_the_way_of_the_last_one(
    reports: BegunReports,
) -> None:
    upstream, other = Upstream(), Address(0, 0, AT.group + 1, 7)
    assert upstream.told(reports, (AT, "crew", [(0, 1)]), (other, "crew", [(5, 7)])) == 2
    assert upstream.offered == [
        m.Pull(
            Address(0, 0, at.group), "crew", 0, 0, 0, 9_000, Mode.KEYED, runs, ("a",), True, TOKEN
        )
        for at, runs in ((AT, [(0, 1)]), (other, [(5, 7)]))
    ]


def test_what_was_not_granted_here_is_not_reported(reports: BegunReports) -> None:
    begun = [(AT, "crew", []), (AT, "other", [(0, 1)]), (Address(0, 0, 9 << 16), "crew", [(0, 1)])]
    assert Upstream().told(reports, *begun) == 0


def test_reports_of_one_ping_are_under_way(reports: BegunReports) -> None:
    upstream, one = Upstream(), (AT, "crew", [(0, 1)])
    upstream.takes = False
    assert upstream.told(reports, one) == 0
    upstream.takes = True
    assert upstream.told(reports, one, one) == 2
    upstream.answers[0](1, m.Pong(0))
    assert upstream.told(reports, one) == 0, "one is under way"
    assert Upstream().told(reports, one) == 1, "with the connection it was lost"
    upstream.answers[1](2, Disconnected("it ended"))
    last = Upstream()
    assert last.told(reports, *[one] * (BEGUN_PARTITIONS_MAX + 1)) == BEGUN_PARTITIONS_MAX
    for answer in last.answers:
        answer(1, m.Pong(0))
    assert last.told(reports, one) == 1


def test_more_runs_than_the_core_takes_are_refused(reports: BegunReports) -> None:
    many = [(2 * number, 2 * number + 1) for number in range(ACK_RANGES_MAX // 2 + 1)]
    with pytest.raises(BadRequest, match="10,000 runs"):
        Upstream().told(reports, (AT, "crew", many), (AT, "other", many))


def test_the_clusters_of_a_client_are_forgotten_in_turn(reports: BegunReports) -> None:
    for number in range(BEGUN_CLUSTERS_MAX):
        if number == 1:
            reports.granted(PULL)  # it is the newest again
        reports.granted(m.Pull(AT, f"c{number}", 1, 1))
    upstream = Upstream()
    assert upstream.told(reports, (AT, "c0", [(0, 1)])) == 0
    assert upstream.told(reports, (AT, "crew", [(0, 1)]), (AT, "c1", [(0, 1)])) == 2
