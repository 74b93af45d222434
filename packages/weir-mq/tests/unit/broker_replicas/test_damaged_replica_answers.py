"""A damaged replica knows neither what was committed of what it has, nor what came after."""

from __future__ import annotations

from typing import Any

from weir.errors import NotLeader
from weir.model.batch import Batch
from weir.protocol.client import messages as m


def segments(node: Any) -> list[str]:
    return sorted(name for name in node.disk.names() if name.startswith("segment"))


def answered(trio: Any, node: Any, request: Any) -> Any:
    """The answer to a request, or what it was refused with, as soon as there is one."""
    question = node.ask(request)
    trio.until(lambda: node.reply_to(question) is not None, "no answer")
    return node.reply_to(question)


def values(reply: Any) -> list[bytes]:
    return [value for data in reply.batches for value in Batch(bytes(data)).values()]


def test_it_does_not_serve_what_was_never_committed(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    address, group = info.addresses[0], info.addresses[0].group
    for number in range(30):
        trio.told(produce(info, grant, number, bytes([65 + number % 26]) * 300), group)
    old = trio.leader(group)
    tail = old.shard.writers[0].log.tail
    trio.isolate(old.id)
    question = old.ask(produce(info, grant, 30, b"never committed" * 20))
    while old.jobs:
        old.step()
    assert old.reply_to(question) is None
    old.kill()
    trio.heal()
    for number in range(30, 41):
        trio.told(produce(info, grant, number, b"committed"), group)
    old.disk.flip(segments(old)[0], tail * 6 // 10)
    old.boot()
    trio.until(lambda: old.group(group) is not None, "it is not opened")
    while old.group(group).damage is not None:
        for request in (m.Positions(address, 0), m.Fetch(address, 30, 1 << 20, 0)):
            reply = answered(trio, old, request)
            if isinstance(reply, m.PositionsReply):
                assert reply.end == 41
            elif isinstance(reply, m.Fetched):
                assert set(values(reply)) == {b"committed"}
            else:
                assert reply.code == NotLeader.code, "refused so that it is asked elsewhere"
        trio.run(100)
    confirmed = trio.told(produce(info, grant, 41, b"committed"), group)
    assert confirmed.offset == 41
