"""Voters that an operator forces: a lineage begins, and the one before is not heard any more."""

from __future__ import annotations

import pytest

from weir_raft import Append, Change, Configuration, InvalidChange, Role, VoteReply, VoteRequest
from weir_raft.membership import LINEAGE_MAX, first_term, lineage_of
from weir_raft.testing.member import Member
from weir_raft.testing.rehearsal import Rehearsal


def test_terms_tell_their_lineage() -> None:
    assert [lineage_of(term) for term in (0, 1, (1 << 48) - 1, 1 << 48, (7 << 48) + 5)] == [
        0, 0, 0, 1, 7,
    ]  # fmt: skip
    assert lineage_of(first_term(LINEAGE_MAX)) == LINEAGE_MAX
    assert first_term(LINEAGE_MAX + 1) < 1 << 63


def test_one_alone_goes_on_at_once_and_its_log_says_who_votes(group: Rehearsal) -> None:
    one = group.lead(1)
    one.node.change(Change(add_learners=(4,)))
    one.node.propose("x", 1)
    group.flow()
    last = one.node.log.last_index
    away = group.actors[4]
    away.node.lineages.force(1, (4,))
    assert away.node.lineages.is_forced
    group.pass_ms(50)
    assert away.node.role is Role.LEADER
    assert (away.node.lineages.current, away.node.lineages.is_forced) == (1, False)
    assert away.node.configuration == Configuration((4,))
    assert away.node.log.last_index == last + 2  # who votes, and then nothing, of that term
    assert away.node.history.at(last) == Configuration((1, 2, 3), (), (4,))
    assert one.node.accepts
    assert one.node.lineages.current == 0


def test_the_first_election_needs_all_and_later_ones_most() -> None:
    one = Member(4, 1, 1, voters=(1, 2, 3))
    one.node.lineages.force(2, (4, 5, 6))
    sent = one.stand((5,))
    assert not sent  # one of three is missing
    one.tell(VoteReply(4, 6, one.node.term + 1, granted=True, pre=True))
    one.sync()
    term = one.node.term
    assert lineage_of(term) == 2
    one.tell(VoteReply(4, 5, term, granted=True))
    assert one.node.role is Role.CANDIDATE
    one.tell(VoteReply(4, 6, term, granted=True))
    assert one.node.role is Role.LEADER
    assert one.terms == [1, 1, term, term]


def test_a_refusal_ends_a_forced_election() -> None:
    one = Member(4, 1, voters=(1, 2, 3))
    one.node.lineages.force(1, (4, 5))
    one.node.campaign()
    one.sent()
    one.tell(VoteReply(4, 5, one.node.term, granted=False, pre=True))
    assert one.node.role is Role.FOLLOWER


def test_another_lineage_is_neither_heard_nor_answered() -> None:
    one = Member(4, 1, 1, voters=(1, 2, 3))
    one.node.lineages.force(1, (4, 5))
    one.sent()
    assert one.tell(Append(4, 1, 9, 2, 1, (), 2), VoteRequest(4, 2, 9, 9, 9)) == []
    other = Member(1, 1, 1)
    term = first_term(1) + 3
    assert other.tell(VoteRequest(1, 4, term, 9, term), Append(1, 4, term, 2, 1, (), 2)) == []
    assert other.node.term == 1


def test_who_was_never_told_anything_joins_any_lineage() -> None:
    one = Member(4, voters=())
    term = first_term(3) + 1
    one.tell(Append(4, 1, term, 0, 0, (), 0))
    assert (one.node.lineages.current, one.node.leader) == (3, 1)


def test_a_start_forgets_who_was_forced_and_is_told_again() -> None:
    one = Member(4, 1, voters=(1, 2, 3))
    one.node.lineages.force(1, (4, 5))
    one.sent()
    one.restart()
    assert (one.node.lineages.current, one.node.lineages.is_forced) == (1, False)
    one.node.lineages.force(1, (4, 5))
    assert one.node.lineages.is_forced
    assert one.node.lineages.current == 1


def test_an_entry_of_the_lineage_says_it_for_good() -> None:
    one = Member(4, 1, voters=(1, 2, 3))
    one.node.lineages.force(1, (4,))
    one.pass_ms(100)
    one.restart()
    assert one.node.configuration == Configuration((4,))
    one.node.lineages.force(1, (4, 5))  # somebody led in it: it is as it is
    assert one.node.configuration == Configuration((4,))


@pytest.mark.parametrize(
    ("lineage", "voters"), [(1, (5, 6)), (0, (4,)), (-1, (4,)), (LINEAGE_MAX + 1, (4,))]
)
def test_what_cannot_be_forced(lineage: int, voters: tuple[int, ...]) -> None:
    one = Member(4, 1, voters=(1, 2, 3))
    with pytest.raises(InvalidChange):
        one.node.lineages.force(lineage, voters)


def test_a_lineage_that_is_over_is_not_begun_again() -> None:
    one = Member(4, 1, voters=(1, 2, 3))
    one.node.lineages.force(2, (4, 5))
    with pytest.raises(InvalidChange, match="lineage 2 has begun"):
        one.node.lineages.force(1, (4, 5))


def test_a_copy_knows_when_it_heard_of_a_leader_and_how_far_that_was() -> None:
    one = Member(4, 1, voters=(1, 2, 3))
    assert one.node.lineages.heard == (-1, 0)
    one.tell(Append(4, 1, 1, 1, 1, (), 7))
    one.pass_ms(150)
    assert one.node.lineages.heard == (150, 7)
    one.node.lineages.force(1, (4, 5))
    assert one.node.lineages.heard == (150, 7)


def test_who_retires_leads_no_more_and_keeps_what_it_has(group: Rehearsal) -> None:
    one = group.lead(1)
    one.node.propose("x", 1)
    group.flow()
    last = one.node.log.last_index
    for id in (1, 2, 3):
        group.actors[id].node.lineages.retire(1)
    group.pass_ms(3_000)
    roles = {group.actors[id].node.role for id in (1, 2, 3)}
    assert roles == {Role.FOLLOWER}
    assert [group.actors[id].node.log.last_index for id in (1, 2, 3)] == [last] * 3
    one.start()  # a start changes nothing
    group.pass_ms(3_000)
    assert one.node.role is Role.FOLLOWER
    assert one.node.lineages.current == 1
    with pytest.raises(InvalidChange):
        one.node.lineages.retire(0)


def test_who_forgot_what_was_forced_seeks_no_election_by_what_was_before() -> None:
    one = Member(1, 1, voters=(1,))
    one.node.lineages.force(1, (1, 2))
    one.sent()
    one.restart()
    one.pass_ms(3_000)
    assert one.node.role is Role.FOLLOWER
