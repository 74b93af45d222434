"""Pull, grant, ack, and what becomes of grants when consumers or time are gone (AckedOnce)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from rigs.shards import deadlines_of, waits_for_nobody
from weir.broker.api.events import Closed
from weir.broker.consumers import acks, leases
from weir.broker.runtime.reads import Reads
from weir.errors import BadName, BadRequest, Overloaded, StaleGrant, UnknownCluster
from weir.model.batch import split
from weir.model.limits import GRANT_MS_MAX
from weir.model.topic import AckOutcome
from weir.order.clock import stamp_at
from weir.protocol.client import messages as m

LEASE_MS = 1_000


class Crew:
    """A topic of ten messages, one a batch, and consumers in sessions 1 to 3."""

    def __init__(self, rig: Any, messages: int = 10) -> None:
        self.rig = rig
        for session in (1, 2, 3):
            rig.connect(session)
        self.info = rig.topic(1)
        self.grant = rig.answer(1, m.OpenProducer())
        for n in range(messages):
            rig.answer(1, rig.batch(self.info, self.grant, n, b"m%d" % n))

    def pull(self, most: int = 3, wait_ms: int = 0, lease_ms: int = LEASE_MS) -> m.Pull:
        return m.Pull(self.info.addresses[0], "crew", most, 1 << 20, wait_ms, lease_ms)

    def ack(self, *ranges: tuple[int, int, int]) -> m.Ack:
        return m.Ack(self.info.addresses[0], "crew", list(ranges))

    def reply(self, session: int, number: int) -> Any:
        found = [reply for asked, reply in self.rig.replies[session] if asked == number]
        return found[0] if found else None


@pytest.fixture
def crew(rig: Any) -> Crew:
    return Crew(rig)


def span(granted: Any) -> tuple[int, int]:
    assert isinstance(granted, m.Granted)
    assert granted.fence > 0
    return granted.offset, granted.next_offset


def begins(crew: Crew, session: int, first: int, behind: int) -> None:
    """Let a consumer say that it works on messages: they had an attempt should it lose them."""
    ping = m.Ping([(crew.info.addresses[0], "crew", [(first, behind)])])
    assert isinstance(crew.rig.answer(session, ping), m.Pong)


def test_a_grant_leaves_after_its_commit_with_its_messages(crew: Crew) -> None:
    rig = crew.rig
    number = rig.ask(1, crew.pull())
    assert crew.reply(1, number) is None
    rig.settle()
    granted = crew.reply(1, number)
    assert span(granted) == (0, 3)
    assert granted.attempts == 1
    batches = [b for part in granted.batches for b in split(part, granted.address.group)]
    values = {b.header.first_offset: b.values() for b in batches}
    assert [values[offset] for offset in (0, 1, 2)] == [[b"m0"], [b"m1"], [b"m2"]]


def test_a_pull_of_offsets_only_is_granted_without_bytes_or_reads(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = crew.rig
    with monkeypatch.context() as patched:
        patched.setattr(Reads, "start", lambda *_: pytest.fail("something is read"))
        granted = rig.answer(1, structs.replace(crew.pull(), offsets_only=True))
    assert (span(granted), granted.batches, granted.attempts) == ((0, 3), (), 1)
    whole = rig.answer(2, crew.pull())
    assert span(whole) == (3, 6)
    assert whole.batches
    assert rig.answer(1, crew.ack((granted.fence, 0, 3))).done == 3


def test_several_pulls_in_one_flush_get_different_messages(crew: Crew) -> None:
    rig = crew.rig
    numbers = {session: rig.ask(session, crew.pull()) for session in (1, 2, 3)}
    fourth = rig.ask(1, crew.pull())
    rig.settle()
    spans = [span(crew.reply(session, number)) for session, number in numbers.items()]
    assert [*spans, span(crew.reply(1, fourth))] == [(0, 3), (3, 6), (6, 9), (9, 10)]


def test_what_expired_is_granted_again_to_one(crew: Crew) -> None:
    rig = crew.rig
    first = rig.answer(1, crew.pull(10))
    begins(crew, 1, 0, 10)
    rig.time.pass_ms(LEASE_MS + 1)
    numbers = {session: rig.ask(session, crew.pull(4)) for session in (2, 3)}
    rig.settle()
    second = crew.reply(2, numbers[2])
    assert span(second) == (0, 4)
    assert second.attempts == 2
    third = crew.reply(3, numbers[3])
    assert third.fence == 0, "the rest of the old grant is proposed in part: wait for the next turn"
    third = rig.answer(3, crew.pull(10))
    assert span(third) == (4, 10)
    assert rig.answer(1, crew.ack((first.fence, 0, 2))).code == StaleGrant.code
    assert rig.answer(2, crew.ack((second.fence, 0, 4))).done == 4


def test_an_ack_in_line_before_a_grant_is_not_granted_past(crew: Crew) -> None:
    """Both are proposed in one flush: what the ack takes must not go out again."""
    rig = crew.rig
    first = rig.answer(1, crew.pull(10))
    begins(crew, 1, 0, 10)
    rig.time.pass_ms(LEASE_MS + 1)
    acked = rig.ask(1, crew.ack((first.fence, 0, 4)))
    pulled = rig.ask(2, crew.pull(10))
    rig.settle()
    assert crew.reply(1, acked).done == 4
    assert span(crew.reply(2, pulled)) == (4, 10)


def test_a_pull_whose_messages_were_all_acked_waits_on(crew: Crew) -> None:
    rig = crew.rig
    first = rig.answer(1, crew.pull(10))
    rig.time.pass_ms(LEASE_MS + 1)
    acked = rig.ask(1, crew.ack((first.fence, 0, 10)))
    pulled = rig.ask(2, crew.pull(10, wait_ms=5_000))
    rig.settle()
    assert crew.reply(1, acked).done == 10
    assert crew.reply(2, pulled) is None
    rig.answer(1, rig.batch(crew.info, crew.grant, 10, b"m10"))
    assert span(crew.reply(2, pulled)) == (10, 11)


def test_a_gone_consumers_pull_is_not_put_back_in_line(crew: Crew) -> None:
    rig = crew.rig
    first = rig.answer(1, crew.pull(10))
    rig.time.pass_ms(LEASE_MS + 1)
    rig.ask(1, crew.ack((first.fence, 0, 10)))
    rig.ask(2, crew.pull(10, wait_ms=5_000))
    rig.handle(Closed(2))
    rig.settle()
    rig.answer(1, rig.batch(crew.info, crew.grant, 10, b"m10"))
    assert span(rig.answer(3, crew.pull())) == (10, 11)


def test_a_gone_consumers_messages_go_out_at_once(crew: Crew) -> None:
    rig = crew.rig
    assert span(rig.answer(1, crew.pull(10))) == (0, 10)
    begins(crew, 1, 0, 10)
    waiting = rig.ask(2, crew.pull(10, wait_ms=5_000))
    rig.settle()
    assert crew.reply(2, waiting) is None
    rig.handle(Closed(1))
    rig.settle()
    granted = crew.reply(2, waiting)
    assert span(granted) == (0, 10)
    assert granted.attempts == 2


def test_a_consumer_that_goes_while_its_grant_is_proposed_holds_nothing(crew: Crew) -> None:
    rig = crew.rig
    rig.ask(1, crew.pull(10))
    rig.handle(Closed(1))
    rig.settle()
    assert span(rig.answer(2, crew.pull(10))) == (0, 10)


def test_a_long_poll_is_answered_by_a_message_or_by_time(crew: Crew) -> None:
    rig = crew.rig
    rig.answer(1, crew.pull(10))
    number = rig.ask(2, crew.pull(1, wait_ms=100))
    rig.settle()
    rig.tick(99)
    assert crew.reply(2, number) is None
    rig.tick(1)
    assert crew.reply(2, number).fence == 0
    number = rig.ask(2, crew.pull(1, wait_ms=100))
    rig.answer(1, rig.batch(crew.info, crew.grant, 10, b"m10"))
    assert span(crew.reply(2, number)) == (10, 11)


def test_a_pull_that_is_withdrawn_gets_nothing_of_what_comes(crew: Crew) -> None:
    rig = crew.rig
    rig.answer(1, crew.pull(10))
    gone, stays = (rig.ask(session, crew.pull(1, wait_ms=5_000)) for session in (2, 3))
    assert rig.answer(2, m.Withdraw(crew.info.addresses[0], "crew")) == m.Withdrawn()
    assert (crew.reply(2, gone).fence, crew.reply(3, stays)) == (0, None)
    rig.answer(1, rig.batch(crew.info, crew.grant, 10, b"m10"))
    assert span(crew.reply(3, stays)) == (10, 11)


def test_a_watch_is_withdrawn_too_and_what_is_proposed_comes(crew: Crew) -> None:
    rig = crew.rig
    pulled = rig.ask(1, crew.pull(10))
    watched = rig.ask(1, crew.pull(0, wait_ms=5_000))
    withdraw = m.Withdraw(crew.info.addresses[0], "crew")
    withdrawn = rig.ask(1, withdraw)
    assert crew.reply(1, pulled) is None
    rig.settle()
    assert crew.reply(1, withdrawn) == m.Withdrawn()
    assert crew.reply(1, watched).fence == 0
    assert span(crew.reply(1, pulled)) == (0, 10)
    assert rig.answer(2, withdraw) == m.Withdrawn()  # nothing of it waits
    assert rig.answer(2, m.Withdraw(crew.info.addresses[0], "nobody")) == m.Withdrawn()


def test_grants_and_acks_outlive_a_restart(crew: Crew) -> None:
    """Counterexample 20: attempts and what is done are replicated, not a leader's memory."""
    rig = crew.rig
    granted = rig.answer(1, crew.pull(4))
    rig.answer(1, crew.ack((granted.fence, 1, 3)))
    rig.disk.crash()
    rig.boot()
    rig.connect(2)
    assert span(rig.answer(2, crew.pull(4))) == (4, 8), "the lease goes on"
    rig.time.pass_ms(LEASE_MS + 1)
    again = rig.answer(2, crew.pull(10))
    assert span(again) == (0, 1)
    assert again.attempts == 2
    assert span(rig.answer(2, crew.pull(10))) == (3, 4)
    rig.connect(1)
    assert rig.answer(1, crew.ack((granted.fence, 1, 3))).done == 0, "an ack may be repeated"


