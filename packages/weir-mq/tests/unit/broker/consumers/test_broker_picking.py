"""What the modes share: how much is granted again, and what comes between a pick and its commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from weir.broker.api.events import Closed
from weir.errors import BadRequest, StaleGrant
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX
from weir.model.topic import Mode
from weir.protocol.client import messages as m

LEASE_MS = 1_000
MODES = list(Mode)

Run = tuple[int, int]


class Crew:
    """A hundred messages in one batch, of five keys; each consumer has a session of its own."""

    def __init__(self, rig: Any, mode: Mode) -> None:
        self.rig, self.mode = rig, mode
        rig.connect(1)
        self.address = rig.topic(1).addresses[0]
        info = rig.answer(1, m.DescribeTopic("t"))
        producer = rig.answer(1, m.OpenProducer())
        keys = [b"%d" % (n % 5) for n in range(100)]
        rig.answer(1, rig.batch(info, producer, 0, *[b"x"] * 100, keys=keys))
        self.sessions = 10

    def consumer(self) -> int:
        self.sessions += 1
        self.rig.connect(self.sessions)
        return self.sessions

    def request(
        self, most: int, wait_ms: int = 0, begun: list[tuple[int, int]] | None = None
    ) -> m.Pull:
        return m.Pull(self.address, "crew", most, 1 << 20, wait_ms, LEASE_MS, self.mode, begun)

    def pull(self, session: int, most: int = 64) -> Any:
        return self.rig.answer(session, self.request(most))

    def ack(self, session: int, granted: Any, runs: Sequence[Run] = ()) -> Any:
        ranges = [(granted.fence, *run) for run in runs or runs_of(granted)]
        return self.rig.answer(session, m.Ack(self.address, "crew", ranges))

    def nack(self, granted: Any, first: int, behind: int, delay_ms: int) -> m.Nack:
        return m.Nack(self.address, "crew", granted.fence, [(first, behind)], delay_ms)

    def says(self, session: int, granted: Any, how: str, begun: list[Run]) -> None:
        """Let a consumer say what it works on, with something that it asks for anyhow."""
        if how == "pull":
            self.rig.ask(session, m.Pull(self.address, "crew", 0, 0, 1, LEASE_MS, self.mode, begun))
        elif how == "extend":
            request = m.Extend(self.address, "crew", [granted.fence], LEASE_MS, begun)
            assert isinstance(self.rig.answer(session, request), m.Extended)
        else:
            ping = m.Ping([(self.address, "crew", begun)])
            assert isinstance(self.rig.answer(session, ping), m.Pong)

    def attempts(self, session: int) -> dict[int, int]:
        """Pull and ack all there is; return by offset for the how-manieth time it came."""
        found: dict[int, int] = {}
        while (granted := self.pull(session)).fence:
            for run in runs_of(granted):
                found.update(dict.fromkeys(range(*run), granted.attempts))
            self.ack(session, granted)
        return dict(sorted(found.items()))

    def die(self, session: int) -> None:
        self.rig.handle(Closed(session))
        self.rig.settle()

    def reply(self, session: int, number: int) -> Any:
        (found,) = [reply for asked, reply in self.rig.replies[session] if asked == number]
        return found


def runs_of(granted: Any) -> list[tuple[int, int]]:
    return list(granted.runs) or [(granted.offset, granted.next_offset)]


def size(granted: Any) -> int:
    return sum(behind - first for first, behind in runs_of(granted))


@pytest.fixture(params=MODES, ids=lambda mode: mode.name.lower())
def crew(rig: Any, request: Any) -> Crew:
    return Crew(rig, request.param)


def test_what_kills_its_consumers_reaches_its_last_attempt_and_its_neighbours_keep_theirs(
    crew: Crew,
) -> None:
    """Message 40 does, and nobody says so: what is before it is acked when it is begun."""
    worst: dict[int, int] = {}
    for _ in range(6):
        session = crew.consumer()
        for _ in range(2):
            granted = crew.pull(session)
            runs = runs_of(granted) if granted.fence else []
            for first, behind in runs:
                for offset in range(first, behind):
                    worst[offset] = max(worst.get(offset, 0), granted.attempts)
            begun = [(first, min(behind, 40)) for first, behind in runs if first < 40]
            if any(first <= 40 < behind for first, behind in runs):
                if begun:
                    crew.ack(session, granted, begun)
                break
            if runs:
                crew.ack(session, granted)
        crew.die(session)
    assert worst.pop(40) == 6
    assert set(worst.values()) == {1}


SAID = ["pull", "extend", "ping"]


@pytest.mark.parametrize("how", SAID)
def test_what_was_begun_counts_an_attempt_when_its_connection_breaks(crew: Crew, how: str) -> None:
    one = crew.consumer()
    held = crew.pull(one, 10)
    assert runs_of(held) == [(0, 10)]
    crew.says(one, held, how, [(3, 4), (6, 8)])
    assert isinstance(crew.ack(one, held, [(6, 7)]), m.Acked)
    crew.die(one)
    crew.rig.boot()  # it is in the log
    counts = crew.attempts(crew.consumer())
    assert [offset for offset in counts if counts[offset] == 2] == [3, 7]
    assert {offset for offset in counts if counts[offset] == 1} == {*range(100)} - {3, 6, 7}


@pytest.mark.parametrize("how", SAID)
def test_what_was_begun_counts_when_its_lease_ends(crew: Crew, how: str) -> None:
    one, other = crew.consumer(), crew.consumer()
    held = crew.pull(one, 10)
    crew.says(one, held, how, [(0, 2)])
    crew.says(one, held, how, [(3, 4), (6, 8)])  # it has done the others
    crew.rig.time.pass_ms(LEASE_MS)
    counts = crew.attempts(other)
    assert [offset for offset in counts if counts[offset] == 2] == [3, 6, 7]
    assert set(counts.values()) == {1, 2}


def test_of_what_a_consumer_had_besides_nothing_counts(crew: Crew) -> None:
    one = crew.consumer()
    held, ahead = crew.pull(one, 3), crew.pull(one, 2)
    crew.says(one, held, "ping", [(1, 2)])
    assert ahead.fence
    crew.die(one)
    counts = crew.attempts(crew.consumer())
    assert [offset for offset in counts if counts[offset] == 2] == [1]


def test_where_nothing_was_said_the_first_unfinished_message_counts(crew: Crew) -> None:
    one = crew.consumer()
    held = crew.pull(one, 10)
    crew.says(one, held, "ping", [(0, 2)])
    crew.ack(one, held, [(0, 4)])  # what was said is over
    crew.die(one)
    counts = crew.attempts(crew.consumer())
    assert [offset for offset in counts if counts[offset] == 2] == [4]


def tried(crew: Crew) -> None:
    """Let message 0 have had an attempt, and no other."""
    one = crew.consumer()
    assert runs_of(crew.pull(one, 1)) == [(0, 1)]
    crew.die(one)


def again(crew: Crew, session: int, begun: list[Run] | None) -> Any:
    """Pull what was tried, as one who begins it later."""
    granted = crew.rig.answer(session, crew.request(1, 0, begun))
    assert runs_of(granted) == [(0, 1)]
    return granted


def test_what_was_tried_and_only_waits_loses_no_attempt_by_a_connection_that_breaks(
    crew: Crew,
) -> None:
    tried(crew)
    for _ in range(3):
        session = crew.consumer()
        assert again(crew, session, []).attempts == 2
        crew.die(session)
    crew.rig.boot()  # it is in the log
    assert crew.attempts(crew.consumer())[0] == 2


def test_what_was_tried_and_only_waits_loses_no_attempt_by_the_end_of_its_lease(
    crew: Crew,
) -> None:
    tried(crew)
    for _ in range(3):
        assert again(crew, crew.consumer(), []).attempts == 2
        crew.rig.time.pass_ms(LEASE_MS)
    assert crew.attempts(crew.consumer())[0] == 2


@pytest.mark.parametrize("ends", ["connection", "lease"])
def test_what_was_tried_counts_once_it_is_reported(crew: Crew, ends: str) -> None:
    tried(crew)
    for attempts in (2, 3, 4):
        session = crew.consumer()
        granted = again(crew, session, [])
        assert granted.attempts == attempts
        crew.says(session, granted, "pull", [(0, 1)])
        if ends == "connection":
            crew.die(session)
        else:
            crew.rig.time.pass_ms(LEASE_MS)
    assert crew.attempts(crew.consumer())[0] == 5


def report(crew: Crew) -> m.Pull:
    return m.Pull(crew.address, "crew", 0, 0, 0, LEASE_MS, crew.mode, [(0, 1)])


def test_a_report_that_comes_by_another_connection_counts_for_who_holds_the_message(
    crew: Crew,
) -> None:
    tried(crew)
    session, other = crew.consumer(), crew.consumer()
    again(crew, session, [])
    assert crew.rig.answer(other, report(crew)).fence == 0
    crew.die(other)
    crew.die(session)
    assert crew.attempts(crew.consumer())[0] == 3


def test_a_report_takes_nothing_back_that_was_reported_before(crew: Crew) -> None:
    session = crew.consumer()
    held = crew.pull(session, 3)
    crew.says(session, held, "ping", [(1, 2)])
    assert crew.rig.answer(session, report(crew)).fence == 0
    crew.die(session)
    counts = crew.attempts(crew.consumer())
    assert [offset for offset in counts if counts[offset] == 2] == [0, 1]


def test_what_was_granted_before_another_led_is_still_reported(crew: Crew) -> None:
    tried(crew)
    granted = again(crew, crew.consumer(), [])
    crew.rig.boot()
    session = crew.consumer()
    assert crew.rig.answer(session, report(crew)).fence == 0
    assert isinstance(crew.ack(session, granted), m.Acked)


def test_what_is_being_released_cannot_be_reported(crew: Crew) -> None:
    tried(crew)
    session, other = crew.consumer(), crew.consumer()
    again(crew, session, [])
    crew.rig.handle(Closed(session))  # and nothing of it is committed yet
    asked = crew.rig.ask(other, report(crew))
    crew.rig.settle()
    assert crew.reply(other, asked).code == StaleGrant.code


def test_of_one_who_does_not_report_the_first_message_counts_as_often_as_it_is_lost(
    crew: Crew,
) -> None:
    tried(crew)
    for attempts in (2, 3, 4):
        session = crew.consumer()
        assert again(crew, session, None).attempts == attempts
        crew.die(session)


def test_a_new_leader_has_heard_no_report_and_counts_what_may_have_begun(crew: Crew) -> None:
    tried(crew)
    granted = again(crew, session := crew.consumer(), [])
    crew.says(session, granted, "pull", [(0, 1)])
    crew.rig.boot()
    crew.rig.time.pass_ms(LEASE_MS)
    assert crew.attempts(crew.consumer())[0] == 3


def test_a_grant_that_never_left_is_no_attempt(crew: Crew) -> None:
    one = crew.consumer()
    crew.rig.ask(one, crew.request(10))
    crew.die(one)
    assert set(crew.attempts(crew.consumer()).values()) == {1}


def test_what_is_said_of_others_or_of_too_much_changes_nothing(crew: Crew) -> None:
    one, other = crew.consumer(), crew.consumer()
    held = crew.pull(one, 10)
    row = (crew.address, "crew", [(5, 6), (9, 2)])
    assert isinstance(crew.rig.answer(other, m.Ping([row])), m.Pong), "it holds nothing"
    gone = Address(0, 0, 1 << 40)
    assert isinstance(crew.rig.answer(one, m.Ping([(gone, "crew", [(5, 6)])])), m.Pong)
    many = [(crew.address, "crew", [(5, 6)] * ACK_RANGES_MAX)] * 2
    assert crew.rig.answer(one, m.Ping(many)).code == BadRequest.code
    crew.ack(one, held, [(0, 1)])
    crew.die(one)
    counts = crew.attempts(crew.consumer())
    assert [offset for offset in counts if counts[offset] == 2] == [1]


def test_what_failed_is_not_mixed_with_what_is_new(crew: Crew) -> None:
    first = crew.consumer()
    granted = crew.pull(first, 10)
    assert runs_of(granted) == [(0, 10)]
    crew.says(first, granted, "ping", [(0, 10)])
    crew.die(first)
    second = crew.consumer()
    again = crew.pull(second, 64)
    assert [runs_of(again), again.attempts] == [[(0, 10)], 2]
    new = crew.pull(second, 64)
    assert not new.fence if crew.mode is Mode.KEYED else new.attempts == 1


def test_nothing_is_granted_past_a_return_in_line(crew: Crew) -> None:
    """The pull comes when the nack is proposed and not committed yet."""
    session = crew.consumer()
    granted = crew.pull(session, 5)
    nacked = crew.rig.ask(session, crew.nack(granted, 0, 5, 300))
    pulled = crew.rig.ask(session, crew.request(5, 10_000))
    crew.rig.settle()
    assert isinstance(crew.reply(session, nacked), m.Nacked)
    replies = [reply for asked, reply in crew.rig.replies[session] if asked == pulled]
    if crew.mode is Mode.SHARED:
        assert runs_of(replies[0]) == [(5, 10)]
    else:
        assert replies == []
        crew.rig.tick(299)
        crew.rig.settle()
        assert crew.rig.replies[session][-1][0] != pulled
        crew.rig.tick(1)
        crew.rig.settle()
        assert runs_of(crew.reply(session, pulled)) == [(0, 5)]


def test_a_lease_does_not_end_while_something_of_it_is_given_back(crew: Crew) -> None:
    """Else what is granted behind the nack would be taken from what it holds back."""
    session, other = crew.consumer(), crew.consumer()
    granted = crew.pull(session, 5)
    crew.rig.time.pass_ms(LEASE_MS - 1)
    nacked = crew.rig.ask(session, crew.nack(granted, 0, 5, 300))
    crew.rig.time.pass_ms(1)
    pulled = crew.rig.ask(other, crew.request(5))
    crew.rig.settle()
    assert isinstance(crew.reply(session, nacked), m.Nacked)
    found = crew.reply(other, pulled)
    assert not found.fence or runs_of(found) == [(5, 10)]


@pytest.mark.parametrize("mode", [Mode.KEYED, Mode.ORDERED])
def test_what_has_ended_cannot_be_given_back_where_order_matters(rig: Any, mode: Mode) -> None:
    crew = Crew(rig, mode)
    session = crew.consumer()
    granted = crew.pull(session, 5)
    rig.time.pass_ms(LEASE_MS)
    assert rig.answer(session, crew.nack(granted, 0, 5, 300)).code == StaleGrant.code


@pytest.mark.parametrize("cache", [0, 1 << 20])
@pytest.mark.parametrize("mode", MODES)
def test_a_pull_that_does_not_wait_gets_what_has_to_be_looked_up(
    make_rig: Any, cache: int, mode: Mode
) -> None:
    crew = Crew(make_rig(cache=cache), mode)
    assert size(crew.pull(crew.consumer(), 7)) == 7


def test_consumers_of_keys_share_them(rig: Any) -> None:
    """One that pulls little gets little, and the keys that it has are nobody else's."""
    crew = Crew(rig, Mode.KEYED)
    grants = [crew.pull(crew.consumer(), 1) for _ in range(6)]
    assert [runs_of(granted) for granted in grants[:5]] == [[(n, n + 1)] for n in range(5)]
    assert not grants[5].fence
    assert crew.ack(11, grants[0]).done == 1
    granted = crew.pull(16, 3)
    assert runs_of(granted) == [(5, 6), (10, 11), (15, 16)]


