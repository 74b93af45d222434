"""A flush begins, and a confirm leaves, before the shard looks at what else may be due."""

from __future__ import annotations

from typing import Any

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, encode_request


def test_a_confirm_leaves_before_those_who_wait_for_messages_are_told(rig: Any) -> None:
    rig.connect()
    reader = rig.connect(2)
    info = rig.topic(1)
    grant = rig.answer(1, m.OpenProducer())
    rig.ask(reader, m.Fetch(info.addresses[0], 0, 1 << 20, 60_000))
    request = rig.batch(info, grant, 0, b"one")
    frames = ClientStream().receive(b"".join(encode_request(request, 7)))

    begun = rig.shard.step(ev.Received(1, frames))
    assert [type(effect) for effect in begun] == [ef.StartFlush]
    assert rig.shard.run_deferred() == []

    flush = begun[0]
    flush.flush.run(rig.disk)
    sent = rig.shard.step(ev.Flushed(0, flush.flush))
    assert [effect.session for effect in sent] == [1]
    rig.do(sent)
    woken = rig.shard.run_deferred()
    assert [effect.session for effect in woken if isinstance(effect, ef.Send)] == [reader]
    rig.do(woken)
    [(_, confirm)] = [reply for reply in rig.replies[1] if isinstance(reply[1], m.Confirm)]
    assert confirm.offset == 0
    assert rig.replies[reader][-1][1].next_offset == 1


def test_a_host_that_asks_for_both_gets_them_in_that_order(rig: Any) -> None:
    rig.connect()
    reader = rig.connect(2)
    info = rig.topic(1)
    grant = rig.answer(1, m.OpenProducer())
    rig.ask(reader, m.Fetch(info.addresses[0], 0, 1 << 20, 60_000))
    rig.ask(1, rig.batch(info, grant, 0, b"one"))
    flush = rig.jobs.pop()
    flush.flush.run(rig.disk)
    effects = rig.shard.handle(ev.Flushed(0, flush.flush))
    assert [one.session for one in effects if isinstance(one, ef.Send)] == [1, reader]
