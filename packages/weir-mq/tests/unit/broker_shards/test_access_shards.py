"""Access over several shards: both ends of a trunk look, and a change is answered once all know."""

from __future__ import annotations

from typing import Any

import pytest

from rigs.access import VERIFIER, be, give, rule, set_mode, spoil_role, verifier_of
from rigs.shards import catalog_of, sessions_of
from weir.access.scram import MECHANISM, ScramClient, encode_nonce
from weir.broker.access.confirmations import REACHED_WITHIN_MS
from weir.broker.api import events as ev
from weir.errors import AccessRevoked, Unauthorized, Unavailable, UnknownTopic
from weir.protocol.client import access as w
from weir.protocol.client import messages as m

READ = w.RuleRow(("read",), "topic", "t")


def closed(node: Any) -> Any:
    """Let there be topic t, user ann who reads it, and an administrator in session 2 of shard 0;
    all by entries. Return t's address.
    """
    info = node.answer(0, m.CreateTopic("t", 1))
    for request in (
        w.ChangeRole("readers", (READ,)),
        w.ChangeUser("create", "root", VERIFIER, ("admin",)),
        w.ChangeUser("create", "ann", VERIFIER, ("readers",)),
        w.SetAccessMode("watch"),
    ):
        assert node.answer(0, request).unreached == []
    enter(node, 0, 2, "default/root")
    assert node.answer(0, w.SetAccessMode("closed"), 2).unreached == []
    return info.addresses[0]


def enter(node: Any, shard: int, session: int, user: str) -> None:
    """Let a session be a user's."""
    one = node.all[shard]
    one.handle(ev.Opened(session))
    be(one.shard, session, catalog_of(one.shard).access.user(user).principal)
    assert isinstance(node.answer(shard, m.Hello("x"), session), m.Welcome)


def others_of(address: Any) -> list[int]:
    return [shard for shard in range(3) if shard != address.shard]


def test_every_shard_knows_by_the_answer(node: Any) -> None:
    closed(node)
    versions = {catalog_of(one.shard).access.version for one in node.all}
    assert len(versions) == 1
    assert [1 in sessions_of(one.shard) for one in node.all] == [False] * 3
    assert all(1 in one.hung_up for one in node.all), "those were nobody's"


def test_what_is_revoked_ends_where_it_landed_and_where_it_was_passed_on_to(node: Any) -> None:
    address = closed(node)
    here = others_of(address)[0]
    enter(node, here, 5, "default/ann")
    waits = node.ask(here, m.Fetch(address, 0, 1, wait_ms=10_000), 5)
    node.settle()
    assert node.reply(here, waits, 5) is None
    assert len(node.all[address.shard].guests) > 0
    changed = node.answer(0, w.ChangeUser("revoke", "ann"), 2)
    assert changed.unreached == []
    assert node.reply(here, waits, 5).code == AccessRevoked.code
    assert 5 in node.all[here].hung_up
    for one in node.all:
        assert not any("ann" in s.principal for s in sessions_of(one.shard).values())


@pytest.mark.parametrize("stale", ["landing", "owner"])
def test_each_end_looks_by_itself(node: Any, stale: str) -> None:
    """One that has not heard of it passes nothing by the other one that has."""
    address = closed(node)
    here = others_of(address)[0]
    enter(node, here, 5, "default/ann")
    assert node.answer(here, m.Fetch(address, 0, 1), 5).batches == ()
    knows = address.shard if stale == "landing" else here
    spoil_role(node.all[knows].shard, "readers")
    refused = node.answer(here, m.Fetch(address, 0, 1), 5)
    assert refused.code in (Unauthorized.code, UnknownTopic.code)
    passed = node.all[address.shard].guests
    assert bool(passed) or stale == "owner"


def test_an_old_password_ends_where_the_owner_knows_the_new_one(node: Any) -> None:
    """The shard that let the user in is cut off; what it passes on is served by nobody."""
    address = closed(node)
    registry = node.layout.registry_shard
    away = next(shard for shard in others_of(address) if shard not in (registry, 0))
    enter(node, away, 5, "default/ann")
    node.cut(registry, away)
    changed = w.ChangeUser("password", "ann", verifier_of("new"))
    node.ask(0, changed, 2)
    node.settle()
    assert 5 in sessions_of(node.all[away].shard), "it has not heard of it"
    number = node.ask(away, m.Fetch(address, 0, 1), 5)
    node.settle()
    assert node.reply(away, number, 5) is None
    assert 5 in node.all[away].hung_up
    assert not any(
        "ann" in one.principal for one in sessions_of(node.all[address.shard].shard).values()
    )