def test_a_peer_is_granted_nothing_that_it_works_on_and_others_are(crew: Crew) -> None:
    one, other = crew.consumer(), crew.consumer()
    held = crew.pull(one, 2)
    assert runs_of(held) == [(0, 2)]
    crew.rig.time.pass_ms(LEASE_MS)
    waiting = crew.rig.ask(one, crew.request(1, 9_000, [(0, 1)]))
    crew.rig.settle()
    found = [reply for asked, reply in crew.rig.replies[one] if asked == waiting]
    if crew.mode is Mode.ORDERED:
        assert not found, "nothing is done before it"
    else:
        assert runs_of(found[0]) == [(1, 2)], "its neighbour is"
    again = crew.pull(other, 1)
    assert (runs_of(again), again.attempts) == ([(0, 1)], 2)


def test_a_peer_that_begins_no_more_is_granted_it_again(crew: Crew) -> None:
    one = crew.consumer()
    crew.pull(one, 1)
    crew.rig.time.pass_ms(LEASE_MS)
    again = crew.rig.answer(one, crew.request(1, 0, []))
    assert (runs_of(again), again.attempts) == ([(0, 1)], 2)


def all_but_the_first(crew: Crew, session: int) -> Any:
    """Let a consumer do all but message 0; return the grant that holds it."""
    held = crew.pull(session)
    crew.ack(session, held, [(1, 64)])
    while (taken := crew.pull(session)).fence:
        crew.ack(session, taken)
    return held


