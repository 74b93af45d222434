"""Topics altered and deleted: what is refused, who is told, what outlives a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from weir.errors import BadRequest, TopicExists, UnknownTopic
from weir.model.limits import RETENTION_MS_DEFAULT
from weir.model.topic import SettingsChange, TopicSettings
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

HOUR_MS = 3600 * 1000


def restart(rig: Any) -> None:
    rig.disk.crash()
    rig.boot()
    rig.connect()


def stored_groups(rig: Any) -> set[int]:
    return set(rig.shard.writers[0].groups)


def test_settings_are_given_at_creation_and_shown(rig: Any) -> None:
    rig.connect()
    change = SettingsChange(retention_ms=HOUR_MS)
    info = rig.answer(1, m.CreateTopic("t", settings=change))
    assert info.settings == TopicSettings(HOUR_MS, 0)
    assert rig.answer(1, m.CreateTopic("u")).settings == TopicSettings(RETENTION_MS_DEFAULT, 0)
    assert rig.answer(1, m.CreateTopic("t")) == info, "nothing else is asked for"
    assert rig.answer(1, m.CreateTopic("t", settings=change)) == info
    other = SettingsChange(retention_bytes=5)
    assert rig.answer(1, m.CreateTopic("t", settings=other)).code == TopicExists.code
    assert rig.answer(1, m.CreateTopic("v", settings=SettingsChange(1))).code == BadRequest.code
    restart(rig)
    assert rig.answer(1, m.DescribeTopic("t")) == info


@pytest.mark.parametrize("checkpoint_bytes", [1, 1 << 30])
def test_alterations_add_up_and_last(make_rig: Callable[..., Any], checkpoint_bytes: int) -> None:
    rig = make_rig(checkpoint_bytes=checkpoint_bytes)
    rig.topic(rig.connect(), partitions=2)
    rig.answer(1, a.AlterTopic("t", SettingsChange(retention_ms=HOUR_MS)))
    altered = rig.answer(1, a.AlterTopic("t", SettingsChange(retention_bytes=9), 3))
    assert altered.settings == TopicSettings(HOUR_MS, 9)
    assert len(altered.addresses) == 3
    rig.tick()
    rig.settle()
    restart(rig)
    assert rig.answer(1, m.DescribeTopic("t")) == altered
    assert rig.shard.partitions_led == 3


def test_changes_under_way_together_all_hold(rig: Any) -> None:
    rig.topic(rig.connect())
    numbers = [
        rig.ask(1, a.AlterTopic("t", SettingsChange(retention_ms=0))),
        rig.ask(1, a.AlterTopic("t", SettingsChange(retention_bytes=9))),
        rig.ask(1, a.AlterTopic("t", partitions=4)),
        rig.ask(1, a.AlterTopic("t", SettingsChange(retention_bytes=8), partitions=2)),
    ]
    rig.settle()
    replies = dict(rig.replies[1])
    assert replies[numbers[3]].code == BadRequest.code, "it has 4 by then"
    for _ in range(2):
        info = rig.answer(1, m.DescribeTopic("t"))
        assert info == replies[numbers[2]]
        assert info.settings == TopicSettings(0, 9)
        assert len(info.addresses) == 4
        restart(rig)


def test_new_partitions_take_messages_and_old_ones_keep_theirs(rig: Any) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(info, grant, 0, b"old"))
    wider = rig.answer(1, a.AlterTopic("t", partitions=2))
    assert wider.addresses[:1] == info.addresses
    moved = msgspec.structs.replace(wider, addresses=wider.addresses[1:])
    assert rig.answer(1, rig.batch(moved, grant, 0, b"new")).offset == 0
    ends = [rig.answer(1, m.Positions(address)).end for address in wider.addresses]
    assert ends == [1, 1]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (a.AlterTopic("no"), UnknownTopic.code),
        (a.AlterTopic("t", partitions=1), BadRequest.code),
        (a.AlterTopic("t", partitions=1_025), BadRequest.code),
        (a.AlterTopic("t", SettingsChange(retention_ms=1)), BadRequest.code),
        (a.DeleteTopic("no"), UnknownTopic.code),
        (a.DeleteTopic("t", 99), UnknownTopic.code),
    ],
)
def test_what_cannot_be_is_refused(rig: Any, request_: Any, code: int) -> None:
    info = rig.topic(rig.connect(), partitions=2)
    assert rig.answer(1, request_).code == code
    assert rig.answer(1, m.DescribeTopic("t")) == info


@pytest.mark.parametrize("checkpoint_bytes", [1, 1 << 30])
def test_a_deleted_topic_is_gone_for_good(
    make_rig: Callable[..., Any], checkpoint_bytes: int
) -> None:
    rig = make_rig(checkpoint_bytes=checkpoint_bytes)
    info, kept = rig.topic(rig.connect(), partitions=2), rig.topic(1, "kept")
    grant = rig.answer(1, m.OpenProducer())
    rig.answer(1, rig.batch(info, grant, 0, b"x" * 1_000))
    rig.answer(1, rig.batch(kept, grant, 0, b"kept"))
    rig.tick()
    rig.settle()
    assert rig.answer(1, a.DeleteTopic("t", info.id)) == a.Deleted(info.id)
    for _ in range(3):
        assert rig.answer(1, m.DescribeTopic("t")).code == UnknownTopic.code
        refused = rig.answer(1, rig.batch(info, grant, 1, b"late"))
        assert refused.code == UnknownTopic.code
        assert "deleted" in refused.message
        assert rig.answer(1, m.Fetch(info.addresses[0], 0, 1)).code == UnknownTopic.code
        assert stored_groups(rig) == {0, kept.addresses[0].group}
        assert rig.shard.writers[0].log.reader.group_bytes(info.addresses[0].group) == 0
        assert rig.answer(1, m.Positions(kept.addresses[0])).end == 1
        # Asked again, because the first answer was lost.
        assert rig.answer(1, a.DeleteTopic("t", info.id)) == a.Deleted(info.id)
        rig.tick()
        rig.settle()
        restart(rig)
    again = rig.topic(1, "t")
    assert again.id > info.id
    assert rig.answer(1, m.Positions(again.addresses[0])).end == 0
    assert rig.answer(1, a.DeleteTopic("t", info.id)) == a.Deleted(info.id)
    assert rig.answer(1, m.DescribeTopic("t")) == again


def test_those_who_wait_are_told_that_the_topic_was_deleted(rig: Any) -> None:
    info = rig.topic(rig.connect())
    (address,) = info.addresses
    waiting = [
        rig.ask(1, m.Fetch(address, 0, 1, 60_000)),
        rig.ask(1, m.Pull(address, "c", 1, 1, 60_000)),
        rig.ask(1, m.Pull(address, "c", 0, 1, 60_000)),
    ]
    rig.answer(1, a.DeleteTopic("t"))
    replies = dict(rig.replies[1])
    assert [replies[number].code for number in waiting] == [UnknownTopic.code] * 3


def test_what_was_under_way_is_confirmed_before_the_end(rig: Any) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    used = rig.shard.budget.used
    rig.device(2)
    numbers = [
        rig.ask(1, a.DeleteTopic("t")),
        rig.ask(1, rig.batch(info, grant, 0, b"first")),
        rig.ask(1, rig.batch(info, grant, 1, b"second")),
    ]
    rig.settle()
    replies = dict(rig.replies[1])
    assert isinstance(replies[numbers[0]], a.Deleted)
    assert [type(replies[number]) for number in numbers[1:]] == [m.Confirm] * 2
    assert stored_groups(rig) == {0}
    assert rig.shard.budget.used == used


def test_a_topic_may_go_while_its_partitions_seek_to_lead(rig: Any) -> None:
    rig.connect()
    for _ in range(3):
        rig.ask(1, m.CreateTopic("t", 2))
        while rig.shard.topics.catalog.find("default", "t") is None:
            rig.step()
        assert rig.shard.partitions_led == 0
        rig.answer(1, a.DeleteTopic("t"))
        assert stored_groups(rig) == {0}
    assert rig.shard.ready


def test_two_who_delete_the_same_topic_at_once(rig: Any) -> None:
    rig.topic(rig.connect())
    numbers = [rig.ask(1, a.DeleteTopic("t")) for _ in range(2)]
    numbers.append(rig.ask(1, a.AlterTopic("t", partitions=2)))
    rig.settle()
    replies = dict(rig.replies[1])
    assert isinstance(replies[numbers[0]], a.Deleted)
    assert [replies[number].code for number in numbers[1:]] == [UnknownTopic.code] * 2


def test_a_topic_that_was_recycled_in_part_does_not_stop_a_start(
    make_rig: Callable[..., Any],
) -> None:
    """Its group must not be opened on the way to the entry that deletes it."""
    rig = make_rig(checkpoint_bytes=1 << 30)
    info, other = rig.topic(rig.connect()), rig.topic(1, "other")
    grant = rig.answer(1, m.OpenProducer())
    for sequence in range(40):
        rig.answer(1, rig.batch(info, grant, sequence, bytes(4_000)))
    rig.answer(1, a.DeleteTopic("t"))
    for sequence in range(40):
        rig.answer(1, rig.batch(other, grant, sequence, bytes(4_000)))
    restart(rig)
    assert rig.shard.ready
    assert stored_groups(rig) == {0, other.addresses[0].group}
    assert rig.answer(1, m.Positions(other.addresses[0])).end == 40
