"""A member that answers nothing is told whether the others could do without what it had."""

from __future__ import annotations

import pytest

from weir_raft import Append, Change, Role
from weir_raft.testing.rehearsal import Rehearsal


@pytest.fixture
def group() -> Rehearsal:
    return Rehearsal(0, linked=True)


def told(group: Rehearsal) -> bool:
    """What the leader, 1, says to 2 when it asks where that stands; nothing of it comes."""
    one = group.actors[1]
    one.multi.link_down(2)
    one.multi.link_up(2)
    one.tick(50)
    one.serve()
    asked = [m for m in group.mail if isinstance(m, Append) and m.to == 2]
    group.mail = [message for message in group.mail if message.to != 2]
    assert asked
    return asked[-1].spared


def apart(group: Rehearsal, *nodes: int) -> None:
    """Let 1 and nobody else reach these nodes no more, nor they it."""
    group.severed = {way for node in nodes for way in ((1, node), (node, 1))}


def test_who_acknowledged_what_another_lacks_is_not_spared(group: Rehearsal) -> None:
    one = group.lead(1)
    apart(group, 3)
    one.node.propose("x", 1)
    group.flow()
    assert one.node.log.committed == 2, "by what 1 and 2 have"
    group.actors[2].crash(group.dice)
    assert not told(group)
    group.severed.clear()
    group.pass_ms(300)
    assert told(group), "3 has it as well now"


def test_nobody_is_spared_before_an_entry_of_the_term_is_held_by_others(group: Rehearsal) -> None:
    group.lead(2)
    apart(group, 3)
    one = group.actors[1]
    group.actors[2].node.transfer_leadership(1)
    while one.node.role is not Role.LEADER:
        one.serve()
        one.sync(len(one.unsynced))
        one.serve()
        group.actors[2].serve()
        group.actors[2].sync(len(group.actors[2].unsynced))
        group.actors[2].serve()
        group.hand_over(group.mail.pop(0))
    group.actors[2].crash(group.dice)
    assert not told(group), "3 may lack what only 2 helped to commit before"
    group.severed.clear()
    group.pass_ms(300)
    assert told(group)


def test_of_two_nobody_is_spared(group: Rehearsal) -> None:
    one = group.lead(1)
    one.node.change(Change(remove=(3,)))
    group.flow()
    assert one.node.configuration.voters == (1, 2)
    assert not told(group)


def test_who_has_everything_may_ask_again(group: Rehearsal) -> None:
    one, two = group.lead(1), group.actors[2]
    apart(group, 3)
    one.node.propose("x", 1)
    group.flow()
    group.severed.clear()
    group.pass_ms(300)
    assert one.node.log.committed == two.node.log.committed == 2
    assert not group.mail, "nothing more is to be said"
    two.node.ask_again()
    two.serve()
    group.hand_over(group.mail.pop(0))
    one.serve()
    said = [message for message in group.mail if isinstance(message, Append) and message.to == 2]
    assert [(message.prev_index, message.entries, message.spared) for message in said] == [
        (2, (), True)
    ]


def test_a_leader_asks_nobody(group: Rehearsal) -> None:
    one = group.lead(1)
    group.flow()
    one.node.ask_again()
    one.serve()
    assert not group.mail