def test_what_a_peer_gave_back_comes_by_a_pull_that_said_it_works_on_it(crew: Crew) -> None:
    one = crew.consumer()
    held = all_but_the_first(crew, one)
    waiting = crew.rig.ask(one, crew.request(1, 60_000, [(0, 1)]))
    assert isinstance(crew.rig.answer(one, crew.nack(held, 0, 1, 2_000)), m.Nacked)
    assert waiting not in [asked for asked, _ in crew.rig.replies[one]], "it rests"
    crew.rig.time.pass_ms(2_000)
    crew.rig.tick()
    crew.rig.settle()
    again = crew.reply(one, waiting)
    assert (runs_of(again), again.attempts) == ([(0, 1)], 2)


def test_what_one_peer_gave_back_is_worked_on_by_another_that_says_so(crew: Crew) -> None:
    one, other = crew.consumer(), crew.consumer()
    held = all_but_the_first(crew, one)
    waiting = crew.rig.ask(other, crew.request(1, 60_000, [(0, 1)]))
    assert isinstance(crew.rig.answer(one, crew.nack(held, 0, 1, 0)), m.Nacked)
    assert waiting not in [asked for asked, _ in crew.rig.replies[other]]
    again = crew.pull(one, 1)
    assert (runs_of(again), again.attempts) == ([(0, 1)], 2)


