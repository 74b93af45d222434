"""A shard that hears nothing of the registry any more: what it goes on with, and for how long."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from rigs.access import VERIFIER, be
from rigs.shards import catalog_of, sessions_of
from weir.broker.access.confirmations import REACHED_WITHIN_MS
from weir.broker.api import events as ev
from weir.broker.forwarding.trunks import ShardTrunks
from weir.errors import Unavailable
from weir.model.topic import Mode
from weir.protocol.client import access as w
from weir.protocol.client import messages as m

#: The shard that is cut off from the registry's.
AWAY, REGISTRY = 1, 0
STALE_MS, CUTOFF_MS = 30_000, 600_000
RULES = (w.RuleRow(("read", "consume"), "topic", "t"),)


class Set:
    """A closed node of three shards, with a topic that has a partition on each, and a user."""

    def __init__(self, node: Any, mode: str = "closed") -> None:
        self.node = node
        info = node.answer(0, m.CreateTopic("t", 3))
        self.by_shard = {address.shard: address for address in info.addresses}
        assert set(self.by_shard) == {0, 1, 2}
        for request in (
            w.ChangeRole("crew", RULES),
            w.ChangeUser("create", "root", VERIFIER, ("admin",)),
            w.ChangeUser("create", "ann", VERIFIER, ("crew",)),
        ):
            assert node.answer(0, request).unreached == []
        node.answer(0, w.SetAccessMode("watch"))
        self.enter(0, 2, "root")
        if mode == "closed":
            assert node.answer(0, w.SetAccessMode("closed"), 2).unreached == []
        for shard in range(3):
            self.enter(shard, 5, "ann")

    def enter(self, shard: int, session: int, user: str) -> None:
        one = self.node.all[shard]
        one.handle(ev.Opened(session))
        be(one.shard, session, catalog_of(one.shard).access.user(f"default/{user}").principal)
        assert isinstance(self.node.answer(shard, m.Hello("x"), session), m.Welcome)

    def pass_ms(self, ms: int, step: int = 1_000) -> None:
        for _ in range(ms // step):
            self.node.clock.monotonic += step
            self.node.clock.wall += step
            for one in self.node.all:
                one.handle(ev.Ticked())
            self.node.settle()

    def has(self, shard: int, session: int = 5) -> bool:
        return session in sessions_of(self.node.all[shard].shard)


def test_a_shard_that_hears_news_by_itself_is_never_stale(node: Any) -> None:
    one = Set(node)
    one.pass_ms(CUTOFF_MS + STALE_MS)
    assert all(one.has(shard) for shard in range(3))
    for shard in node.all:
        shard.shard.check_news()
        assert shard.shard.news_age_ms <= STALE_MS // 6 + 1_000


@pytest.mark.parametrize("mode", ["closed", "watch"])
def test_sessions_go_on_without_news_until_the_cut_off_and_then_end(node: Any, mode: str) -> None:
    one = Set(node, mode)
    node.cut(REGISTRY, AWAY)
    mine, other = one.by_shard[AWAY], one.by_shard[2]
    one.pass_ms(CUTOFF_MS - 10_000)
    for address in (mine, other):
        assert node.answer(AWAY, m.Fetch(address, 0, 1), 5).batches == ()
        waits = node.ask(AWAY, m.Fetch(address, 0, 1, wait_ms=60_000), 5)
    guest = node.ask(2, m.Fetch(mine, 0, 1, wait_ms=60_000), 5)
    one.pass_ms(10_000)
    assert not one.has(AWAY)
    assert node.reply(2, guest, 5) is None, "the shard that let it in has news"
    refused = node.reply(AWAY, waits, 5)
    assert (refused.code, "600 s" in refused.message) == (Unavailable.code, True)
    assert 5 in node.all[AWAY].hung_up
    one.pass_ms(2_000)
    assert one.has(0)
    assert one.has(2), "others have news"
    assert node.answer(2, m.Fetch(mine, 0, 1), 5).batches == (), "its partition goes on for others"


def test_a_revocation_says_by_when_a_shard_that_was_not_reached_stops(node: Any) -> None:
    one = Set(node)
    node.cut(REGISTRY, AWAY)
    heard = node.clock.wall
    number = node.ask(0, w.ChangeUser("revoke", "ann"), 2)
    one.pass_ms(REACHED_WITHIN_MS + 1_000)
    changed = node.reply(0, number, 2)
    assert changed.unreached == [(1, AWAY)]
    assert heard + CUTOFF_MS < changed.stops_by_ms < heard + CUTOFF_MS + 15_000
    assert one.has(AWAY), "it has not heard of it"
    one.pass_ms(changed.stops_by_ms - node.clock.wall - 1_000)
    assert not one.has(AWAY)


def test_a_change_that_reaches_all_names_no_time_nor_does_one_that_closes_the_set(
    node: Any,
) -> None:
    one = Set(node, "watch")
    assert node.answer(0, w.ChangeUser("create", "bob", VERIFIER), 2).stops_by_ms == 0
    node.cut(REGISTRY, AWAY)
    number = node.ask(0, w.SetAccessMode("closed"), 2)
    one.pass_ms(REACHED_WITHIN_MS + 1_000)
    changed = node.reply(0, number, 2)
    assert changed.unreached == [(1, AWAY)]
    assert changed.stops_by_ms == 0, "nobody knows whether it has heard that the set watches"


@pytest.mark.parametrize("mode", ["open", "watch"])
def test_a_shard_without_news_lets_no_stranger_into_a_set_that_watches(
    node: Any, mode: Literal["open", "watch"]
) -> None:
    one = Set(node, "watch")
    if mode == "open":
        assert node.answer(0, w.SetAccessMode("open"), 2).unreached == []
    node.cut(REGISTRY, AWAY)
    one.pass_ms(STALE_MS + 6_000)
    away = node.all[AWAY]
    away.handle(ev.Opened(7))
    answer = node.answer(AWAY, m.Hello("x"), 7)
    if mode == "open":
        assert isinstance(answer, m.Welcome)
    else:
        assert (answer.code, "no news" in answer.message) == (Unavailable.code, True)
        assert 7 in away.hung_up
        assert isinstance(node.answer(AWAY, m.Hello("x"), 5), m.Welcome), "it was let in before"


def test_news_that_come_back_let_everything_go_on(node: Any) -> None:
    one = Set(node)
    node.cut(REGISTRY, AWAY)
    one.pass_ms(STALE_MS + 10_000)
    with pytest.raises(Unavailable, match="no news"):
        node.all[AWAY].shard.check_news()
    with pytest.raises(Unavailable, match="no news"):
        node.all[AWAY].shard.token_allows(b"any", "list", "system")
    node.join(REGISTRY, AWAY)
    node.settle()
    node.all[AWAY].shard.check_news()
    assert one.has(AWAY)
    node.cut(REGISTRY, AWAY)
    one.pass_ms(CUTOFF_MS - 10_000)
    assert one.has(AWAY), "it counts from the last news"


def test_an_answer_that_it_is_not_known_is_no_news(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard that has the registry may be cut off from its leader itself."""
    one = Set(node)

    def reach(*_: Any) -> None:
        raise Unavailable("cannot reach the registry's leader")

    monkeypatch.setattr(ShardTrunks, "reach", reach)
    one.pass_ms(STALE_MS + 6_000)
    with pytest.raises(Unavailable, match="no news"):
        node.all[AWAY].shard.check_news()


def test_a_cluster_that_has_begun_is_served_by_partitions_without_news(node: Any) -> None:
    """Partition 0 decides what clusters there are; the others may be pulled from at any time."""
    one = Set(node)
    info = node.answer(2, m.DescribeTopic("t"), 5)
    home, other = info.addresses[0], info.addresses[1]
    assert (home.shard, other.shard) == (1, 2)
    node.cut(REGISTRY, 2)
    one.pass_ms(STALE_MS + 6_000)
    assert node.answer(1, m.OpenCluster(home, "c", Mode.SHARED), 5) == m.ClusterIsOpen()
    assert isinstance(node.answer(1, m.Pull(other, "c", 1, 1, 0), 5), m.Granted)
