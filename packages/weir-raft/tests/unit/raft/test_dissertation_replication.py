"""The log and its commitment, rule by rule. (Ongaro, 2014: §3.5-§3.8, §10.2)"""

from __future__ import annotations

import pytest

from weir_raft import (
    Append,
    AppendReply,
    HeartbeatReply,
    Message,
    NotLeader,
    ProgressState,
    VoteReply,
    VoteRequest,
)
from weir_raft.testing.member import Member, log_of
from weir_raft.testing.rehearsal import Rehearsal

#: Figure 3.6: the logs of followers (a) to (f), before the leader of term 8 whose log is this one.
LEADER = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
FOLLOWERS = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


def appends(sent: list[Message], to: int) -> list[Append]:
    return [m for m in sent if isinstance(m, Append) and m.to == to]


def test_3_5_an_entry_goes_to_all_at_once() -> None:
    """§3.5: the leader appends the command to its log and sends it to each other in parallel."""
    one = Member(1)
    one.lead()
    for other in (2, 3):
        one.tell(AppendReply(1, other, 1, 1))
    one.node.propose("x", 1)
    sent = one.sent()
    for other in (2, 3):
        (append,) = appends(sent, other)
        assert [(e.index, e.term, e.data) for e in append.entries] == [(2, 1, "x")]
        assert (append.prev_index, append.prev_term) == (1, 1)


def test_3_5_only_a_leader_takes_commands() -> None:
    """§3.5, §6.2: a command goes to the leader, and others tell who that is."""
    one = Member(1)
    one.tell(Append(1, 2, 1, 0, 0, (), 0))
    with pytest.raises(NotLeader) as refused:
        one.node.propose("x", 1)
    assert refused.value.leader_hint == 2


def test_3_5_an_entry_is_committed_on_a_majority_and_only_then_applied() -> None:
    """§3.5: an entry is committed once the leader that made it has it on a majority."""
    one = Member(1, voters=(1, 2, 3, 4, 5))
    one.lead((2, 3))
    one.tell(AppendReply(1, 2, 1, 1))
    assert (one.node.log.committed, one.applied) == (0, [])
    one.tell(AppendReply(1, 5, 1, 1))
    assert (one.node.log.committed, [e.index for e in one.applied]) == (1, [1])


def test_3_5_followers_apply_what_the_leader_says_is_committed() -> None:
    """§3.5: Appends carry the highest committed index, so that others find out."""
    two = Member(2)
    two.tell(Append(2, 1, 1, 0, 0, log_of(1, 1, 1), 2))
    assert [e.index for e in two.applied] == [1, 2]
    two.tell(Append(2, 1, 1, 3, 1, (), 3))
    assert [e.index for e in two.applied] == [1, 2, 3]


def test_3_5_a_leader_asks_again_without_end() -> None:
    """§3.5: if followers are slow or packets lost, it retries until all have stored all."""
    one = Member(1)
    one.lead()
    one.tell(AppendReply(1, 2, 1, 1, commit=1))
    for round in range(1, 100):
        sent = one.pass_ms(200)
        one.tell(HeartbeatReply(1, 2, 1, 2 * round))
        assert appends(sent, 3)


def test_3_5_a_leader_never_replaces_its_own_entries() -> None:
    """§3.5, Figure 3.2: leader append-only."""
    one = Member(1, 1, 1)
    one.lead()
    before = one.terms
    one.tell(Append(1, 2, 2, 0, 0, log_of(2, 2), 0))
    assert one.terms == before


def test_3_5_an_append_that_does_not_follow_is_refused() -> None:
    """§3.5: without an entry of that index and term the follower refuses the new ones."""
    two = Member(2, 1, 1)
    for prev_index, prev_term in ((5, 2), (2, 2)):
        (reply,) = two.tell(
            Append(2, 1, 3, prev_index, prev_term, log_of(3, first=prev_index + 1), 0)
        )
        assert isinstance(reply, AppendReply)
        assert reply.rejected
        assert two.terms == [1, 1]


