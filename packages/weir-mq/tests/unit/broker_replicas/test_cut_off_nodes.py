"""A node that the metadata's majority does not reach, and that leads partitions all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.access import be, give, rule, set_mode
from rigs.shards import catalog_of, sessions_of
from weir.errors import Unavailable
from weir.model.topic import Mode
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client.consumers import SeekCursor, TakeTurn

STALE_MS, CUTOFF_MS = 3_000, 6_000


class CutOff:
    """A closed set of three nodes, in which one that does not lead the metadata leads the only
    replica of a topic, and a user is connected to it; then nothing reaches it.
    """

    def __init__(self, trio: Any) -> None:
        self.trio = trio
        for number in range(20):
            topic = trio.topic(f"t{number}", replicas=1)
            self.address = topic.addresses[0]
            self.node = trio.leader(self.address.group)
            if self.node is not trio.leader():
                break
        self.name, self.topic = f"default/t{number}", topic
        self.grant = trio.producer()
        verbs = "publish", "read", "consume", "administer", "steer"
        rules = [rule(verb, "topic", self.name) for verb in verbs]
        rules.append(rule("administer", "cluster", f"{self.name}:", True))
        for node in trio.live():
            access = catalog_of(node.shard).access
            principal = give(access, "default/ann", *rules)
            set_mode(access, "watch")
        assert self.ask(m.Fetch(self.address, 0, 1)).batches == ()
        be(self.node.shard, 5, principal)
        assert self.ask(m.OpenCluster(self.address, "there", Mode.SHARED)) == m.ClusterIsOpen()
        for node in trio.live():
            set_mode(catalog_of(node.shard).access, "closed")
        trio.run(1_000)
        trio.isolate(self.node.id)

    def ask(self, request: m.Request) -> Any:
        return self.trio.answer(self.node, request, 5)

    @property
    def is_there(self) -> bool:
        return 5 in sessions_of(self.node.shard)


@pytest.fixture
def cut_off(make_trio: Callable[..., Any]) -> CutOff:
    return CutOff(make_trio(stale_ms=STALE_MS, cutoff_ms=CUTOFF_MS))


def test_a_partition_with_its_majority_goes_on_without_the_metadata(cut_off: CutOff) -> None:
    cut_off.trio.run(STALE_MS)
    assert cut_off.node.shard.news_age_ms >= STALE_MS
    fetched = cut_off.ask(m.Fetch(cut_off.address, 0, 1))
    assert isinstance(fetched, m.Fetched)
    pulled = cut_off.ask(m.Pull(cut_off.address, "there", 1, 1, 0))
    assert isinstance(pulled, m.Granted)


def test_no_cluster_begins_on_a_node_without_news(cut_off: CutOff) -> None:
    before = cut_off.ask(m.OpenCluster(cut_off.address, "early", Mode.SHARED))
    assert before == m.ClusterIsOpen(), "news are not old yet"
    cut_off.trio.run(STALE_MS)
    for request in (
        m.OpenCluster(cut_off.address, "late", Mode.SHARED),
        m.Pull(cut_off.address, "late", 1, 1, 0),
        TakeTurn(cut_off.address, "late", (0,), 1_000, 0),
        SeekCursor(cut_off.address, "late", (0,)),
        a.SeekCluster(cut_off.address, "late", 0),
        a.BeginCluster(cut_off.address, "late", 0),
    ):
        refused = cut_off.ask(request)
        assert (refused.code, "no news of the metadata" in refused.message) == (
            Unavailable.code, True
        ), request  # fmt: skip
    opened = cut_off.ask(m.OpenCluster(cut_off.address, "early", Mode.SHARED))
    assert opened == m.ClusterIsOpen()
    cut_off.trio.heal()
    cut_off.trio.run(3_000)
    assert cut_off.is_there
    opened = cut_off.ask(m.OpenCluster(cut_off.address, "late", Mode.SHARED))
    assert opened == m.ClusterIsOpen()


def test_sessions_of_a_node_without_news_end_at_the_cut_off(cut_off: CutOff) -> None:
    waits = cut_off.node.ask(m.Fetch(cut_off.address, 0, 1, wait_ms=60_000), 5)
    cut_off.trio.run(CUTOFF_MS - 1_500)
    assert cut_off.is_there
    cut_off.trio.run(2_000)
    assert not cut_off.is_there
    assert cut_off.node.reply_to(waits, 5).code == Unavailable.code
    assert "no news of the metadata for 6 s" in cut_off.node.hangups[-1].reason


def test_news_are_as_old_as_the_question_that_they_answer(make_trio: Callable[..., Any]) -> None:
    """What was committed behind the question may be missing in the answer."""
    trio = make_trio(stale_ms=STALE_MS, cutoff_ms=CUTOFF_MS)
    trio.topic()
    node = next(one for one in trio.live() if one is not trio.leader())
    trio.until(lambda: node.shard.news_age_ms == STALE_MS // 6 - 50)
    trio.pass_ms(50)
    trio.pass_ms(200)
    trio.settle()
    assert node.shard.news_age_ms == 200
