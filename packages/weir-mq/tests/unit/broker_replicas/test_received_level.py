"""Level `received`: confirmed by the leader's disk alone, and so without an offset."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from weir.errors import SequenceGap
from weir.protocol.client import messages as m


def received(request: m.Produce) -> m.Produce:
    return structs.replace(request, level=m.Level.RECEIVED)


def test_one_disk_is_enough_and_nothing_is_said_of_a_place(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    assert trio.told(produce(info, grant, 0, b"a"), group).offset == 0
    leader = trio.leader(group)
    trio.isolate(leader.id)
    asked = leader.ask(received(produce(info, grant, 1, b"b")))
    assert leader.reply_to(asked) is None, "not before it is synced"
    trio.settle()
    confirm = leader.reply_to(asked)
    assert (confirm.offset, confirm.index, confirm.duplicate) == (-1, 0, False)
    assert leader.group(group).machine.state.next_offset == 1
    trio.heal()
    trio.run(500)
    again = trio.told(received(produce(info, grant, 1, b"b")), group)
    assert (again.offset, again.stamp, again.duplicate) == (-1, confirm.stamp, True)
    assert trio.same_everywhere(group) == [b"a", b"b"]


def test_what_was_received_may_be_lost_and_its_producer_goes_on(trio: Any, produce: Any) -> None:
    """Counterexample 19: another batch gets the place, and the log ends before the sequence."""
    info, grant, other = trio.topic(), trio.producer(), trio.producer()
    group = info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)
    trio.told(produce(info, other, 0, b"b"), group)
    leader = trio.leader(group)
    trio.isolate(leader.id)
    asked = leader.ask(received(produce(info, grant, 1, b"lost")))
    trio.settle()
    assert leader.reply_to(asked).offset == -1
    leader.kill()
    assert trio.told(produce(info, other, 1, b"c"), group).offset == 2
    refused = trio.told(received(produce(info, grant, 2, b"on")), group)
    assert (refused.code, refused.detail) == (SequenceGap.code, 1), "told where it stands"
    # What it got no offset for may be gone: it begins anew, in its next epoch.
    epoch = trio.told(m.OpenProducer(grant.producer), 0)
    assert trio.told(received(produce(info, epoch, 0, b"on")), group).offset == -1
    trio.heal()
    leader.boot()
    assert trio.same_everywhere(group) == [b"a", b"b", b"c", b"on"]
