"""Messages that consumers give back, and grants that they keep longer (DESIGN §5 Consume)."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.api.events import Closed, Stopping
from weir.broker.consumers import acks
from weir.errors import (
    BadRequest,
    Overloaded,
    StaleGrant,
    Unavailable,
    UnknownCluster,
)
from weir.model.limits import ACK_RANGES_MAX, DELAY_MS_MAX, GRANT_MS_MAX
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

LEASE_MS = 1_000
DAY_MS = 24 * 3600 * 1000


class Shift:
    """A topic of ten messages, one a batch, and consumers in sessions 1 to 3."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        self.connect()
        self.info = rig.topic(1)
        self.address = self.info.addresses[0]
        self.grant = rig.answer(1, m.OpenProducer())
        for n in range(10):
            rig.answer(1, rig.batch(self.info, self.grant, n, b"m%d" % n))

    def connect(self) -> None:
        for session in (1, 2, 3):
            self.rig.connect(session)

    def request(self, most: int = 3, wait_ms: int = 0, lease_ms: int = LEASE_MS) -> m.Pull:
        return m.Pull(self.address, "crew", most, 1 << 20, wait_ms, lease_ms)

    def pull(self, session: int, most: int = 3, lease_ms: int = LEASE_MS) -> m.Granted:
        granted = self.rig.answer(session, self.request(most, 0, lease_ms))
        assert isinstance(granted, m.Granted)
        return granted

    def ack(self, fence: int, first: int, behind: int) -> m.Ack:
        return m.Ack(self.address, "crew", [(fence, first, behind)])

    def nack(
        self, fence: int, *ranges: tuple[int, int], delay_ms: int = 0, untried: bool = False
    ) -> m.Nack:
        return m.Nack(self.address, "crew", fence, list(ranges), delay_ms, untried)

    def extend(self, *fences: int, lease_ms: int = LEASE_MS) -> m.Extend:
        return m.Extend(self.address, "crew", list(fences), lease_ms)

    def begins(self, session: int, *runs: tuple[int, int]) -> None:
        """Say that messages are worked on: they had an attempt should they be lost."""
        ping = m.Ping([(self.address, "crew", runs)])
        assert isinstance(self.rig.answer(session, ping), m.Pong)

    def reply(self, session: int, number: int) -> Any:
        found = [reply for asked, reply in self.rig.replies[session] if asked == number]
        return found[0] if found else None

    def listed(self) -> a.ClusterInfo:
        listed = self.rig.answer(1, a.ListClusters(self.address, "crew"))
        assert isinstance(listed, a.ClusterList)
        (info,) = listed.clusters
        return info


@pytest.fixture
def shift(rig: Any) -> Shift:
    return Shift(rig)


def span(granted: m.Granted) -> tuple[int, int]:
    assert granted.fence > 0
    return granted.offset, granted.next_offset


def test_what_is_given_back_goes_to_who_waits_at_once(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10)
    waiting = rig.ask(2, shift.request(10, wait_ms=5_000))
    rig.settle()
    assert shift.reply(2, waiting) is None
    assert rig.answer(1, shift.nack(held.fence, (4, 6))) == m.Nacked(0)
    granted = shift.reply(2, waiting)
    assert span(granted) == (4, 6)
    assert granted.attempts == 2
    assert rig.answer(1, shift.ack(held.fence, 4, 5)).code == StaleGrant.code
    assert rig.answer(1, shift.ack(held.fence, 0, 4)).done == 4
    assert rig.answer(2, shift.ack(granted.fence, 4, 6)).done == 6


def test_it_leaves_nobody_before_it_is_committed(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10)
    number = rig.ask(1, shift.nack(held.fence, (0, 10)))
    pulled = rig.ask(2, shift.request(10, wait_ms=50))
    assert (shift.reply(1, number), shift.reply(2, pulled)) == (None, None)
    rig.settle()
    assert shift.reply(1, number) == m.Nacked(0)
    assert span(shift.reply(2, pulled)) == (0, 10)