def test_requests_that_make_no_sense_are_refused(crew: Crew, monkeypatch: Any) -> None:
    rig = crew.rig
    address = crew.info.addresses[0]
    for pull in (crew.pull(lease_ms=0), crew.pull(lease_ms=GRANT_MS_MAX + 1)):
        assert rig.answer(1, pull).code == BadRequest.code
    assert rig.answer(1, m.Pull(address, "no name", 1, 1)).code == BadName.code
    assert rig.answer(1, crew.ack((1, 0, 1))).code == UnknownCluster.code
    granted = rig.answer(1, crew.pull())
    for ranges in ([], [(granted.fence, 0, 0)], [(granted.fence, 0, 11)]):
        assert rig.answer(1, crew.ack(*ranges)).code == BadRequest.code
    monkeypatch.setattr(leases, "CLUSTERS_PER_TOPIC_MAX", 1)
    assert rig.answer(1, m.Pull(address, "other", 1, 1)).code == Overloaded.code
    monkeypatch.setattr(leases, "GRANTS_PER_CLUSTER_MAX", 1)
    assert rig.answer(1, crew.pull()).code == Overloaded.code


def test_a_cluster_at_its_limit_is_granted_again_what_nobody_acks_any_more(
    crew: Crew, monkeypatch: Any
) -> None:
    rig = crew.rig
    monkeypatch.setattr(leases, "GRANTS_PER_CLUSTER_MAX", 2)
    assert [span(rig.answer(1, crew.pull(2))) for _ in range(2)] == [(0, 2), (2, 4)]
    assert rig.answer(2, crew.pull(2)).code == Overloaded.code
    rig.handle(Closed(1))
    rig.settle()
    held = [rig.answer(2, crew.pull(1)) for _ in range(2)]
    assert [span(granted) for granted in held] == [(0, 1), (1, 2)]
    assert span(rig.answer(2, crew.pull(1))) == (2, 3)
    assert rig.answer(2, crew.pull(1)).code == Overloaded.code, "twice the limit"
    rig.handle(Closed(2))
    rig.settle()
    rig.connect(2)
    again = [rig.ask(2, crew.pull(1)) for _ in range(2)]
    rig.settle()
    once, twice = [crew.reply(2, number) for number in again]
    assert span(once) == (3, 4), "nobody is left who could ack any"
    assert twice.code == Overloaded.code
    rig.answer(2, crew.ack((once.fence, 3, 4)))
    held = [rig.answer(2, crew.pull(1)) for _ in range(3)]
    assert [span(granted) for granted in held] == [(0, 1), (1, 2), (2, 3)]
    rig.answer(2, crew.ack(*[(g.fence, *span(g)) for g in held]))
    assert span(rig.answer(2, crew.pull(1))) == (4, 5)


