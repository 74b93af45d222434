"""Windows of producer ids where a batch is confirmed long before it is committed."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from rigs.replica_trio import Trio
from weir.errors import BadRequest
from weir.model.limits import FORMAT_LEVEL_WINDOWS
from weir.protocol.client import messages as m


def test_a_batch_confirmed_as_received_makes_room_before_its_commit(
    trio: Trio, produce: Callable[..., m.Produce]
) -> None:
    for node in trio.live():
        node.shard.registry.catalog.nodes.level = FORMAT_LEVEL_WINDOWS
    info = trio.topic()
    group = info.addresses[0].group
    grant = trio.answer(trio.leader(), m.OpenProducer(window=2))
    assert trio.told(produce(info, grant, 0, b"v"), group).offset == 0
    leader = trio.leader(group)
    trio.isolate(leader.id)  # it commits nothing from here on
    for number in (1, 2, 3):
        early = structs.replace(produce(info, grant, number, b"v"), level=m.Level.RECEIVED)
        asked_early = leader.ask(early)
        trio.settle()
        confirm = leader.reply_to(asked_early)
        assert (type(confirm), confirm.offset) == (m.Confirm, -1)
    asked = [leader.ask(produce(info, grant, number, b"v")) for number in (4, 5)]
    assert [leader.reply_to(number) for number in asked] == [None, None]
    refusal = leader.reply_to(leader.ask(produce(info, grant, 6, b"v")))
    assert refusal.code == BadRequest.code
