"""The audit topic: each change once, whatever crashes, and who came in or was refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from rigs.access import be, give, rule, set_mode, verifier_of
from rigs.shards import catalog_of
from weir.access.credentials import derive_key
from weir.access.scram import MECHANISM, ScramClient, ScramProof, encode_nonce
from weir.broker.api import events as ev
from weir.broker.api.effects import Stopped
from weir.broker.audit import auditor
from weir.broker.audit.buffer import AuditBuffer, Seen
from weir.broker.metadata import audit as trail
from weir.broker.metadata.audit import AuditBacklog, AuditGate, AuditTrail, Deed
from weir.broker.records import registry as reg
from weir.broker.records.audit import AuditProducerOpened, AuditPublished
from weir.broker.records.security import AccessFounded, UserCreated
from weir.errors import NotAuthenticated, Overloaded, Unauthorized, Unavailable
from weir.model import limits
from weir.model.batch import Batch
from weir.model.topic import SettingsChange
from weir.protocol.client import access as w
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.access import Login

#: Less than the second after which a shard publishes by itself.
_JUST_BEFORE_MS = 10
ROOT, HOME = "default/root", "192.0.2.7"


@pytest.fixture
def rig(make_rig: Callable[..., Any]) -> Any:
    rig = make_rig(secret_bytes=random.Random(7).randbytes)
    enter(rig)
    return rig


def enter(rig: Any) -> None:
    """Let there be an administrator at session 1, and nothing that the entries do not say."""
    rig.replies[1] = []
    rig.handle(ev.Opened(1, address=HOME))
    rig.answer(1, m.Hello("test"))


def watched(rig: Any) -> None:
    """Let the set watch, by entries."""
    rig.answer(1, w.ChangeUser("root", "create", verifier_of("x"), ("admin",)))
    rig.answer(1, w.SetAccessMode("watch"))
    be(rig.shard, 1, f"user:{ROOT}#2")


def published(rig: Any) -> list[dict[str, Any]]:
    """Return what the audit topic has."""
    topic = catalog_of(rig.shard).audit_topic
    if topic is None:
        return []
    rig.replies.setdefault(90, [])
    rig.handle(ev.Opened(90))
    for administrator in catalog_of(rig.shard).access.administrators():
        be(rig.shard, 90, administrator.principal)
    rig.answer(90, m.Hello("reader"))
    address, found, offset = m.Address(0, 0, topic.groups()[0]), list[dict[str, Any]](), 0
    while True:
        page = rig.answer(90, m.Fetch(address, offset, 1 << 20))
        if page.next_offset == offset:
            rig.handle(ev.Closed(90))
            return found
        data, at = b"".join(page.batches), 0
        while at < len(data):
            batch = Batch(memoryview(data)[at:])
            found += [json.loads(bytes(value)) for value in batch.values()]
            at += batch.header.total_size
        offset = page.next_offset


def changes(rig: Any) -> list[tuple[str, str, str]]:
    rows = [one for one in published(rig) if one["id"].startswith("change:")]
    assert len({one["id"] for one in rows}) == len(rows), "a change is there twice"
    return [(one["verb"], one["kind"], one["resource"]) for one in rows]


def test_a_change_says_who_asked_for_it_and_from_where(rig: Any) -> None:
    watched(rig)
    rig.topic(1, "shop/orders")
    rig.answer(1, a.AlterTopic("shop/orders", SettingsChange(retention_ms=60_000)))
    rig.answer(1, a.DeleteTopic("shop/orders"))
    rig.settle()
    rows = [one for one in published(rig) if one["id"].startswith("change:")]
    assert [(one["verb"], one["resource"], one["detail"]) for one in rows] == [
        ("set-mode", "", "watch"),
        ("create", "shop/orders", "partitions=1 order=partition"),
        ("alter", "shop/orders", "retention_ms=60000"),
        ("delete", "shop/orders", "id=2"),
    ]
    for row in rows[1:]:
        assert (row["who"], row["whence"]) == (f"user:{ROOT}#2", HOME)
        assert (row["outcome"], row["count"]) == ("committed", 1)
    assert rows[0]["who"] == "anonymous"
    assert not len(catalog_of(rig.shard).audit), "what is published is kept no longer"


def test_a_restored_topic_says_of_what_it_is_restored(rig: Any) -> None:
    watched(rig)
    restored = m.RestoreTopic("shop/a", 2, key_by="device", source="old/a", system=0xAB)
    rig.answer(1, restored)
    rig.answer(1, m.CreateTopic("shop/b", key_by="device"))
    rig.settle()
    rows = [one for one in published(rig) if one["id"].startswith("change:")]
    assert [(one["verb"], one["resource"], one["detail"]) for one in rows[1:]] == [
        ("restore", "shop/a", "partitions=2 order=partition key_by=device source=ab:old/a"),
        ("create", "shop/b", "partitions=1 order=partition key_by=device"),
    ]


def test_an_open_set_is_audited_once_the_topic_is_created(rig: Any) -> None:
    rig.topic(1, "shop/before")
    info = rig.answer(1, m.CreateTopic("_weir/audit"))
    assert info.settings.retention_ms == limits.AUDIT_RETENTION_MS
    rig.topic(1, "shop/after")
    rig.settle()
    assert changes(rig) == [
        ("create", "topic", "_weir/audit"), ("create", "topic", "shop/after")
    ]  # fmt: skip


@pytest.mark.parametrize("steps", range(12))
def test_each_change_is_there_once_after_a_crash_at_any_step(rig: Any, steps: int) -> None:
    watched(rig)
    rig.ask(1, m.CreateTopic("shop/a"), m.CreateTopic("shop/b"))
    for _ in range(steps):
        if rig.jobs:
            rig.step()
    rig.boot()
    for _ in range(4):
        rig.tick(300)
        rig.settle()
    enter(rig)
    be(rig.shard, 1, f"user:{ROOT}#2")
    rig.answer(1, m.CreateTopic("shop/a", if_absent=True))
    rig.answer(1, m.CreateTopic("shop/b", if_absent=True))
    rig.settle()
    assert changes(rig) == [
        ("set-mode", "system", ""), ("create", "topic", "shop/a"), ("create", "topic", "shop/b")
    ]  # fmt: skip


def test_what_is_published_and_not_known_to_be_is_sent_again_under_its_sequence(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that dies between the two entries leaves the change in the state."""
    watched(rig)
    monkeypatch.setattr(auditor.ChangePublisher, "_tell", lambda self: None)
    rig.topic(1, "shop/a")
    rig.settle()
    assert len(catalog_of(rig.shard).audit) == 1
    monkeypatch.undo()
    rig.boot()
    for _ in range(4):
        rig.tick(300)
        rig.settle()
    assert not len(catalog_of(rig.shard).audit)
    assert changes(rig) == [("set-mode", "system", ""), ("create", "topic", "shop/a")]