def test_a_restart_ends_no_lease_too_soon_though_stamps_are_ahead_of_the_time(crew: Crew) -> None:
    rig = crew.rig
    rig.answer(1, crew.pull(10))
    seen = stamp_at(rig.time.wall_ms() + 900)
    assert rig.answer(1, rig.batch(crew.info, crew.grant, 10, b"m10", seen=seen)).stamp > seen
    rig.boot()
    rig.connect(2)
    rig.time.pass_ms(LEASE_MS - 100)
    assert span(rig.answer(2, crew.pull(10))) == (10, 11), "the others are leased"
    rig.time.pass_ms(101)
    assert span(rig.answer(2, crew.pull(10)))[0] == 0


def test_a_consumer_at_its_limit_leaves_the_rest_to_others(crew: Crew, monkeypatch: Any) -> None:
    rig = crew.rig
    monkeypatch.setattr(leases, "GRANTS_PER_CONSUMER_MAX", 1)
    assert span(rig.answer(1, crew.pull(1))) == (0, 1)
    assert rig.answer(1, crew.pull(1)).code == Overloaded.code
    assert span(rig.answer(2, crew.pull(1))) == (1, 2)


def test_clusters_of_a_snapshot_count_against_the_limit(crew: Crew, monkeypatch: Any) -> None:
    crew.rig.answer(1, crew.pull())
    crew.rig.boot()
    crew.rig.connect(1)
    monkeypatch.setattr(leases, "CLUSTERS_PER_TOPIC_MAX", 1)
    request = m.Pull(crew.info.addresses[0], "other", 1, 1)
    assert crew.rig.answer(1, request).code == Overloaded.code