def test_what_is_held_back_is_nobodys_until_its_time(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1)
    nacked = rig.answer(1, shift.nack(held.fence, (0, 1), (2, 3), delay_ms=60_000))
    assert nacked.deadline > held.deadline
    info = shift.listed()
    assert (info.granted, info.held_back, info.lag) == (1, 2, 10)
    assert span(shift.pull(2, 10, lease_ms=GRANT_MS_MAX)) == (3, 10)
    waiting = rig.ask(3, shift.request(10, wait_ms=60_000))
    rig.tick(LEASE_MS + 1)
    rig.settle()
    assert span(shift.reply(3, waiting)) == (1, 2), "the rest of the grant has its own time"
    assert shift.pull(3, 10).fence == 0
    rig.time.pass_ms(60_000 - LEASE_MS - 2)
    assert shift.pull(3, 10, lease_ms=GRANT_MS_MAX).attempts == 3, "[1, 2), twice over"
    assert shift.pull(3, 10).fence == 0
    rig.time.pass_ms(1)
    again = [shift.pull(3, 10) for _ in range(2)]
    assert [span(one) for one in again] == [(0, 1), (2, 3)]
    assert [one.attempts for one in again] == [2, 2]
    assert shift.listed().held_back == 0


def test_a_new_leader_holds_it_back_as_long(shift: Shift) -> None:
    """By the log's last stamp, and by its own clock where nothing was written since."""
    rig = shift.rig
    held = shift.pull(1, 10)
    rig.answer(1, shift.nack(held.fence, (0, 1), delay_ms=DAY_MS))
    rig.answer(1, shift.ack(held.fence, 1, 10))
    for hours in (0, 20):
        rig.time.pass_ms(hours * 3600 * 1000)
        rig.disk.crash()
        rig.boot()
        shift.connect()
        assert shift.pull(1).fence == 0
    rig.time.pass_ms(4 * 3600 * 1000 - 1)
    assert shift.pull(1).fence == 0
    rig.time.pass_ms(1)
    again = shift.pull(1)
    assert (span(again), again.attempts) == ((0, 1), 2)


def test_what_was_handed_to_nobody_counts_no_attempt(shift: Shift) -> None:
    rig = shift.rig
    for _ in range(3):
        held = shift.pull(1, 10)
        assert (span(held), held.attempts) == ((0, 10), 1)
        rig.answer(1, shift.nack(held.fence, (0, 10), untried=True))
    held = shift.pull(1, 10)
    rig.answer(1, shift.nack(held.fence, (0, 10)))
    assert shift.pull(1, 10).attempts == 2


def test_a_stale_nack_takes_nothing_from_who_holds_it_now(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10)
    shift.begins(1, (0, 10))
    rig.time.pass_ms(LEASE_MS + 1)
    later = shift.pull(2, 4)
    refusal = rig.answer(1, shift.nack(held.fence, (0, 10)))
    assert (refusal.code, refusal.detail) == (StaleGrant.code, held.fence)
    assert rig.answer(1, shift.nack(held.fence, (0, 10))).code == StaleGrant.code, "told again"
    assert span(shift.pull(3, 10)) == (4, 10), "which was that grant's still"
    assert rig.answer(2, shift.ack(later.fence, 0, 4)).done == 4


def test_what_is_done_is_not_given_back(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10)
    rig.answer(1, shift.ack(held.fence, 2, 5))
    assert rig.answer(1, shift.nack(held.fence, (0, 10))) == m.Nacked(0)
    assert [span(shift.pull(2, 10)) for _ in range(2)] == [(0, 2), (5, 10)]


def test_an_extended_grant_ends_later(shift: Shift) -> None:
    rig = shift.rig
    held, other = shift.pull(1, 3), shift.pull(1, 3)
    shift.begins(1, (0, 6))
    rig.time.pass_ms(LEASE_MS - 1)
    extended = rig.answer(1, shift.extend(held.fence, lease_ms=5_000))
    assert extended.deadline > held.deadline
    rig.time.pass_ms(4_999)
    assert span(shift.pull(2, 10)) == span(other)
    assert span(shift.pull(2, 10)) == (6, 10)
    assert shift.pull(2, 10).fence == 0
    rig.time.pass_ms(1)
    again = shift.pull(2, 10, GRANT_MS_MAX)
    while span(again) != span(held):
        again = shift.pull(2, 10, GRANT_MS_MAX)
    assert again.attempts == 2


def test_an_extension_never_ends_a_grant_sooner(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10, lease_ms=5_000)
    rig.answer(1, shift.extend(held.fence, lease_ms=10))
    rig.time.pass_ms(4_999)
    assert shift.pull(2).fence == 0
    rig.disk.crash()
    rig.boot()
    shift.connect()
    assert shift.pull(2).fence == 0


def test_a_new_leader_knows_of_an_extension(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10)
    rig.answer(1, shift.extend(held.fence, lease_ms=60_000))
    rig.disk.crash()
    rig.boot()
    shift.connect()
    rig.time.pass_ms(59_999)
    assert shift.pull(2).fence == 0
    rig.time.pass_ms(1)
    assert span(shift.pull(2, 10)) == (0, 1)


