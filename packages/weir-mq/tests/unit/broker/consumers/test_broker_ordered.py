"""Mode `ordered`: one active consumer, standbys that take over, and late acks that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.api.events import Closed
from weir.errors import BadRequest, StaleGrant
from weir.model.topic import Mode
from weir.protocol.client import messages as m

LEASE_MS = 1_000


class Crew:
    """Ten messages, one a batch; consumers in sessions 1 to 3, of an ordered cluster."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig
        for session in (1, 2, 3):
            rig.connect(session)
        self.info = rig.topic(1)
        self.producer = rig.answer(1, m.OpenProducer())
        self.sequence = 0
        self.publish(10)

    def publish(self, count: int) -> None:
        for _ in range(count):
            value = b"m%d" % self.sequence
            reply = self.rig.answer(
                1, self.rig.batch(self.info, self.producer, self.sequence, value)
            )
            assert isinstance(reply, m.Confirm)
            self.sequence += 1

    def pull(self, most: int = 3, wait_ms: int = 0, mode: Mode = Mode.ORDERED) -> m.Pull:
        return m.Pull(self.info.addresses[0], "crew", most, 1 << 20, wait_ms, LEASE_MS, mode)

    def ask(self, session: int, most: int = 3, wait_ms: int = 0) -> Any:
        return self.rig.answer(session, self.pull(most, wait_ms))

    def ack(self, session: int, granted: Any, count: int = -1) -> Any:
        behind = granted.next_offset if count < 0 else granted.offset + count
        ranges = [(granted.fence, granted.offset, behind)]
        return self.rig.answer(session, m.Ack(self.info.addresses[0], "crew", ranges))

    def nack(self, session: int, granted: Any, first: int, delay_ms: int = 0) -> Any:
        ranges = [(first, granted.next_offset)]
        address = self.info.addresses[0]
        request = m.Nack(address, "crew", granted.fence, ranges, delay_ms)
        return self.rig.answer(session, request)

    def begins(self, session: int, *runs: tuple[int, int]) -> None:
        """Say that messages are worked on: they had an attempt should they be lost."""
        ping = m.Ping([(self.info.addresses[0], "crew", runs)])
        assert isinstance(self.rig.answer(session, ping), m.Pong)

    def reply(self, session: int, number: int) -> Any:
        found = [reply for asked, reply in self.rig.replies[session] if asked == number]
        return found[0] if found else None


@pytest.fixture
def crew(rig: Any) -> Crew:
    return Crew(rig)


def span(granted: Any) -> tuple[int, int]:
    assert isinstance(granted, m.Granted)
    return granted.offset, granted.next_offset