def test_names_that_found_nothing_are_not_kept(crew: Crew, monkeypatch: Any) -> None:
    rig = crew.rig
    empty = rig.topic(1, "empty").addresses[0]
    monkeypatch.setattr(leases, "CLUSTERS_PER_TOPIC_MAX", 2)
    for n in range(5):
        assert rig.answer(1, m.Pull(empty, f"typo{n}", 1, 1_000)).fence == 0
    rig.ask(1, m.Pull(empty, "one", 1, 1_000, 1_000))
    rig.ask(1, m.Pull(empty, "two", 1, 1_000, 9_000))
    assert rig.answer(2, m.Pull(empty, "three", 1, 1_000)).code == Overloaded.code
    rig.tick(1_000)
    assert rig.answer(2, m.Pull(empty, "three", 1, 1_000)).fence == 0
    rig.handle(Closed(1))
    served = rig.shard.topics.partition(empty.group)[1].leading.consumers.grants
    assert waits_for_nobody(served)


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_a_grant_brings_the_entries_that_hold_it_and_no_more(make_rig: Any, cache: int) -> None:
    crew = Crew(make_rig(cache=cache), messages=0)
    rig = crew.rig
    for first, size in ((0, 1), (1, 3), (4, 2), (6, 1), (7, 3)):
        rig.answer(1, rig.batch(crew.info, crew.grant, first, *[b"v" * 50] * size))
    found = []
    for most in (1, 2, 3, 4):
        granted = rig.answer(1, crew.pull(most))
        batches = [b for part in granted.batches for b in split(part, granted.address.group)]
        found.append(
            (span(granted), batches[0].header.first_offset, batches[-1].header.next_offset)
        )
    assert found == [((0, 1), 0, 1), ((1, 3), 1, 4), ((3, 6), 1, 6), ((6, 10), 6, 10)]