def refuse_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(*_: Any) -> int:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(auditor.AuditTopic, "send", send)


def test_administration_waits_where_the_topic_takes_nothing(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched(rig)
    refuse_all(monkeypatch)
    rig.topic(1, "shop/a")
    for _ in range(30):
        rig.tick()
    asked = rig.ask(1, m.CreateTopic("shop/b"))
    rig.settle()
    assert asked not in [number for number, _ in rig.replies[1]], "it waits"
    for _ in range(110):
        rig.tick()
    refusal = dict(rig.replies[1])[asked]
    assert refusal.code == Unavailable.code
    assert "_weir/audit takes no messages" in refusal.message
    assert "the disk is full" in refusal.message
    assert catalog_of(rig.shard).find("shop", "b") is None
    # What repairs a set, or takes rights away, does not wait.
    altered = rig.answer(1, a.AlterTopic("shop/a", SettingsChange(retention_ms=60_000)))
    assert isinstance(altered, m.TopicInfo)
    rig.ask(1, m.CreateTopic("shop/c"))
    monkeypatch.undo()
    for _ in range(10):
        rig.tick()
        rig.settle()
    assert changes(rig)[-3:] == [
        ("create", "topic", "shop/a"), ("alter", "topic", "shop/a"), ("create", "topic", "shop/c")
    ]  # fmt: skip


@pytest.mark.parametrize("pending", [0, limits.AUDIT_CHANGES_MAX])
def test_a_promotion_does_not_wait_for_a_topic_that_has_lost_its_leader(
    pending: int,
) -> None:
    audited = SimpleNamespace(audit=AuditTrail(), is_audited=True)
    gate = AuditGate(audited, SimpleNamespace(wall_ms=lambda: 7))  # type: ignore[arg-type]
    for _ in range(pending):
        deleted = reg.Attributed("ann", "here", 0, reg.TopicDeleted(1))
        audited.audit.add(1, deleted, Deed("delete", "topic", "#1"), 1)
    gate.closed_by = "_weir/audit has no leader"
    promoted = reg.SetPromoted(1, 2, (4, 5, 6))
    found: list[object] = []
    gate.answer_for(("ann", "here"), lambda: found.append(gate.attributed(promoted)))
    assert found == [reg.Attributed("ann", "here", 7, promoted)]
    with pytest.raises(AuditBacklog):
        gate.answer_for(("ann", "here"), lambda: found.append(gate.attributed(reg.TopicDeleted(1))))


def test_too_many_do_not_wait(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(rig)
    refuse_all(monkeypatch)
    monkeypatch.setattr("weir.broker.audit.backlog.AUDIT_WAITING_MAX", 2)
    rig.topic(1, "shop/a")
    for _ in range(30):
        rig.tick()
    asked = [rig.ask(1, m.CreateTopic(f"shop/{number}")) for number in range(3)]
    rig.settle()
    answered = dict(rig.replies[1])
    assert [number in answered for number in asked] == [False, False, True]


def attempt(rig: Any, session: int, password: str, address: str = "198.51.100.9") -> Any:
    rig.replies[session] = []
    rig.handle(ev.Opened(session, address=address))
    rig.handle(ev.Secured(session))
    client = ScramClient("ann", encode_nonce(bytes([session % 250]) * 18))
    reply = rig.answer(session, Login(MECHANISM, client.first))
    if not isinstance(reply, w.LoginStep):
        return reply
    challenge = client.challenged(reply.message)
    key = derive_key(password, challenge.salt, challenge.iterations)
    return rig.answer(session, Login(MECHANISM, ScramProof(challenge, key).final))


def test_a_flood_of_failing_logins_is_one_message(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = catalog_of(rig.shard).access
    access.apply(AccessFounded(bytes(32)))
    access.apply(UserCreated("default/ann", verifier_of("right")))
    set_mode(access, "watch")
    rig.tick(1_000)
    rig.settle()
    refuse_all(monkeypatch)
    for session in range(100, 104):
        assert attempt(rig, session, "wrong").code == NotAuthenticated.code
    assert attempt(rig, 200, "right").done, "logins go on where nothing can be published"
    monkeypatch.undo()
    for _ in range(30):
        rig.tick()
        rig.settle()
    logins = [one for one in published(rig) if one["verb"] == "login"]
    assert [(one["outcome"], one["count"], one["who"]) for one in logins] == [
        ("refused", 4, "anonymous"), ("allowed", 1, "user:default/ann#2")
    ]  # fmt: skip
    assert {(one["resource"], one["whence"], one["detail"]) for one in logins} == {
        ("default/ann", "198.51.100.9", MECHANISM)
    }


def logged_in(rig: Any, last: int) -> None:
    """Let a set watch, and somebody log in just before it stops, by sessions 200 to `last`."""
    access = catalog_of(rig.shard).access
    access.apply(AccessFounded(bytes(32)))
    access.apply(UserCreated("default/ann", verifier_of("right")))
    set_mode(access, "watch")
    for _ in range(30):
        rig.tick()
        rig.settle()
    rig.tick(_JUST_BEFORE_MS)  # publishes what was seen by now
    for session in range(200, last + 1):
        assert attempt(rig, session, "right", f"198.51.100.{session}").done


def stopped(rig: Any) -> bool:
    return any(isinstance(effect, Stopped) for effect in rig.others)


def test_a_shard_that_stops_publishes_what_it_has_seen_last(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor, "_EVENTS_AT_ONCE", 2)
    logged_in(rig, 204)
    assert not [one for one in published(rig) if one["verb"] == "login"]
    rig.handle(ev.Stopping())
    rig.settle()
    assert stopped(rig), "nothing waits for a tick"
    rig.disk.crash()
    rig.boot()
    rig.settle()
    set_mode(catalog_of(rig.shard).access, "open")
    logins = [one for one in published(rig) if one["verb"] == "login"]
    assert [one["count"] for one in logins] == [1] * 5
    assert len({one["id"] for one in logins}) == 5


def test_a_shard_stops_though_nothing_can_be_published(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged_in(rig, 200)
    refuse_all(monkeypatch)
    rig.handle(ev.Stopping())
    rig.settle()
    assert not stopped(rig)
    for _ in range(20):
        rig.tick(100)
        rig.settle()
    assert stopped(rig)


@pytest.mark.parametrize(
    ("mode", "outcome"), [("closed", "refused"), ("watch", "would-be-refused")]
)
def test_denials_and_first_uses_are_published(rig: Any, mode: Any, outcome: str) -> None:
    rig.topic(1, "shop/orders")
    access = catalog_of(rig.shard).access
    ann = give(access, "shop/ann", rule("read", "topic", "shop/orders"))
    set_mode(access, mode)
    rig.replies[5] = []
    rig.handle(ev.Opened(5, address=HOME))
    be(rig.shard, 5, ann)
    rig.answer(5, m.Hello("x"))
    topic = catalog_of(rig.shard).find("shop", "orders")
    assert topic is not None
    for _ in range(3):
        rig.answer(5, m.Positions(m.Address(0, 0, topic.groups()[0]), 0))
        rig.answer(5, a.DeleteTopic("shop/none"))
        refused = rig.answer(5, m.CreateTopic("shop/orders", if_absent=True))
    assert isinstance(refused, m.Refusal) == (mode == "closed")
    for _ in range(30):
        rig.tick()
        rig.settle()
    rows = [one for one in published(rig) if one["who"] == ann and one["verb"] != "login"]
    seen = [(one["verb"], one["resource"], one["outcome"], one["count"]) for one in rows]
    assert ("read", "shop/orders", "allowed", 1) in seen
    assert ("create", "shop", outcome, 3) in seen
    (denied,) = [one for one in rows if one["verb"] == "create"]
    assert denied["missing"] == "weir acl allow ROLE create namespace shop"


def test_only_brokers_write_there(rig: Any) -> None:
    watched(rig)
    rig.settle()
    grant = rig.answer(1, m.OpenProducer())
    info = rig.answer(1, m.DescribeTopic("_weir/audit"))
    for request in (
        rig.batch(info, grant, 0, b"forged"), a.DeleteTopic("_weir/audit"),
        m.CreateTopic("_weir/other"), a.EndPartition("_weir/audit", 0),
        a.AlterTopic("_weir/audit", SettingsChange(), 4),
    ):  # fmt: skip
        assert rig.answer(1, request).code == Unauthorized.code, request
    altered = rig.answer(1, a.AlterTopic("_weir/audit", SettingsChange(retention_ms=86_400_000)))
    assert altered.settings.retention_ms == 86_400_000


def test_a_rule_for_everything_does_not_reach_there(rig: Any) -> None:
    access = catalog_of(rig.shard).access
    everything = give(access, "shop/all", rule("read", "topic", "", True))
    reader = give(access, "shop/reader", rule("read", "topic", "_weir/audit"))
    root = give(access, "shop/root", admin=True)
    for principal, may in ((everything, False), (reader, True), (root, True)):
        assert bool(access.authorize(principal, "read", "topic", "_weir/audit")) is may
        assert bool(access.authorize(principal, "describe", "topic", "_weir/audit")) is may
    assert access.authorize(everything, "read", "topic", "shop/orders")


def test_the_buffer_is_bounded_and_says_what_it_dropped(time: Any) -> None:
    class Audited:
        is_audited = True

    buffer = AuditBuffer(Audited(), time)
    for number in range(limits.AUDIT_EVENTS_MAX + 5):
        buffer.add(Seen("anonymous", "", "login", "user", str(number), "refused", 1))
    buffer.add(Seen("anonymous", "", "login", "user", "0", "refused", 1))
    assert (len(buffer), buffer.dropped) == (limits.AUDIT_EVENTS_MAX, 5)
    told, first, *_ = buffer.take(3, "shard:1.0:9", 7)
    assert (told.verb, told.outcome, told.count) == ("drop", "dropped", 5)
    assert (first.id, first.resource, first.count) == ("shard:1.0:9:8", "0", 2)
    assert not any(one.verb == "drop" for one in buffer.take(3, "shard:1.0:9", 9))


def test_nothing_is_kept_where_nobody_audits(rig: Any) -> None:
    assert attempt(rig, 7, "x").code in (NotAuthenticated.code, Overloaded.code, Unavailable.code)
    assert not len(rig.shard.auditor.events.buffer)


def test_each_kind_of_change_is_audited_or_named_as_not() -> None:
    both = {*trail._DEEDS, *trail.UNAUDITED}
    assert both == set(get_args(reg.RegistryChange))
    assert len(both) == len(trail._DEEDS) + len(trail.UNAUDITED)


def test_the_state_keeps_each_change_until_the_topic_has_it() -> None:
    trail = AuditTrail()
    for index in (5, 7, 9):
        by = reg.Attributed("user:a/b#1", HOME, index, reg.TopicDeleted(index))
        trail.add(index, by, Deed("delete", "topic", f"#{index}"), 1)
    assert trail.open(AuditProducerOpened(90, 0))
    for producer, below, left in ((90, 0, 3), (91, 3, 3), (90, 1, 2), (90, 1, 2), (90, 3, 0)):
        trail.published(AuditPublished(producer, below))
        assert (len(trail), trail.first) == (left, 3 - left)
        assert [trail.get(trail.first + at)[0] for at in range(left)] == [5, 7, 9][3 - left :]