@pytest.mark.parametrize("name", FOLLOWERS)
def test_3_5_the_leader_makes_every_log_of_figure_3_6_its_own(name: str) -> None:
    """§3.5: it finds the last entry where both agree and has all behind it replaced."""
    one = Member(1, *LEADER, term=7)
    two = Member(2, *FOLLOWERS[name], term=7)
    mail = [message for message in one.lead((3,)) if message.to == 2]
    for _ in range(40):
        back = two.tell(*mail)
        mail = [message for message in one.tell(*back) if message.to == 2]
        if not mail:
            break
    assert two.terms == [*LEADER, 8]
    assert one.node.progress()[0].match == 11


def test_3_5_a_refusal_passes_over_whole_terms() -> None:
    """§3.5: with the conflicting term told, one refusal a term is needed and not one an entry."""
    one = Member(1, *(1,) * 3, *(4,) * 200, term=7)
    two = Member(2, *(1,) * 3, *(2,) * 150, *(3,) * 150, term=7)
    refusals = 0
    mail = [message for message in one.lead((3,)) if message.to == 2]
    while mail:
        back = two.tell(*mail)
        refusals += sum(isinstance(m, AppendReply) and m.rejected for m in back)
        mail = [message for message in one.tell(*back) if message.to == 2]
    assert two.terms == one.terms
    assert refusals <= 3


def test_3_5_logs_that_agree_at_an_entry_agree_below_it() -> None:
    """§3.5: a late Append takes nothing away from a longer log that agrees with it."""
    two = Member(2)
    two.tell(Append(2, 1, 1, 0, 0, log_of(1, 1, 1), 0))
    two.tell(Append(2, 1, 1, 0, 0, log_of(1), 0))
    assert two.terms == [1, 1, 1]


def test_3_6_2_an_entry_of_an_earlier_term_does_not_commit_by_count() -> None:
    """§3.6.2, Figure 3.7: only entries of the leader's term commit by counting replicas."""
    one = Member(1, 1, 2, term=3)
    one.lead()
    one.tell(AppendReply(1, 2, 4, 2), AppendReply(1, 3, 4, 2))
    assert one.node.log.committed == 0
    one.tell(AppendReply(1, 2, 4, 3))
    assert one.node.log.committed == 3


def test_3_6_2_a_new_leader_begins_with_an_entry_of_its_own() -> None:
    """§3.6.2, §6.4: so that what it inherited commits even if nobody proposes."""
    one = Member(1, 1, 2)
    sent = one.lead()
    assert [e.kind.name for e in appends(sent, 2)[0].entries] == ["NOOP"]
    assert one.terms == [1, 2, 3]


def test_3_6_3_a_leader_has_all_that_is_committed(group: Rehearsal) -> None:
    """§3.6.3: whoever lacks a committed entry is elected by no majority."""
    one = group.lead(1)
    group.severed |= {(1, 3), (3, 1)}
    one.node.propose("kept", 10)
    group.flow()
    one.crash(group.dice)
    group.severed.clear()
    group.pass_ms(5_000)
    assert group.actors[2].node.accepts


def test_3_7_a_repeated_append_is_harmless() -> None:
    """§3.7: requests are idempotent: repeated ones change nothing and are answered."""
    two = Member(2)
    append = Append(2, 1, 1, 0, 0, log_of(1, 1), 1)
    first = two.tell(append)
    assert two.tell(append) == first
    assert two.terms == [1, 1]
    assert len(two.applied) == 1


def test_3_8_entries_are_acknowledged_when_they_are_durable() -> None:
    """§3.8: new entries are on stable storage before the reply."""
    two = Member(2, term=1, prompt=False)
    assert two.tell(Append(2, 1, 1, 0, 0, log_of(1), 0)) == []
    assert two.sync() == [AppendReply(1, 2, 1, 1)]


