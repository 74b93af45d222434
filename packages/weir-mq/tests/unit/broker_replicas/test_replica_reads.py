"""Reading from replicas that do not lead: a committed prefix, from whoever hears of a leader."""

from __future__ import annotations

from typing import Any

from weir.errors import NotLeader, OffsetOutOfRange, Unavailable
from weir.model.batch import split
from weir.protocol.client import messages as m


def settled(trio: Any) -> None:
    trio.until(lambda: all(node.shard.ready for node in trio.live()), "not all became ready")


def founded(trio: Any, produce: Any, *values: bytes) -> tuple[Any, Any, Any, Any]:
    """Return a topic with messages, a producer, the leader of its partition, and a follower."""
    settled(trio)
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    leader = trio.leader(group)
    for sequence, value in enumerate(values):
        trio.answer(leader, produce(info, grant, sequence, value))
    trio.same_everywhere(group)
    follower = next(node for node in trio.live() if node is not trio.leader(group))
    return info, grant, leader, follower


def fetch(info: Any, offset: int, wait_ms: int = 0) -> m.Fetch:
    return m.Fetch(info.addresses[0], offset, 1 << 20, wait_ms, True)


def values(fetched: Any, group: int) -> list[bytes]:
    return [v for payload in fetched.batches for b in split(payload, group) for v in b.values()]


def test_a_replica_answers_by_itself_with_what_it_has_applied(trio: Any, produce: Any) -> None:
    info, grant, _, follower = founded(trio, produce, b"a", b"b")
    group = info.addresses[0].group
    trio.isolate(follower.id)
    assert trio.told(produce(info, grant, 2, b"c"), group).offset == 2
    number = follower.ask(fetch(info, 0))
    fetched = follower.reply_to(number)
    assert values(fetched, group) == [b"a", b"b"]
    assert (fetched.next_offset, fetched.committed, fetched.barrier) == (2, 2, 0)
    # Of what lies behind, nothing is known here: neither that it is there nor that it is not.
    behind, ahead = follower.ask(fetch(info, 2)), follower.ask(fetch(info, 3))
    for number, offset in ((behind, 2), (ahead, 3)):
        nothing = follower.reply_to(number)
        assert (nothing.batches, nothing.next_offset, nothing.committed) == ((), offset, 2)


def test_a_replica_that_lags_waits_for_what_lies_ahead_of_it(trio: Any, produce: Any) -> None:
    info, grant, leader, follower = founded(trio, produce, b"a")
    group = info.addresses[0].group
    second, third = follower.ask(fetch(info, 1, 60_000)), follower.ask(fetch(info, 2, 60_000))
    trio.answer(leader, produce(info, grant, 1, b"b"))
    trio.until(lambda: follower.reply_to(second))
    assert values(follower.reply_to(second), group) == [b"b"]
    assert follower.reply_to(third) is None
    trio.answer(leader, produce(info, grant, 2, b"c"))
    trio.until(lambda: follower.reply_to(third))
    assert values(follower.reply_to(third), group) == [b"c"]
    # The leader answers as ever: what is not there is not there.
    refusal = trio.answer(leader, m.Fetch(info.addresses[0], 9, 1 << 20, 0))
    assert refusal.code == OffsetOutOfRange.code


def test_who_hears_of_no_leader_sends_readers_away(trio: Any, produce: Any) -> None:
    info, _, _, follower = founded(trio, produce, b"a")
    waiting = follower.ask(fetch(info, 1, 60_000))
    trio.isolate(follower.id)
    trio.until(lambda: follower.reply_to(waiting), "it let readers wait for ever")
    assert follower.reply_to(waiting).code == Unavailable.code
    assert follower.reply_to(follower.ask(fetch(info, 0))).code == Unavailable.code
    trio.heal()
    group = info.addresses[0].group
    trio.until(lambda: follower.group(group).is_current)
    assert values(follower.reply_to(follower.ask(fetch(info, 0))), group) == [b"a"]


def test_a_damaged_replica_names_who_leads(trio: Any, produce: Any) -> None:
    info, _, leader, follower = founded(trio, produce, b"a")
    group = follower.group(info.addresses[0].group)
    group.storage.unreadable = 1
    assert group.is_incomplete
    refusal = follower.reply_to(follower.ask(fetch(info, 0)))
    assert (refusal.code, refusal.detail) == (NotLeader.code, leader.id)


def test_who_holds_nothing_of_it_asks_the_leader(trio: Any, produce: Any) -> None:
    settled(trio)
    info = trio.topic("lone", replicas=1)
    group = info.addresses[0].group
    leader = trio.leader(group)
    grant = trio.producer()
    trio.answer(leader, produce(info, grant, 0, b"a"))
    for node in trio.live():
        assert values(trio.answer(node, fetch(info, 0)), group) == [b"a"]


def test_who_led_before_does_not_say_that_later_messages_are_not_there(
    trio: Any, produce: Any
) -> None:
    """A reader that comes back from the next leader would take it for the end of its topic."""
    info, grant, old, _ = founded(trio, produce, b"a")
    address = info.addresses[0]

    def led() -> list[Any]:
        return [node for node in trio.live() if node.shard.topics.find(address.group).leads]

    trio.isolate(old.id)
    while led() in ([old], []):
        trio.pass_ms(10)
        trio.settle()
    assert old in led()
    (new,) = [node for node in led() if node is not old]
    number = new.ask(produce(info, grant, 1, b"b"))
    trio.settle()
    assert new.reply_to(number).offset == 1
    asked = old.ask(m.Fetch(address, 2, 1 << 20, 0))
    assert old.reply_to(asked) is None
    trio.until(lambda: old.reply_to(asked))
    assert old.reply_to(asked).code in (NotLeader.code, Unavailable.code)
    assert trio.answer(new, m.Fetch(address, 2, 1 << 20, 0)).next_offset == 2
    assert trio.answer(new, m.Fetch(address, 9, 1 << 20, 0)).code == OffsetOutOfRange.code
