"""Fences asked for over links: who has answered, and answers again when more can be promised."""

from __future__ import annotations

from weir_raft.groups.link import Inward, Outward
from weir_raft.groups.multi import Multi
from weir_raft.messages import Beat, BeatReply


def told(outward: Outward, number: int, fence: int) -> Beat:
    beat = outward.beat(number, fence)
    assert beat is not None
    return beat


def answers(multi: Multi) -> list[BeatReply]:
    return [one for _, one in multi.take_beats() if isinstance(one, BeatReply)]


def test_a_peer_owes_an_answer_until_it_has_seen_the_question() -> None:
    outward = Outward()
    outward.contact.up, outward.silent = True, False
    assert not outward.owes(10), "it follows nobody here"
    outward.lead(1, 1, 1)
    told(outward, 1, 0)
    assert outward.owes(10), "it was not asked yet"
    told(outward, 2, 10)
    outward.number = 1
    assert outward.owes(10)
    outward.number = 2
    assert not outward.owes(10), "whatever it answered"
    told(outward, 3, 10)
    assert not outward.owes(10), "that is no other question"


def test_an_answer_counts_only_for_the_leaderships_that_the_peer_was_told_of() -> None:
    """What it answered before says nothing of how it votes in a group that is led here since."""
    outward = Outward()
    outward.lead(1, 1, 1)
    told(outward, 1, 100)
    outward.promised, outward.answered = 100, 1
    assert outward.promises(1) == 100
    outward.lead(2, 1, 1)
    outward.lead(1, 2, 1)
    assert [outward.promises(1), outward.promises(2)] == [0, 0], "led since, or in a new term"
    told(outward, 2, 100)
    assert outward.promises(2) == 0, "it was told, and has not answered yet"
    outward.answered = 2
    assert [outward.promises(1), outward.promises(2)] == [100, 100]
    outward.dropped = {2: 1}
    assert outward.promises(2) == 0, "it does not follow"
    outward.lead_no_more(1)
    assert outward.promises(1) == 0


def test_nobody_waits_for_who_is_not_there() -> None:
    outward = Outward()
    outward.lead(1, 1, 1)
    told(outward, 1, 10)
    outward.contact.up, outward.silent = True, True
    assert not outward.owes(10)
    outward.contact.up, outward.silent = False, False
    assert not outward.owes(10)


def test_who_asked_for_more_is_answered_again_when_the_bound_is_raised() -> None:
    inward = Inward()
    inward.owed, inward.fence = 5, 100
    assert inward.reply(70) == BeatReply(5, 0, (), 70)
    inward.answer_again(70)
    assert not inward.owed, "it would say the same"
    inward.answer_again(90)
    assert inward.reply(90) == BeatReply(5, 0, (), 90)
    inward.answer_again(200)
    assert inward.reply(200) == BeatReply(5, 0, (), 100), "nobody promises more than asked"
    inward.answer_again(300)
    assert not inward.owed


def test_a_broken_link_owes_nothing_of_before() -> None:
    multi = Multi(lambda group, member: member)
    multi.link_up(2)
    multi.step_link(2, Beat(7, 7, (), 100))
    assert answers(multi) == [BeatReply(7, 7, (), 0)]
    assert multi.fence_wanted == 100
    multi.raise_bound(50)
    assert answers(multi) == [BeatReply(7, 7, (), 50)]
    multi.link_down(2)
    multi.raise_bound(80)
    multi.link_up(2)
    assert answers(multi) == []


def test_a_bound_never_falls() -> None:
    multi = Multi(lambda group, member: member)
    multi.raise_bound(50)
    multi.raise_bound(20)
    assert multi.fence_bound == 50