def test_a_standby_gets_nothing_while_the_active_one_lives(crew: Crew) -> None:
    first = crew.ask(1)
    assert span(first) == (0, 3)
    waiting = crew.rig.ask(2, crew.pull(3, 60_000))
    crew.rig.settle()
    second = crew.ask(1)
    assert span(second) == (3, 6)
    crew.ack(1, first)
    crew.ack(1, second)
    crew.rig.tick(LEASE_MS // 2)
    assert crew.reply(2, waiting) is None
    assert span(crew.ask(1)) == (6, 9)
    assert crew.reply(2, waiting) is None


def test_pulls_in_one_flush_go_to_the_one_that_was_first(crew: Crew) -> None:
    numbers = [(s, crew.rig.ask(s, crew.pull(2))) for s in (2, 3, 2, 1)]
    crew.rig.settle()
    found = [span(crew.reply(*number)) for number in numbers]
    assert found == [(0, 2), (0, 0), (2, 4), (0, 0)]


def test_who_is_gone_is_followed_at_the_first_message_that_is_not_done(crew: Crew) -> None:
    first, second = crew.ask(1), crew.ask(1)
    crew.begins(1, (0, 3))
    waiting = {s: crew.rig.ask(s, crew.pull(5, 60_000)) for s in (2, 3)}
    crew.ack(1, first, 1)
    crew.ack(1, second)  # of 1 and 2, its acks died with it
    crew.rig.handle(Closed(1))
    crew.rig.settle()
    granted = crew.reply(2, waiting[2])
    assert span(granted) == (1, 3)
    assert granted.attempts == 2
    assert crew.reply(3, waiting[3]) is None
    crew.ack(2, granted)
    assert span(crew.ask(2)) == (6, 9)


def test_late_acks_of_who_was_deposed_are_refused(crew: Crew) -> None:
    first, second = crew.ask(1), crew.ask(1)
    crew.begins(1, (0, 6))
    crew.rig.time.pass_ms(LEASE_MS + 1)
    granted = crew.ask(2, 2)
    assert span(granted) == (0, 2)
    for late in (first, second):
        assert crew.ack(1, late).code == StaleGrant.code
    assert crew.ack(2, granted).done == 2
    again = crew.ask(2, 9)
    assert [span(again), again.attempts] == [(2, 6), 2]
    rest = crew.ask(2, 9)
    assert [span(rest), rest.attempts] == [(6, 10), 1], "not with those that failed before"


def test_who_stands_still_without_a_grant_is_followed_after_its_lease(crew: Crew) -> None:
    crew.ack(1, crew.ask(1))
    waiting = crew.rig.ask(2, crew.pull(3, 60_000))
    crew.rig.settle()
    crew.rig.tick(LEASE_MS - 1)
    assert crew.reply(2, waiting) is None
    crew.rig.tick(1)
    crew.rig.settle()
    assert span(crew.reply(2, waiting)) == (3, 6)


def test_who_acks_by_another_connection_pulls_by_that_at_once(crew: Crew) -> None:
    granted = crew.ask(1)
    waiting = crew.rig.ask(2, crew.pull(3, 60_000))
    crew.ack(2, granted, 1)
    assert crew.reply(2, waiting) is None, "the rest of the grant is not done"
    ranges = [(granted.fence, 1, 3)]
    crew.rig.answer(2, m.Ack(crew.info.addresses[0], "crew", ranges))
    assert span(crew.reply(2, waiting)) == (3, 6)


def test_acks_of_others_depose_nobody_who_asks_for_more(crew: Crew) -> None:
    granted = crew.ask(1)
    numbers = {s: crew.rig.ask(s, crew.pull(3, 60_000)) for s in (2, 1)}
    crew.ack(2, granted)
    crew.rig.settle()
    assert span(crew.reply(1, numbers[1])) == (3, 6)
    assert crew.reply(2, numbers[2]) is None


def test_one_in_line_stays_active_however_long_nothing_comes(crew: Crew) -> None:
    while span(granted := crew.ask(1, 5)) != (0, 0):
        crew.ack(1, granted)
    numbers = {s: crew.rig.ask(s, crew.pull(3, 60_000)) for s in (2, 1)}
    for _ in range(5):
        crew.rig.tick(LEASE_MS)
    crew.publish(1)
    crew.rig.settle()
    assert span(crew.reply(1, numbers[1])) == (10, 11)
    assert crew.reply(2, numbers[2]) is None


def test_a_nack_with_delay_holds_back_all_that_follows(crew: Crew) -> None:
    granted = crew.ask(1, 5)
    crew.ack(1, granted, 2)
    assert isinstance(crew.nack(1, granted, 2, 700), m.Nacked)
    assert span(crew.ask(1)) == (0, 0)
    assert span(crew.ask(2)) == (0, 0)
    crew.rig.time.pass_ms(699)
    assert span(crew.ask(1)) == (0, 0)
    crew.rig.time.pass_ms(1)
    again = crew.ask(1)
    assert [span(again), again.attempts] == [(2, 5), 2]


def test_a_nack_takes_back_what_was_granted_behind_it(crew: Crew) -> None:
    first, second = crew.ask(1), crew.ask(1)
    crew.nack(1, first, 1)
    assert crew.ack(1, second).code == StaleGrant.code
    assert span(crew.ask(1, 9)) == (1, 6)


def test_a_new_leader_knows_who_is_active(crew: Crew) -> None:
    first, second = crew.ask(1), crew.ask(1)
    crew.ack(1, first)
    crew.rig.disk.crash()
    crew.rig.boot()
    for session in (2, 3):
        crew.rig.connect(session)
    assert span(crew.ask(2)) == (0, 0), "the lease goes on, and with it who holds it"
    crew.rig.time.pass_ms(LEASE_MS + 1)
    taken = crew.ask(3, 2)
    assert [span(taken), taken.attempts] == [(3, 4), 2], "the new leader knows of no other"
    crew.rig.connect(1)
    assert crew.ack(1, second).code == StaleGrant.code
    assert span(crew.ask(2)) == (0, 0)
    crew.rig.boot()
    crew.rig.connect(2)
    crew.rig.time.pass_ms(LEASE_MS + 1)
    again = crew.ask(2, 9)
    assert [span(again), again.attempts] == [(3, 4), 3], "what fails again and again, alone"


def test_a_mode_is_for_good(crew: Crew) -> None:
    assert crew.rig.answer(1, crew.pull(mode=Mode.KEYED)).fence > 0
    for mode in (Mode.SHARED, Mode.ORDERED):
        refused = crew.rig.answer(2, crew.pull(mode=mode))
        assert refused.code == BadRequest.code
        assert "is keyed" in refused.message
    crew.rig.boot()
    crew.rig.connect(2)
    assert crew.rig.answer(2, crew.pull(mode=Mode.ORDERED)).code == BadRequest.code


def test_a_mode_is_chosen_by_who_comes_first(crew: Crew) -> None:
    crew.rig.ask(1, m.Pull(crew.info.addresses[0], "crew", 1, 1, 0, LEASE_MS, Mode.ORDERED))
    assert crew.rig.answer(2, crew.pull(mode=Mode.SHARED)).code == BadRequest.code


def test_an_extension_comes_too_late_once_the_lease_is_over(crew: Crew) -> None:
    granted = crew.ask(1)
    crew.begins(1, (0, 3))
    extend = m.Extend(crew.info.addresses[0], "crew", [granted.fence], LEASE_MS)
    crew.rig.time.pass_ms(LEASE_MS - 1)
    assert isinstance(crew.rig.answer(1, extend), m.Extended)
    crew.rig.time.pass_ms(LEASE_MS - 1)
    assert span(crew.ask(2)) == (0, 0)
    crew.rig.time.pass_ms(1)
    assert crew.rig.answer(1, extend).code == StaleGrant.code
    assert span(crew.ask(2)) == (0, 3)


def test_an_ordered_watch_is_told_if_it_is_its_turn(crew: Crew) -> None:
    watch = m.Pull(crew.info.addresses[0], "crew", 0, 0, 60_000, LEASE_MS, Mode.ORDERED)
    assert span(crew.ask(1)) == (0, 3)
    standby, active = crew.rig.ask(2, watch), crew.rig.ask(1, watch)
    crew.rig.settle()
    assert span(crew.reply(1, active)) == (3, 10)
    assert crew.reply(2, standby) is None


def test_what_is_being_given_back_is_not_free_when_another_grant_ends(crew: Crew) -> None:
    """Simulated set 860: its return had no commit yet when who gave it back was deposed."""
    first = crew.ask(1, 1)
    crew.rig.time.pass_ms(LEASE_MS // 2)
    address, lease = crew.info.addresses[0], LEASE_MS
    assert isinstance(
        crew.rig.answer(1, m.Extend(address, "crew", [first.fence], lease)), m.Extended
    )
    short = m.Pull(address, "crew", 1, 1 << 20, 0, LEASE_MS // 4, Mode.ORDERED)
    assert span(crew.rig.answer(1, short)) == (1, 2)
    crew.rig.time.pass_ms(LEASE_MS // 4)
    crew.rig.ask(1, m.Nack(address, "crew", first.fence, [(0, 1)], 700))
    early = crew.rig.ask(2, crew.pull(3))
    crew.rig.settle()
    assert span(crew.reply(2, early)) == (0, 0)
    crew.rig.time.pass_ms(699)
    assert span(crew.ask(2)) == (0, 0)
    crew.rig.time.pass_ms(1)
    assert crew.ask(2).offset == 0
