"""A node that has not heard of topics' settings yet asks before it refuses a scattering by them."""

from __future__ import annotations

from typing import Any

from weir.errors import NotTogether, refusal
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import batch_part
from weir.model.topic import SettingsChange
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part


def scatter(infos: list[m.TopicInfo], grant: m.ProducerGrant) -> m.Scatter:
    parts = tuple(sorted(batch_part(info.addresses[0].group) for info in infos))
    found = [
        Part(info.addresses[0], bytes(encode(
            [b"x"], group=info.addresses[0].group, producer=grant.producer, epoch=grant.epoch,
            sequence=0, scattered=Scattered(0, parts),
        )))
        for info in infos
    ]  # fmt: skip
    return m.Scatter(grant.producer, grant.epoch, 0, 0, found)


def answer(trio: Any, node: Any, request: m.Scatter) -> Any:
    """Return what is answered in the end, where a client would ask again."""
    for _ in range(100):
        reply = trio.answer(node, request)
        if not isinstance(reply, m.Refusal) or not refusal(reply.code, "").retryable:
            break
        trio.run(50)
    return reply


def test_who_lags_behind_refuses_nothing_that_is_allowed_by_now(trio: Any) -> None:
    """It said at once that the topics do not agree, to who had just been told that they do."""
    infos, grant = [trio.topic("a"), trio.topic("b")], trio.producer()
    late = next(node for node in trio.live() if node is not trio.leader())
    reply = trio.answer(late, scatter(infos, grant))
    assert isinstance(refusal(reply.code, reply.message), NotTogether)
    trio.isolate(late.id)
    for name, other in (("a", "b"), ("b", "a")):
        change = SettingsChange(scatter_with=(other,))
        assert isinstance(trio.told(a.AlterTopic(name, change, 0), 0), m.TopicInfo)
    trio.heal()
    reply = answer(trio, late, scatter(infos, grant))
    assert isinstance(reply, m.ScatterConfirm), reply