def test_acked_grants_leave_the_leases(crew: Crew) -> None:
    rig = crew.rig
    values = [b"x"] * 1_000
    rig.answer(1, rig.batch(crew.info, crew.grant, 10, *values))
    kept = rig.answer(2, crew.pull(1, lease_ms=GRANT_MS_MAX - 1))
    for _ in range(900):
        granted = rig.answer(1, crew.pull(1, lease_ms=GRANT_MS_MAX))
        rig.answer(1, crew.ack((granted.fence, granted.offset, granted.next_offset)))
    partition = rig.shard.topics.partition(crew.info.addresses[0].group)[1]
    assert len(deadlines_of(partition.leading.consumers.grants.leases)) <= 2 * 2 + 256
    rig.time.pass_ms(GRANT_MS_MAX)
    assert span(rig.answer(1, crew.pull(1))) == (kept.offset, kept.next_offset)


def test_what_is_to_be_granted_stays_where_it_lies_until_it_is_read(make_rig: Any) -> None:
    # Its segment was given up, for its entries had been copied, while the grant was proposed.
    crew = Crew(make_rig(cache=0))
    pins = crew.rig.shard.writers[0].log.segments.pins
    number = crew.rig.ask(1, crew.pull())
    assert crew.reply(1, number) is None
    assert pins.total() > 0
    crew.rig.settle()
    assert span(crew.reply(1, number)) == (0, 3)
    assert not pins.total(), "nothing is held any more"


def test_an_exact_ack_is_told_what_its_grant_did_and_an_old_client_what_it_knows(
    crew: Crew,
) -> None:
    rig = crew.rig
    first = rig.answer(1, crew.pull(3))
    begins(crew, 1, 0, 3)
    rig.time.pass_ms(LEASE_MS)
    second = rig.answer(2, crew.pull(3))
    rig.answer(2, crew.ack((second.fence, 0, 2)))
    ranges = [(first.fence, 0, 3), (second.fence, 0, 2)]
    address = crew.info.addresses[0]
    exact = m.Ack(address, "crew", ranges, exact=True)
    late = {
        (first.fence, 0, 2, AckOutcome.DONE_ELSEWHERE),
        (first.fence, 2, 3, AckOutcome.EXPIRED),
    }
    answer = rig.answer(1, exact)
    assert (answer.done, set(answer.late)) == (2, late)
    assert rig.answer(1, crew.ack((first.fence, 0, 2))) == m.Acked(2)
    assert rig.answer(1, crew.ack((first.fence, 0, 3))).code == StaleGrant.code
    assert rig.answer(2, m.Ack(address, "crew", [(second.fence, 0, 3)], exact=True)) == m.Acked(3)


def test_an_exact_ack_of_what_is_in_shreds_is_answered_in_one_frame(
    crew: Crew, monkeypatch: Any
) -> None:
    monkeypatch.setattr(acks, "_ROWS_MAX", 2)
    rig = crew.rig
    first = rig.answer(1, crew.pull(8))
    begins(crew, 1, 0, 8)
    rig.time.pass_ms(LEASE_MS)
    second = rig.answer(2, crew.pull(8))
    rig.answer(2, crew.ack(*((second.fence, n, n + 1) for n in (1, 3, 5))))
    exact = m.Ack(crew.info.addresses[0], "crew", [(first.fence, 0, 8)], exact=True)
    late = rig.answer(1, exact).late
    assert len(late) == 3
    assert late[-1][3] == AckOutcome.PARTLY
    assert {o for _, a, b, _ in late for o in range(a, b)} == set(range(8))


def test_a_pull_finds_the_next_deadline_in_its_own_cluster_alone(rig: Any) -> None:
    info = rig.topic(rig.connect())
    address = info.addresses[0]
    grants = rig.shard.topics.find(address.group).leading.consumers.grants

    def pull(cluster: str, wait_ms: int) -> None:
        rig.ask(1, m.Pull(address, cluster, 1, 1 << 20, wait_ms, LEASE_MS))

    for number in range(5):
        pull(f"crew{number}", 5_000)
    now = rig.time.monotonic_ms()
    assert grants.due_ms == now + 5_000
    pull("late", 9_000)
    assert grants.next_deadline.ms == now + 5_000
    pull("soon", 100)
    assert grants.next_deadline.ms == grants.due_ms == now + 100
    pull("soon", 100)
    rig.answer(1, rig.batch(info, rig.answer(1, m.OpenProducer()), 0, b"x"))
    assert grants.due_ms == 0, "one waits on, until a lease ends"