def test_a_grant_that_ended_is_extended_while_nobody_has_it(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10)
    shift.begins(1, (0, 10))
    rig.time.pass_ms(LEASE_MS + 1)
    number = rig.ask(1, shift.extend(held.fence))
    pulled = rig.ask(2, shift.request(10))
    rig.settle()
    assert isinstance(shift.reply(1, number), m.Extended)
    assert shift.reply(2, pulled).fence == 0, "not even before the extension is committed"
    rig.time.pass_ms(LEASE_MS + 1)
    assert span(shift.pull(2, 10)) == (0, 10)
    refusal = rig.answer(1, shift.extend(held.fence))
    assert (refusal.code, refusal.detail) == (StaleGrant.code, held.fence)


def test_a_gone_consumers_grants_are_not_extended(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10)
    shift.begins(1, (0, 10))
    rig.handle(Closed(1))
    rig.settle()
    assert rig.answer(2, shift.extend(held.fence)).code == StaleGrant.code
    assert span(shift.pull(3, 10)) == (0, 10)


def test_of_several_grants_those_that_are_left_are_extended(shift: Shift) -> None:
    rig = shift.rig
    first, second = shift.pull(1, 5), shift.pull(1, 5)
    rig.answer(1, shift.ack(first.fence, 0, 5))
    refusal = rig.answer(1, shift.extend(first.fence, second.fence, lease_ms=60_000))
    assert (refusal.code, refusal.detail) == (StaleGrant.code, first.fence)
    rig.time.pass_ms(59_999)
    assert shift.pull(2).fence == 0


def test_what_makes_no_sense_is_refused(shift: Shift) -> None:
    rig = shift.rig
    assert rig.answer(1, shift.nack(1, (0, 1))).code == UnknownCluster.code
    assert rig.answer(1, shift.extend(1)).code == UnknownCluster.code
    held = shift.pull(1)
    for ranges in ([], [(1, 1)], [(0, 11)], [(0, 1)] * ACK_RANGES_MAX + [(0, 1)]):
        if len(ranges) <= ACK_RANGES_MAX:
            assert rig.answer(1, shift.nack(held.fence, *ranges)).code == BadRequest.code
    late = shift.nack(held.fence, (0, 1), delay_ms=DELAY_MS_MAX + 1)
    assert rig.answer(1, late).code == BadRequest.code
    assert rig.answer(1, shift.extend()).code == BadRequest.code
    for lease_ms in (0, GRANT_MS_MAX + 1):
        refusal = rig.answer(1, shift.extend(held.fence, lease_ms=lease_ms))
        assert refusal.code == BadRequest.code
    assert rig.answer(1, shift.ack(held.fence, 0, 3)).done == 3, "nothing was taken"


def test_a_full_cluster_takes_back_whole_grants_only(
    shift: Shift, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held back in parts costs a grant each, and there is an end to them."""
    rig = shift.rig
    held = shift.pull(1, 10)
    monkeypatch.setattr(acks, "GRANTS_PER_CLUSTER_MAX", 1)
    assert rig.answer(1, shift.nack(held.fence, (0, 9))).code == Overloaded.code
    assert rig.answer(1, shift.nack(held.fence, (0, 4), (4, 10))) == m.Nacked(0)


def test_a_cluster_deleted_meanwhile_is_said(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10)
    rig.handle(Closed(1))
    rig.settle()
    rig.ask(2, a.DeleteCluster(shift.address, "crew"))
    nacked = rig.ask(2, shift.nack(held.fence, (0, 10)))
    extended = rig.ask(2, shift.extend(held.fence))
    rig.settle()
    assert shift.reply(2, nacked).code == UnknownCluster.code
    assert shift.reply(2, extended).code == UnknownCluster.code


def test_near_its_end_a_stop_takes_none(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10)
    rig.handle(Stopping(acks_ms=1_000))
    assert rig.answer(1, shift.nack(held.fence, (0, 2))) == m.Nacked(0)
    rig.tick(1_001)
    rig.settle()
    for request in (shift.nack(held.fence, (2, 4)), shift.extend(held.fence)):
        number = rig.ask(1, request)
        rig.settle()
        reply = shift.reply(1, number)
        assert reply is None or reply.code == Unavailable.code


def test_a_seek_is_the_end_of_what_was_held_back(shift: Shift) -> None:
    rig = shift.rig
    held = shift.pull(1, 10)
    rig.answer(1, shift.nack(held.fence, (0, 10), delay_ms=60_000))
    rig.answer(1, a.SeekCluster(shift.address, "crew", 0))
    again = shift.pull(2, 10)
    assert (span(again), again.attempts) == ((0, 10), 1)