def test_an_owner_waits_for_the_news_by_which_a_user_was_let_in(node: Any) -> None:
    address = closed(node)
    registry = node.layout.registry_shard
    behind = address.shard
    here = next(shard for shard in others_of(address) if shard != registry)
    assert behind != registry
    node.blocked.add((behind, registry))
    node.ask(0, w.ChangeUser("create", "bob", VERIFIER, ("readers",)), 2)
    node.settle()
    enter(node, here, 6, "default/bob")
    number = node.ask(here, m.Fetch(address, 0, 1), 6)
    node.settle()
    assert node.reply(here, number, 6) is None, "nobody says that there is no such user"
    assert 6 not in node.all[here].hung_up
    node.blocked.clear()
    node.settle()
    assert node.reply(here, number, 6).batches == ()


def test_an_owner_without_news_ends_who_was_let_in_by_them(node: Any) -> None:
    address = closed(node)
    here = next(one for one in others_of(address) if one != node.layout.registry_shard)
    node.cut(node.layout.registry_shard, address.shard)
    node.ask(0, w.ChangeUser("create", "bob", VERIFIER, ("readers",)), 2)
    node.settle()
    enter(node, here, 6, "default/bob")
    node.ask(here, m.Fetch(address, 0, 1), 6)
    node.settle()
    assert 6 in node.all[here].hung_up


def test_a_shard_that_is_away_is_named(node: Any) -> None:
    closed(node)
    registry = node.layout.registry_shard
    away = next(shard for shard in range(3) if shard not in (registry, 0))
    node.cut(registry, away)
    number = node.ask(0, w.ChangeUser("revoke", "ann"), 2)
    node.settle()
    assert node.reply(0, number, 2) is None, "it may come back"
    node.clock.monotonic += REACHED_WITHIN_MS
    for one in node.all:
        one.handle(ev.Ticked())
    node.settle()
    changed = node.reply(0, number, 2)
    assert changed.unreached == [(1, away)]
    assert catalog_of(node.all[away].shard).access.version < changed.version


def test_a_shard_that_comes_back_in_time_is_waited_for(node: Any) -> None:
    closed(node)
    registry = node.layout.registry_shard
    away = next(shard for shard in range(3) if shard not in (registry, 0))
    node.cut(registry, away)
    number = node.ask(0, w.ChangeUser("revoke", "ann"), 2)
    node.settle()
    node.join(registry, away)
    node.clock.monotonic += 200
    for one in node.all:
        one.handle(ev.Ticked())
    node.settle()
    changed = node.reply(0, number, 2)
    assert changed.unreached == []
    assert catalog_of(node.all[away].shard).access.version == changed.version


def test_a_copy_that_was_away_ends_what_it_did_not_hear_of(node: Any) -> None:
    address = closed(node)
    registry = node.layout.registry_shard
    away = next(shard for shard in range(3) if shard not in (registry, 0))
    enter(node, away, 5, "default/ann")
    assert node.answer(away, m.DescribeTopic("t"), 5).addresses == [address]
    node.cut(registry, away)
    node.ask(0, w.ChangeUser("revoke", "ann"), 2)
    node.settle()
    assert 5 in sessions_of(node.all[away].shard)
    node.join(registry, away)
    node.settle()
    assert 5 in node.all[away].hung_up
    assert 5 not in sessions_of(node.all[away].shard)


def test_only_a_shard_may_be_one(node: Any) -> None:
    """No user's name makes a principal that is none of a user."""
    closed(node)
    for name in ("shard:1.0", "user:x", "a#1", "anonymous#0"):
        refused = node.answer(0, w.ChangeUser("create", name, VERIFIER), 2)
        assert "is not allowed" in refused.message
    give(catalog_of(node.all[0].shard).access, "shard/x", rule("read", "topic", "default/t"))
    set_mode(catalog_of(node.all[0].shard).access, "closed")
    node.all[0].handle(ev.Opened(9, "user:shard/x#99", 1))
    assert node.answer(0, m.DescribeTopic("t"), 9).code == UnknownTopic.code


def begin_login(node: Any, shard: int, session: int) -> Any:
    """Connect, and take the first step of a login; return the answer."""
    one = node.all[shard]
    one.handle(ev.Opened(session))
    one.handle(ev.Secured(session))
    client = ScramClient("ann", encode_nonce(bytes(range(18))))
    return node.answer(shard, w.Login(MECHANISM, client.first), session)


def test_a_shard_without_news_lets_nobody_in(node: Any) -> None:
    """It may not have heard who was revoked."""
    closed(node)
    registry = node.layout.registry_shard
    away = next(shard for shard in range(3) if shard not in (registry, 0))
    assert isinstance(begin_login(node, away, 20), w.LoginStep)
    node.cut(registry, away)
    refused = begin_login(node, away, 21)
    assert (refused.code, "registry" in refused.message) == (Unavailable.code, True)
    assert refused.code == node.answer(away, w.Login(MECHANISM, b"c=biws"), 20).code
    node.join(registry, away)
    node.settle()
    assert isinstance(begin_login(node, away, 22), w.LoginStep)