def test_3_8_a_restart_applies_the_log_again_as_it_learns_that_it_is_committed() -> None:
    """§3.8: the commit index is volatile; it is found anew with an entry of a new term."""
    one = Member(1, 1, 1)
    one.lead()
    one.tell(AppendReply(1, 2, 2, 3))
    one.restart()
    assert one.node.log.committed == 0
    one.lead()
    one.tell(AppendReply(1, 3, 3, 4))
    assert [e.index for e in one.applied] == [1, 2, 3, 4]


def test_10_2_1_the_leader_sends_while_it_writes() -> None:
    """§10.2.1: the leader may write its own entry in parallel with sending it."""
    one = Member(1, prompt=False)
    one.lead()
    one.sync()
    for other in (2, 3):
        one.tell(AppendReply(1, other, 1, 1))
    one.node.propose("x", 1)
    assert appends(one.sent(), 2)
    assert one.disk.last_index() == 1


def test_10_2_1_followers_may_commit_what_the_leader_has_not_written() -> None:
    """§10.2.1: a majority of others suffices, but nobody counts before its own disk has it."""
    one = Member(1, voters=(1, 2, 3, 4, 5), prompt=False)
    one.lead((2, 3))
    one.sync()
    one.tell(*(AppendReply(1, other, 1, 1) for other in (2, 3, 4)))
    one.node.propose("x", 1)
    one.sent()
    one.tell(AppendReply(1, 2, 1, 2), AppendReply(1, 3, 1, 2))
    assert one.node.log.committed == 1
    one.tell(AppendReply(1, 4, 1, 2))
    assert one.node.log.committed == 2


def test_10_2_2_many_commands_travel_together() -> None:
    """§10.2.2: batching: one message for all that was proposed meanwhile."""
    one = Member(1)
    one.lead()
    one.tell(AppendReply(1, 2, 1, 1))
    for number in range(20):
        one.node.propose(number, 1)
    (append,) = appends(one.sent(), 2)
    assert len(append.entries) == 20


def test_10_2_2_a_leader_does_not_wait_for_replies_but_within_its_window() -> None:
    """§10.2.2: pipelining: the next entries go out before the earlier are acknowledged."""
    one = Member(1, max_append_bytes=10, max_inflight_bytes=40)
    one.lead()
    one.tell(AppendReply(1, 2, 1, 1))
    for number in range(10):
        one.node.propose(number, 10)
    sent = appends(one.sent(), 2)
    assert [m.entries[0].index for m in sent] == [2, 3, 4, 5]
    sent = appends(one.tell(AppendReply(1, 2, 1, 3)), 2)
    assert [m.entries[0].index for m in sent] == [6, 7]


def test_10_2_2_after_a_refusal_the_leader_sends_one_at_a_time_until_they_agree() -> None:
    """§10.2.2: when a request fails it goes back to the previous entry and probes."""
    one = Member(1, max_append_bytes=10)
    one.lead()
    one.tell(AppendReply(1, 2, 1, 1))
    for number in range(5):
        one.node.propose(number, 10)
    one.sent()
    sent = one.tell(AppendReply(1, 2, 1, 4, rejected=True, hint_index=1, hint_term=1))
    assert len(appends(sent, 2)) == 1
    assert one.node.progress()[0].state is ProgressState.PROBE
    assert len(appends(one.tell(AppendReply(1, 2, 1, 2)), 2)) == 4


def test_3_4_a_vote_counts_only_for_the_term_it_was_given_in() -> None:
    """§3.4: a vote of an earlier term elects nobody now."""
    one = Member(1)
    one.stand()
    one.pass_ms(1_050)
    one.stand((3,))
    assert one.node.term == 2
    one.tell(VoteReply(1, 2, 1, granted=True))
    assert one.node.role.value == "candidate"
    assert one.tell(VoteRequest(1, 3, 2, 0, 0)) == [VoteReply(3, 1, 2, granted=False)]