@pytest.mark.parametrize("begun", [[], None], ids=["says what it began", "of an earlier release"])
def test_a_pull_that_came_before_a_lease_of_its_peer_ended_is_answered_with_nothing(
    crew: Crew, begun: list[tuple[int, int]] | None
) -> None:
    if crew.mode is Mode.ORDERED:
        return  # there the pull itself gets what comes next, at once
    one, rest = crew.consumer(), crew.consumer()
    held = crew.pull(one, 1)
    while (taken := crew.pull(rest, 64)).fence:
        crew.ack(rest, taken)
    waiting = crew.rig.ask(one, crew.request(1, 60_000, begun))
    crew.rig.time.pass_ms(LEASE_MS + 1)
    crew.rig.tick()
    crew.rig.settle()
    reply = crew.reply(one, waiting)
    if begun is None:
        assert runs_of(reply) == runs_of(held)
        return
    assert reply.fence == 0
    late = crew.rig.ask(one, crew.request(1, 60_000, runs_of(held)))
    assert isinstance(crew.ack(one, held), m.Acked)
    replies = [reply for asked, reply in crew.rig.replies[one] if asked == late]
    assert all(reply.offset > 0 for reply in replies), "what follows it of its key, if anything"


def test_runs_that_a_client_works_on_are_not_empty(crew: Crew) -> None:
    for run in [(3, 3), (4, 2)]:
        refused = crew.rig.answer(crew.consumer(), crew.request(1, 0, [run]))
        assert refused.code == BadRequest.code
